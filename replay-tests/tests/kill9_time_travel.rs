//! A daemon that is killed again and again while a session is captured, put back, undone and forked
//! keeps its word: a checkpoint that was answered can be restored for good, with the files that it had,
//! and no sandbox and no snapshot is left that nobody needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Sender;
use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::is_tidy;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// How often the daemon is killed.
const ROUNDS: usize = 6;

/// Every tag that was answered, with what was in the file.
type Tags = Arc<Mutex<BTreeMap<String, String>>>;

/// Asks; `None` when the daemon is gone.
fn ask(api: &Api, id: &str, verb: &str, body: &Value) -> Option<Value> {
    let path = format!("{SESSIONS}/{id}/{verb}");
    let answer = api
        .try_send("POST", &path, &[], body.to_string().as_bytes())
        .ok()?;
    assert_eq!(answer.status / 100, 2, "{verb}: {}", answer.json());
    Some(answer.json())
}

fn exec(api: &Api, id: &str, command: &str) -> Option<String> {
    let ran = ask(api, id, "exec", &json!({"command": command}))?;
    assert_eq!(ran["exit_code"], 0, "{command}: {ran}");
    Some(ran["stdout"].as_str().expect("text").to_owned())
}

/// One round of everything.
fn turn(api: &Api, id: &str, name: &str, tags: &Tags) -> Option<()> {
    exec(api, id, &format!("echo {name} >>f"))?;
    let content = exec(api, id, "cat f")?;
    ask(api, id, "checkpoint", &json!({"tag": name}))?;
    let mut known = tags.lock().unwrap_or_else(PoisonError::into_inner);
    known.insert(name.to_owned(), content);
    let first = known.keys().next().cloned();
    drop(known);
    ask(api, id, "rewind/undo", &json!({"steps": 2}))?;
    ask(api, id, "rewind/redo", &json!({}))?;
    let forked = ask(api, id, "fork", &json!({"count": 2}))?;
    for child in forked["items"].as_array().expect("children") {
        let path = format!("{SESSIONS}/{}", child["id"].as_str().expect("an id"));
        let _ = api.try_send("DELETE", &path, &[], &[]).ok()?;
    }
    ask(api, id, "restore", &json!({"tag": first}))?;
    Some(())
}

fn work(api: &Api, id: &str, round: usize, tags: &Tags, turns: &Sender<()>) {
    for number in 0.. {
        if turn(api, id, &format!("r{round}t{number}"), tags).is_none() {
            return;
        }
        // The test may have seen enough.
        let _ = turns.send(());
    }
}

/// Everything that was answered is still so.
fn keeps_its_word(api: &Api, state: &State, id: &str, tags: &Tags, round: usize) {
    eventually("what was under way is over", || {
        (api.session(id)["in_flight"] == json!([])).then_some(())
    });
    assert_eq!(api.session(id)["status"], "running", "round {round}");
    is_tidy(api, state, &format!("round {round}"));
    let known = tags.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (tag, content) in known.iter().rev().take(3) {
        let _ = api.restore(id, tag);
        assert_eq!(api.exec(id, "cat f").text(), content, "{tag}");
    }
    let children = api.sessions();
    for child in children.iter().filter(|session| session["parent"] == id) {
        api.remove(child["id"].as_str().expect("an id"));
    }
}

#[test]
fn c12_whatever_was_answered_about_the_past_is_so_after_any_kill() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    daemon.api().rewind_on(&id, 4);
    daemon.kill9();
    let tags = Tags::default();
    for round in 0..ROUNDS {
        let daemon = Daemon::start(&state);
        keeps_its_word(daemon.api(), &state, &id, &tags, round);
        let (sender, turns) = mpsc::channel();
        let worker = thread::spawn({
            let (api, id, tags) = (daemon.api().clone(), id.clone(), Arc::clone(&tags));
            move || work(&api, &id, round, &tags, &sender)
        });
        turns.recv().expect("one turn is done");
        // Each round ends at another place of the next turn: when so many events of it are recorded.
        let mut stream = daemon.api().stream(&id, "", None);
        for _ in 0..(round + 1) {
            stream.until("rewind.point");
        }
        stream.until(["fork.started", "restore.started", "checkpoint.started"][round % 3]);
        daemon.kill9();
        worker.join().expect("its answers held");
    }
    let daemon = Daemon::start(&state);
    keeps_its_word(daemon.api(), &state, &id, &tags, ROUNDS);
    assert!(tags.lock().unwrap_or_else(PoisonError::into_inner).len() >= ROUNDS);
    verified(&daemon.api().export_ledger());
    daemon.api().remove(&id);
    eventually("nothing is left", || {
        fluxvm_replay_tests::names(&state, "snapshots")
            .is_empty()
            .then_some(())
    });
}
