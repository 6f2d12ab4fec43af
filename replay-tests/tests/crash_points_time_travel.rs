//! The daemon ends, as a power cut would end it, at each step of capturing a session, going back, and
//! making children. The next daemon on the same state folder finds the session as it was or as it was
//! to be, says which, and leaves no sandbox and no snapshot that nobody needs.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::ids;
use fluxvm_replay_tests::is_tidy;
use fluxvm_replay_tests::names;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

const KEY: [(&str, &str); 1] = [("idempotency-key", "the-only-one")];

/// What the daemon was asked for when it ended.
struct Asked {
    verb: &'static str,
    body: Value,
    status: u16,
}

impl Asked {
    fn new(verb: &'static str, body: Value, status: u16) -> Self {
        Self { verb, body, status }
    }
}

/// A session after a crash, with a daemon that found it.
struct After {
    state: State,
    daemon: Daemon,
    session: String,
}

/// A session with a checkpoint of `one`, two points, and `three` in its file.
fn prepared(api: &Api) -> String {
    let id = api.create();
    run(api, &id, "echo one >f");
    api.checkpoint(&id, "one");
    api.rewind_on(&id, 5);
    run(api, &id, "echo two >f");
    run(api, &id, "echo three >f");
    id
}

fn run(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

/// The ring must not change when a test looks.
fn look(api: &Api, id: &str) -> String {
    let _ = api
        .ask(id, "rewind/config", &json!({"enabled": false}))
        .expect(200);
    run(api, id, "cat f")
}

fn crash_at(point: &str, asked: &Asked) -> After {
    crash_after(|_, _| (), point, asked)
}

/// The same, after something else was done.
fn crash_after(first: impl FnOnce(&Api, &str), point: &str, asked: &Asked) -> After {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = prepared(daemon.api());
    first(daemon.api(), &session);
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = Start::crashing_at(&state, point).ready();
    let path = format!("{SESSIONS}/{session}/{}", asked.verb);
    let body = asked.body.to_string();
    let answer = daemon.api().try_send("POST", &path, &KEY, body.as_bytes());
    assert!(
        answer.is_err(),
        "{point}: the daemon ended before it could answer: {answer:?}"
    );
    assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
    let daemon = Daemon::start(&state);
    After {
        state,
        daemon,
        session,
    }
}

impl After {
    fn api(&self) -> &Api {
        self.daemon.api()
    }

    /// Nothing is open, every sandbox and every snapshot on disk is somebody's, the ledger verifies.
    fn is_tidy(&self, what: &str) {
        let record = self.api().session(&self.session);
        assert_eq!(record["status"], "running", "{what}: {record}");
        assert_eq!(record["in_flight"], json!([]), "{what}: {record}");
        is_tidy(self.api(), &self.state, what);
        verified(&self.api().export_ledger());
    }

    /// The session is as it was, the ledger says so, and asking again does it.
    fn was_rolled_back(&self, op: &str, point: &str) {
        self.is_tidy(point);
        let interrupted = self
            .api()
            .only_event(&self.session, "lifecycle.interrupted");
        assert_eq!(interrupted["data"]["op"], op, "{interrupted}");
        assert_eq!(
            interrupted["data"]["resolution"], "rolled_back",
            "{interrupted}"
        );
        let record = self.api().session(&self.session);
        assert_eq!(record["interrupted_op"]["op"], op);
        assert_eq!(record["interrupted_op"]["resolution"], "rolled_back");
    }

    fn retry(&self, asked: &Asked) -> fluxvm_replay_tests::Answer {
        self.api()
            .ask_with(&self.session, asked.verb, &KEY, &asked.body)
    }

    /// Ends everything; nothing is left then.
    fn end(self) {
        for session in self.api().sessions() {
            self.api().remove(session["id"].as_str().expect("an id"));
        }
        fluxvm_replay_tests::eventually("no snapshot is left", || {
            names(&self.state, "snapshots").is_empty().then_some(())
        });
    }
}

fn checkpoint() -> Asked {
    Asked::new("checkpoint", json!({"tag": "three"}), 201)
}

fn restore() -> Asked {
    Asked::new("restore", json!({"tag": "one"}), 200)
}

fn fork() -> Asked {
    Asked::new("fork", json!({"count": 3}), 201)
}

fn branch() -> Asked {
    Asked::new("rewind/branch", json!({"tag": "rw-2", "count": 2}), 200)
}

fn undo() -> Asked {
    Asked::new("rewind/undo", json!({"steps": 2}), 200)
}

/// At each of these points the session is as it was, and the retry, with the same key, does it.
fn rolls_back(point: &str, op: &str, asked: &Asked) {
    let after = crash_at(point, asked);
    after.was_rolled_back(op, point);
    assert_eq!(after.api().tags(&after.session), ["one"], "{point}");
    assert_eq!(after.api().session(&after.session)["children"], json!([]));
    let _ = after.retry(asked).expect(asked.status);
    let record = after.api().session(&after.session);
    assert_eq!(record["interrupted_op"], Value::Null, "{point}: {record}");
    after.is_tidy(point);
    after.end();
}

/// At this point it is done, and the retry gets the answer that was lost.
fn stays_done(point: &str, kind: &str, asked: &Asked) -> After {
    let after = crash_at(point, asked);
    after.is_tidy(point);
    let outcome = after.api().only_event(&after.session, kind);
    let retried = after.retry(asked);
    assert_eq!(retried.headers["idempotent-replayed"], "true", "{point}");
    assert_eq!(
        retried.expect(asked.status)["seq"],
        outcome["seq"],
        "{point}"
    );
    let _ = after.api().only_event(&after.session, kind);
    after
}

#[test]
fn a_checkpoint_is_there_or_it_is_not() {
    rolls_back("checkpoint.intent", "checkpoint", &checkpoint());
    rolls_back("checkpoint.taken", "checkpoint", &checkpoint());
    let after = crash_at("checkpoint.outcome", &checkpoint());
    after.is_tidy("checkpoint.outcome");
    assert_eq!(after.api().tags(&after.session), ["one", "three"]);
    let retried = after.retry(&checkpoint());
    assert_eq!(retried.headers["idempotent-replayed"], "true");
    assert_eq!(retried.expect(201)["tag"], "three");
    assert_eq!(after.api().tags(&after.session), ["one", "three"]);
    after.end();
}

#[test]
fn a_restore_happened_or_it_did_not() {
    for point in ["restore.intent", "restore.revived"] {
        let after = crash_at(point, &restore());
        after.was_rolled_back("restore", point);
        assert_eq!(look(after.api(), &after.session), "three\n", "{point}");
        after.end();
    }
    rolls_back("restore.revived", "restore", &restore());
    let after = stays_done("restore.outcome", "restore", &restore());
    assert_eq!(look(after.api(), &after.session), "one\n");
    after.end();
}

#[test]
fn all_children_are_there_or_none() {
    for point in ["fork.intent", "fork.snapshot", "fork.children"] {
        rolls_back(point, "fork", &fork());
    }
    let after = stays_done("fork.outcome", "fork", &fork());
    let children = after.api().session(&after.session)["children"].clone();
    let children: Vec<&str> = children
        .as_array()
        .expect("children")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(children.len(), 3);
    for child in children {
        assert_eq!(run(after.api(), child, "cat f"), "three\n");
    }
    after.end();
}

#[test]
fn all_branches_are_there_or_none() {
    for point in ["fork.intent", "fork.children"] {
        rolls_back(point, "session.branch_child", &branch());
    }
    let after = stays_done("fork.outcome", "session.branch_child", &branch());
    let retried = after.retry(&branch()).expect(200);
    for child in ids(&retried) {
        assert_eq!(run(after.api(), &child, "cat f"), "two\n");
    }
    after.end();
}

#[test]
fn an_undo_happened_or_it_did_not() {
    for point in [
        "rewind.move.intent",
        "rewind.move.kept",
        "rewind.move.revived",
    ] {
        let after = crash_at(point, &undo());
        after.was_rolled_back("rewind.undo", point);
        assert_eq!(after.api().ring_line(&after.session), "rw-1 rw-2 | ");
        assert_eq!(look(after.api(), &after.session), "three\n", "{point}");
        after.end();
    }
    let after = stays_done("rewind.move.outcome", "rewind.undo", &undo());
    assert_eq!(after.api().ring_line(&after.session), " | rw-1 rw-2 rw-3");
    assert_eq!(look(after.api(), &after.session), "one\n");
    after.end();
}

#[test]
fn a_redo_happened_or_it_did_not() {
    let undone = |api: &Api, id: &str| {
        let _ = api.ask(id, "rewind/undo", &json!({"steps": 2})).expect(200);
    };
    let redo = Asked::new("rewind/redo", json!({"steps": 1}), 200);
    for point in ["rewind.move.intent", "rewind.move.revived"] {
        let after = crash_after(undone, point, &redo);
        after.was_rolled_back("rewind.redo", point);
        assert_eq!(after.api().ring_line(&after.session), " | rw-1 rw-2 rw-3");
        let _ = after.retry(&redo).expect(200);
        assert_eq!(look(after.api(), &after.session), "two\n", "{point}");
        after.end();
    }
    let after = crash_after(undone, "rewind.move.outcome", &redo);
    after.is_tidy("rewind.move.outcome");
    assert_eq!(look(after.api(), &after.session), "two\n");
    after.end();
}

#[test]
fn a_point_that_a_crash_cut_off_is_gone_and_its_command_says_that_it_never_ran() {
    let asked = Asked::new("exec", json!({"command": "echo four >f"}), 200);
    for point in ["rewind.point.intent", "rewind.point.taken"] {
        let after = crash_at(point, &asked);
        let mut stream = after.api().stream(&after.session, "", None);
        stream.until("exec.failed");
        after.was_rolled_back("rewind.point", point);
        assert_eq!(after.api().ring_line(&after.session), "rw-1 rw-2 | ");
        assert_eq!(look(after.api(), &after.session), "three\n", "{point}");
        after.end();
    }
    let after = crash_at("rewind.point.outcome", &asked);
    let mut stream = after.api().stream(&after.session, "", None);
    stream.until("exec.failed");
    after.is_tidy("rewind.point.outcome");
    assert_eq!(after.api().ring_line(&after.session), "rw-1 rw-2 rw-3 | ");
    after.end();
}

#[test]
fn a_checkpoint_that_was_let_go_of_is_swept_away() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let session = prepared(daemon.api());
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = Start::crashing_at(&state, "checkpoint.deleted").ready();
    let path = format!("{SESSIONS}/{session}/checkpoints/one");
    assert!(daemon.api().try_send("DELETE", &path, &[], &[]).is_err());
    assert_eq!(daemon.ended().signal, Some(SIGABRT));
    let before = names(&state, "snapshots").len();
    let daemon = Daemon::start(&state);
    let after = After {
        state,
        daemon,
        session,
    };
    assert_eq!(names(&after.state, "snapshots").len(), before - 1);
    after.is_tidy("checkpoint.deleted");
    after.end();
}
