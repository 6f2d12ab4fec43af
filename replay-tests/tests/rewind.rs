//! The ring: points before commands, undo, redo, pins, branches.

use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::ids;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

fn text(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

/// Looks at a file without a point being taken for it.
fn look(api: &Api, id: &str, path: &str) -> String {
    let off = json!({"enabled": false});
    let _ = api.ask(id, "rewind/config", &off).expect(200);
    text(api, id, &format!("cat {path}"))
}

fn undo(api: &Api, id: &str, steps: u64) -> Value {
    let body = json!({"steps": steps});
    api.ask(id, "rewind/undo", &body).expect(200)
}

fn redo(api: &Api, id: &str, steps: u64) -> Value {
    let body = json!({"steps": steps});
    api.ask(id, "rewind/redo", &body).expect(200)
}

#[test]
fn an_undone_command_is_undone_and_a_redo_brings_it_back() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let config = api.rewind_on(&id, 10);
    assert_eq!(
        config["config"],
        json!({"enabled": true, "max_points": 10, "memory": true, "triggers": ["exec"]})
    );
    for line in ["a", "b", "c"] {
        text(api, &id, &format!("echo {line} >>f"));
    }
    let ring = api.ring(&id);
    assert_eq!(api.ring_line(&id), "rw-1 rw-2 rw-3 | ");
    assert_eq!(ring["points"][1]["command"], "echo b >>f");
    assert_eq!(ring["points"][1]["trigger"], "exec");
    assert_eq!(api.session(&id)["revision"], 1, "points change no revision");

    let undone = undo(api, &id, 2);
    assert_eq!(
        (&undone["tag"], &undone["kept"]),
        (&json!("rw-2"), &json!("rw-4"))
    );
    assert_eq!(
        (&undone["undo_steps"], &undone["redo_steps"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(undone["revision"], 2, "the machine is another one");
    assert_eq!(api.ring_line(&id), "rw-1 | rw-2 rw-3 rw-4");
    let redone = redo(api, &id, 1);
    assert_eq!(redone["tag"], "rw-3");
    let redone = redo(api, &id, 1);
    assert_eq!(redone["tag"], "rw-4");
    let nothing = api.ask(&id, "rewind/redo", &json!({}));
    assert_eq!(nothing.error(409), "no_such_step");
    undo(api, &id, 1);
    assert_eq!(api.ring_line(&id), "rw-1 rw-2 | rw-3 rw-4");
    assert_eq!(look(api, &id, "f"), "a\nb\n", "before the third command");
    assert_eq!(api.ring_line(&id), "rw-1 rw-2 | ", "that was something new");
    let by_name = api.ask(&id, "rewind/undo", &json!({"to": "rw-1"}));
    assert_eq!(by_name.expect(200)["steps"], 2);
    let empty = api.exec(&id, "cat f");
    assert_eq!(
        empty.exit_code, 1,
        "before the first command there was no f"
    );
    verified(&api.export_ledger());
    api.remove(&id);
}

#[test]
fn the_ring_keeps_so_many_points_and_their_snapshots_only() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 3);
    for number in 0..6 {
        text(api, &id, &format!("echo {number} >f"));
    }
    assert_eq!(api.ring_line(&id), "rw-4 rw-5 rw-6 | ");
    let points = api.events(&id);
    let evicted: Vec<&Value> = points
        .iter()
        .filter(|event| event["kind"] == "rewind.point")
        .filter_map(|event| event["data"].get("evicted"))
        .collect();
    assert_eq!(
        evicted,
        [&json!(["rw-1"]), &json!(["rw-2"]), &json!(["rw-3"])]
    );
    snapshots_are(&state, 3);
    let pinned = api
        .ask(&id, "rewind/pin", &json!({"tag": "rw-4"}))
        .expect(200);
    assert_eq!(pinned["points"][0]["pinned"], true);
    let smaller = api.ask(&id, "rewind/config", &json!({"max_points": 2}));
    let _ = smaller.expect(200);
    assert_eq!(api.ring_line(&id), "rw-4 rw-6 | ");
    snapshots_are(&state, 2);
    let full = api.ask(&id, "rewind/pin", &json!({"tag": "rw-6"}));
    assert_eq!(full.error(409), "rewind_ring_full");
    let gone = api.ask(&id, "rewind/pin", &json!({"tag": "rw-1"}));
    assert_eq!(gone.error(404), "tag_not_found");
    text(api, &id, "echo more >f");
    assert_eq!(api.ring_line(&id), "rw-4 rw-7 | ");
    api.remove(&id);
    snapshots_are(&state, 0);
}

#[test]
fn commands_at_once_each_have_their_point_and_none_is_held_up() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 50);
    let running: Vec<_> = (0..8)
        .map(|number| {
            let (api, id) = (api.clone(), id.clone());
            thread::spawn(move || text(&api, &id, &format!("echo {number}")))
        })
        .collect();
    for (number, it) in running.into_iter().enumerate() {
        assert_eq!(it.join().expect("it ran"), format!("{number}\n"));
    }
    let points = api.ring(&id)["points"].as_array().expect("points").len();
    assert_eq!(points, 8);
    api.remove(&id);
}

#[test]
fn a_branch_starts_from_the_past_and_leaves_the_parent_where_it_is() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 10);
    text(api, &id, "echo a >>f");
    text(api, &id, "echo b >>f");
    let before = api.session(&id);
    let key = [("idempotency-key", "branch-once")];
    let body = json!({"tag": "rw-2", "count": 2});
    let branched = api.ask_with(&id, "rewind/branch", &key, &body).expect(200);
    let again = api.ask_with(&id, "rewind/branch", &key, &body);
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(again.expect(200), branched);
    let children = ids(&branched);
    assert_eq!(children.len(), 2);
    for child in &children {
        assert_eq!(text(api, child, "cat f"), "a\n");
        let record = api.session(child);
        assert_eq!(record["parent"], id.as_str());
        assert_eq!(record["origin"]["tag"], "rw-2");
        assert!(
            record["origin"]["snapshot"]["disk"].is_string(),
            "a baseline"
        );
        assert_eq!(api.ring(child)["config"]["enabled"], false);
    }
    assert_eq!(api.ring_line(&id), "rw-1 rw-2 | ", "the point stays");
    assert_eq!(api.session(&id)["sandbox_id"], before["sandbox_id"]);
    assert_eq!(look(api, &id, "f"), "a\nb\n");
    let event = api.only_event(&id, "session.branch_child");
    assert_eq!(event["data"]["children"], json!(children));
    children.iter().for_each(|child| api.remove(child));
    api.remove(&id);
}

#[test]
fn erasing_a_command_erases_what_the_ring_says_of_it_too() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 10);
    text(api, &id, "echo secret >/dev/null");
    let before = api.ring(&id)["points"][0]["before"].clone();
    let body = json!({"seq": before, "reason": "it held a secret"});
    let _ = api.post("/v1/ledger/redact", &body).expect(200);
    assert_eq!(api.ring(&id)["points"][0]["command"], Value::Null);
    let exported = api.get(&format!("{SESSIONS}/{id}/export")).body;
    assert!(!String::from_utf8_lossy(&exported).contains("secret >"));
    api.remove(&id);
}

#[test]
fn rings_and_checkpoints_live_through_a_restart() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    daemon.api().rewind_on(&id, 5);
    for line in ["a", "b", "c"] {
        text(daemon.api(), &id, &format!("echo {line} >>f"));
    }
    daemon.api().checkpoint(&id, "all");
    undo(daemon.api(), &id, 2);
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    assert_eq!(api.ring_line(&id), "rw-1 | rw-2 rw-3 rw-4");
    assert_eq!(redo(api, &id, 1)["tag"], "rw-3");
    assert_eq!(look(api, &id, "f"), "a\nb\n");
    api.restore(&id, "all");
    assert_eq!(text(api, &id, "cat f"), "a\nb\nc\n");
    api.remove(&id);
    snapshots_are(&state, 0);
}

#[test]
fn a_session_whose_sandbox_died_comes_back_from_its_checkpoint() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    text(api, &id, "echo kept >f");
    api.checkpoint(&id, "a");
    let mut stream = api.stream(&id, "", None);
    let guest = nix::unistd::Pid::from_raw(daemon.guest_pid(&id));
    nix::sys::signal::kill(guest, nix::sys::signal::Signal::SIGKILL).expect("killed");
    stream.until("sandbox.gone");
    eventually("it is gone", || {
        (api.session(&id)["status"] == "gone").then_some(())
    });
    api.restore(&id, "a");
    assert_eq!(api.session(&id)["status"], "running");
    assert_eq!(text(api, &id, "cat f"), "kept\n");
    api.remove(&id);
}

/// So many snapshots are on disk, once what is let go of is removed.
fn snapshots_are(state: &State, wanted: usize) {
    let folder = state.root().join("snapshots");
    let count = || {
        let entries = std::fs::read_dir(&folder).map_or_else(|_| Vec::new(), |it| it.collect());
        let names = entries.into_iter().flatten();
        names
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    };
    eventually(&format!("there are {wanted} snapshots"), || {
        (count() == wanted).then_some(())
    });
}
