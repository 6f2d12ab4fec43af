//! Any frames on a verified tunnel: nobody without the keys gets in, no forged frame is opened.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    microvms_agentd::fuzzing::tunnel_frames(bytes);
});
