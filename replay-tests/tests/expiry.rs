//! A session ends when its time is up, whether or not anybody looks at it.

use fluxvm_replay_tests::shared;
use serde_json::json;

#[test]
fn a_session_ends_on_time_and_takes_its_running_command_with_it() {
    let daemon = shared();
    let api = daemon.api();
    let session = api.create_with(&json!({"agent": "codex", "ttl_seconds": 1}));
    // Nothing but the session's end can end this command in time for the answer.
    let answer = api.try_exec(
        &session,
        &json!({"command": "sleep 300", "timeout_seconds": 300}),
    );
    assert_eq!(answer.error(409), "sandbox_gone");
    let mut stream = api.stream(&session, "", None);
    stream.until("session.cleanup");
    let kinds = api.kinds(&session);
    let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!(count("session.expire"), 1, "{kinds:?}");
    assert_eq!(count("session.cleanup"), 1, "{kinds:?}");
    assert_eq!(count("exec.failed"), 1, "{kinds:?}");
    assert_eq!(api.session(&session)["status"], "expired");
}
