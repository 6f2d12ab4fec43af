//! The daemon ends, as a power cut would end it, at each step of writing and removing a file. The next one
//! looks at what the guest has, and the ledger says what came of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::is_tidy;
use fluxvm_replay_tests::verified;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

/// What the workspace has, path by path.
fn look(api: &Api, id: &str) -> String {
    let shown = api.exec(id, "for it in *; do echo $it $(cat $it); done");
    shown.text().to_owned()
}

/// Crashes at a point of a request and answers what the next daemon finds: the files, and the kinds of
/// events that came of it.
fn crash(point: &str, method: &str, path: &str, body: &[u8]) -> (String, Vec<String>) {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(
        daemon.api().exec(&id, "echo old >f; echo 1 >g").exit_code,
        0
    );
    let before = daemon.api().kinds(&id).len();
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = Start::crashing_at(&state, point).ready();
    let url = format!("{SESSIONS}/{id}/{path}");
    let answer = daemon.api().try_send(method, &url, &[], body);
    assert!(answer.is_err(), "{point}: {answer:?}");
    assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let record = api.session(&id);
    assert_eq!(record["in_flight"], json!([]), "{point}: {record}");
    let kinds = api.kinds(&id).split_off(before);
    let seen = look(api, &id);
    is_tidy(api, &state, point);
    verified(&api.export_ledger());
    api.remove(&id);
    assert_eq!(daemon.terminate().code, Some(0));
    (seen, kinds)
}

#[test]
fn a_write_that_a_crash_cut_off_happened_or_it_did_not() {
    let body = json!({"path": "/workspace/f", "content_base64": STANDARD.encode("new\n")});
    let body = body.to_string();
    let write = |point: &str| crash(point, "PUT", "files/content", body.as_bytes());
    let (seen, kinds) = write("file.write.intent");
    assert_eq!(seen, "f old\ng 1\n");
    assert_eq!(kinds, ["file.write.started", "file.failed"]);
    let (seen, kinds) = write("file.write.done");
    assert_eq!(seen, "f new\ng 1\n");
    assert_eq!(
        kinds,
        ["file.write.started", "file.write"],
        "it is recorded as it is"
    );
}

#[test]
fn a_removal_that_a_crash_cut_off_happened_or_it_did_not() {
    let remove = |point: &str| crash(point, "DELETE", "files?path=%2Fworkspace%2Ff", b"");
    let (seen, kinds) = remove("file.delete.intent");
    assert_eq!(seen, "f old\ng 1\n");
    assert_eq!(kinds, ["file.delete.started", "file.failed"]);
    let (seen, kinds) = remove("file.delete.done");
    assert_eq!(seen, "g 1\n");
    assert_eq!(
        kinds,
        ["file.delete.started", "file.delete"],
        "it is recorded as it is"
    );
}
