//! Any bytes, as the body of a start: read or refused before there is a process.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    microvms_agentd::fuzzing::start(bytes);
});
