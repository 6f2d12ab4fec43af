//! What was captured is changed behind the daemon's back, or cannot be written at all: a typed answer,
//! an event, and a session that goes on as if nothing had been asked.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use serde_json::json;

fn text(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

/// Every file below a folder with this name.
fn files_named(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn a_snapshot_that_was_tampered_with_is_refused_and_everything_else_goes_on() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    text(api, &id, "echo good >plain");
    api.checkpoint(&id, "good");
    text(api, &id, "echo signed >contract");
    api.checkpoint(&id, "bad");
    let stored = files_named(&state.root().join("layers"), "contract");
    assert_eq!(stored.len(), 1, "{stored:?}");
    fs::write(&stored[0], "forged\n").expect("tampered with");

    let refused = api.ask(&id, "restore", &json!({"tag": "bad"}));
    assert_eq!(refused.error(409), "snapshot_damaged");
    let failed = api.only_event(&id, "restore.failed");
    assert_eq!(failed["data"]["code"], "snapshot_damaged", "{failed}");
    let refused = api.ask(&id, "fork", &json!({"tag": "bad", "count": 3}));
    assert_eq!(refused.error(409), "snapshot_damaged");
    let failed = api.only_event(&id, "fork.failed");
    assert_eq!(failed["data"]["code"], "snapshot_damaged", "{failed}");

    let record = api.session(&id);
    assert_eq!(record["status"], "running");
    assert_eq!(record["in_flight"], json!([]));
    assert_eq!(record["children"], json!([]), "nothing was created");
    assert_eq!(
        text(api, &id, "cat contract"),
        "signed\n",
        "it is as it was"
    );
    api.restore(&id, "good");
    assert_eq!(text(api, &id, "ls"), "plain\n");
    api.remove(&id);
}

#[test]
fn a_point_that_cannot_be_taken_keeps_no_command_from_running() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 5);
    text(api, &id, "echo 1 >f");
    let folder = state.root().join("snapshots");
    let aside = state.root().join("snapshots-aside");
    fs::rename(&folder, &aside).expect("moved");
    fs::write(&folder, "no folder").expect("in its place");

    assert_eq!(text(api, &id, "echo 2 >f; cat f"), "2\n");
    let failed = api.only_event(&id, "rewind.capture_failed");
    assert_eq!(failed["data"]["code"], "snapshot_failed", "{failed}");
    let refused = api.ask(&id, "checkpoint", &json!({"tag": "a"}));
    assert_eq!(refused.error(503), "snapshot_failed");
    let failed = api.only_event(&id, "checkpoint.failed");
    assert_eq!(failed["data"]["tag"], "a", "{failed}");
    let refused = api.ask(&id, "fork", &json!({}));
    assert_eq!(refused.error(503), "snapshot_failed");

    fs::remove_file(&folder).expect("away");
    fs::rename(&aside, &folder).expect("back");
    api.checkpoint(&id, "a");
    assert_eq!(api.ring_line(&id), "rw-1 | ");
    assert_eq!(text(api, &id, "cat f"), "2\n");
    api.remove(&id);
}
