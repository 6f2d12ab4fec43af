//! A disk that does not confirm a sync ends the daemon: what could not be recorded is never
//! acknowledged, who asks meanwhile is told, the exit code says it, and the next start finds
//! everything that was acknowledged.

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::verified;
use serde_json::json;

/// The exit code of a daemon whose ledger failed, as its help and the API's page say.
const EXIT_FAILED: i32 = 1;

/// The shim, compiled; none without a C compiler.
fn shim(state: &State) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sync_fails/shim.c");
    let library = state.beside("sync-fails.so");
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
    let compiled = compiler.arg(&library).arg(source).status();
    match compiled {
        Ok(status) if status.success() => Some(library),
        _ => {
            println!("skipped: needs a C compiler");
            None
        }
    }
}

#[test]
fn a_sync_that_fails_is_answered_503_and_ends_the_daemon_and_the_next_one_is_whole() {
    let state = State::new();
    let Some(shim) = shim(&state) else { return };
    let fails = state.beside("fails");
    let daemon = Start::new(&state)
        .variable("LD_PRELOAD", shim.to_str().expect("text"))
        .variable("SYNC_FAILS_WHILE", fails.to_str().expect("text"))
        .ready();
    let api = daemon.api().clone();
    let id = api.create();
    let acknowledged = [api.exec(&id, "echo one").seq, api.exec(&id, "echo two").seq];

    fs::write(&fails, "").expect("written");
    let body = json!({"command": "echo three"}).to_string();
    let path = format!("{SESSIONS}/{id}/exec");
    let refused = api.send("POST", &path, &[], body.as_bytes());
    assert_eq!(refused.error(503), "ledger_unavailable");
    // For as long as it answers at all, it says so.
    while let Ok(answer) = api.try_send("POST", &path, &[], body.as_bytes()) {
        let code = answer.error(503);
        assert!(
            ["ledger_unavailable", "stopping"].contains(&code.as_str()),
            "{code}"
        );
    }
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(EXIT_FAILED), "{ended:?}");
    let words = state.last_words();
    assert!(words.contains("the ledger failed"), "{words}");

    fs::remove_file(&fails).expect("removed");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let events = api.events(&id);
    for seq in acknowledged {
        assert!(
            events.iter().any(|event| event["seq"] == seq),
            "{seq} was acknowledged"
        );
    }
    assert_eq!(
        api.exec(&id, "echo four").text(),
        "four\n",
        "the session lives on"
    );
    let _ = verified(&api.export_ledger());
}
