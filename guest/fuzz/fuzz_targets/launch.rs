//! Any text, as the payload of a run hook: read or refused, and what is read says the same again.
#![no_main]

use agentd_protocol::RunHookEnvelope;
use agentd_protocol::RunHookPayload;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = serde_json::from_slice::<RunHookEnvelope>(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(payload) = RunHookPayload::parse(text) {
        let again = RunHookPayload::parse(&payload.to_envelope().run_hook_payload);
        assert_eq!(again, Ok(payload));
    }
});
