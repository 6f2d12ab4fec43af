//! Case C12 as far as it is about `kill -9`: the daemon ends, as a power cut would end it, at each step of
//! making a session, running a command and deleting a session. The next daemon on the same state folder finishes or undoes what
//! was under way, the ledger says which, and the machine holds nothing that no session owns.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

/// What the daemon was asked for when it ended.
enum Asked {
    Create,
    Exec(&'static str),
    Delete,
}

/// A state folder with one session that must live through everything, and what became of the other
/// one.
struct After {
    daemon: Daemon,
    state: State,
    bystander: String,
    session: String,
    reconciled: Value,
}

impl After {
    fn api(&self) -> &Api {
        self.daemon.api()
    }

    fn status(&self) -> String {
        let record = self.api().session(&self.session);
        assert_eq!(
            record["in_flight"],
            json!([]),
            "nothing is left open: {record}"
        );
        record["status"].as_str().expect("a status").to_owned()
    }

    /// What holds after every crash, and after the end of whatever is left.
    fn settle(self) {
        let api = self.api();
        assert_eq!(
            api.exec(&self.bystander, "cat kept").text(),
            "kept\n",
            "the other one lives"
        );
        assert_eq!(self.reconciled["adopted"].as_array().map_or(0, Vec::len), {
            let running = |session: &&Value| session["status"] == "running";
            api.sessions().iter().filter(running).count()
        });
        verified(&api.export_ledger());
        // Going out of scope the daemon asserts that nothing is left on the host.
        drop(self.daemon);
        let events = open_offline(&self.state.root());
        let orphans = events
            .iter()
            .filter(|event| event.header.kind.as_str().ends_with(".started"));
        for intent in orphans.filter(|event| event.header.kind.as_str() != "host.started") {
            let id = intent.header.event_id;
            let closed = events
                .iter()
                .filter(|event| event.header.causation_id == Some(id))
                .count();
            assert!(closed >= 1, "{} has no outcome", intent.header.seq);
        }
    }
}

/// Lets the daemon end at a point and starts the next one.
fn crash_at(point: &str, asked: &Asked) -> After {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let bystander = daemon.api().create();
    assert_eq!(
        daemon.api().exec(&bystander, "echo kept >kept").exit_code,
        0
    );
    let victim = match asked {
        Asked::Create => None,
        Asked::Exec(_) | Asked::Delete => Some(daemon.api().create()),
    };
    assert_eq!(daemon.terminate().code, Some(0));

    let daemon = Start::crashing_at(&state, point).ready();
    let session = victim.clone().unwrap_or_default();
    let path = format!("{SESSIONS}/{session}");
    let (api, key) = (daemon.api(), [("idempotency-key", "the-only-one")]);
    let answer = match asked {
        Asked::Create => api.try_send("POST", SESSIONS, &key, br#"{"agent":"victim"}"#),
        Asked::Exec(command) => {
            let body = json!({"command": command}).to_string();
            api.try_send("POST", &format!("{path}/exec"), &key, body.as_bytes())
        }
        Asked::Delete => api.try_send("DELETE", &path, &[], &[]),
    };
    assert!(
        answer.is_err(),
        "{point}: the daemon ended before it could answer: {answer:?}"
    );
    assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");

    let daemon = Daemon::start(&state);
    let session = victim.unwrap_or_else(|| {
        let sessions = daemon.api().sessions();
        let made = sessions.iter().find(|session| session["agent"] == "victim");
        made.expect("the session that was being made is listed")["id"]
            .as_str()
            .expect("id")
            .into()
    });
    let events = events_of(&daemon.api().export_ledger());
    let last = events
        .iter()
        .rfind(|event| event.header.kind.as_str() == "host.reconciled");
    let payload = last
        .expect("a start says what it found")
        .payload_bytes()
        .expect("payload");
    let reconciled = serde_json::from_slice(payload).expect("JSON");
    After {
        state,
        daemon,
        bystander,
        session,
        reconciled,
    }
}

/// A retry of the request that was interrupted, with its key.
fn retry_create(after: &After) -> fluxvm_replay_tests::Answer {
    let key = [("idempotency-key", "the-only-one")];
    after
        .api()
        .send("POST", SESSIONS, &key, br#"{"agent":"victim"}"#)
}

/// A retry of the command that was interrupted, with its key.
fn retry_exec(after: &After, command: &str) -> fluxvm_replay_tests::Answer {
    let key = [("idempotency-key", "the-only-one")];
    let path = format!("{SESSIONS}/{}/exec", after.session);
    let body = json!({"command": command}).to_string();
    after.api().send("POST", &path, &key, body.as_bytes())
}

fn running_victims(after: &After) -> usize {
    let sessions = after.api().sessions();
    let runs = |session: &&Value| session["agent"] == "victim" && session["status"] == "running";
    sessions.iter().filter(runs).count()
}

fn was_undone(point: &str) {
    let after = crash_at(point, &Asked::Create);
    assert_eq!(after.status(), "failed", "{point}");
    let failed = after
        .api()
        .only_event(&after.session, "session.create.failed");
    assert_eq!(failed["data"]["code"], "interrupted", "{failed}");
    assert_eq!(after.reconciled["interrupted"], 1, "{}", after.reconciled);
    let sandboxes = std::fs::read_dir(after.state.root().join("sandboxes")).expect("folder");
    let visible = |entry: &std::fs::DirEntry| !entry.file_name().to_string_lossy().starts_with('.');
    assert_eq!(
        sandboxes.flatten().filter(visible).count(),
        1,
        "the bystander's only"
    );
    // The key is free again, because nothing came of it.
    let _ = retry_create(&after).expect(201);
    assert_eq!(running_victims(&after), 1);
    let new = after.api().sessions().last().expect("the new one")["id"].clone();
    after.api().remove(new.as_str().expect("id"));
    after.settle();
}

#[test]
fn create_intent_the_session_has_failed_and_nothing_of_it_is_left() {
    was_undone("create.intent");
}

#[test]
fn create_sandbox_the_session_has_failed_and_its_sandbox_is_removed() {
    was_undone("create.sandbox");
}

#[test]
fn create_outcome_the_session_lives_and_a_retry_makes_no_second_one() {
    let after = crash_at("create.outcome", &Asked::Create);
    assert_eq!(after.status(), "running");
    assert_eq!(after.api().exec(&after.session, "echo hi").text(), "hi\n");
    let retried = retry_create(&after).expect(201);
    assert_eq!(
        retried["id"],
        after.session.as_str(),
        "the one that was made"
    );
    assert_eq!(running_victims(&after), 1, "exactly one");
    after.settle();
}

#[test]
fn exec_intent_the_command_never_ran_and_the_ledger_says_so() {
    let command = "echo ran >ran";
    let after = crash_at("exec.intent", &Asked::Exec(command));
    let mut stream = after.api().stream(&after.session, "", None);
    stream.until("exec.failed");
    let failed = after.api().only_event(&after.session, "exec.failed");
    assert_eq!(failed["data"]["code"], "interrupted", "{failed}");
    assert_eq!(after.status(), "running");
    assert_eq!(
        after.api().exec(&after.session, "ls").text(),
        "",
        "it did not run"
    );
    assert_eq!(
        retry_exec(&after, command).error(502),
        "interrupted",
        "a retry is told"
    );
    let _ = retry_exec(&after, command).expect(200);
    assert_eq!(
        after.api().exec(&after.session, "cat ran").text(),
        "ran\n",
        "and may try again"
    );
    after.settle();
}

#[test]
fn exec_ended_the_next_daemon_records_the_outcome() {
    let command = "echo ran | tee -a ran; echo oh >&2; exit 3";
    let after = crash_at("exec.ended", &Asked::Exec(command));
    let mut stream = after.api().stream(&after.session, "", None);
    stream.until("exec");
    let outcome = after.api().only_event(&after.session, "exec");
    let data = &outcome["data"];
    assert_eq!(
        (&data["exit_code"], &data["readopted"]),
        (&json!(3), &json!(true)),
        "{outcome}"
    );
    let digest = |bytes: &[u8]| json!(blake3::hash(bytes).to_hex().to_string());
    assert_eq!(data["stdout"]["blake3"], digest(b"ran\n"), "{outcome}");
    assert_eq!(data["stderr"]["blake3"], digest(b"oh\n"), "{outcome}");
    let retried = retry_exec(&after, command).expect(200);
    let answered = (
        &retried["seq"],
        &retried["exit_code"],
        &retried["stdout"],
        &retried["stderr"],
    );
    assert_eq!(
        answered,
        (&outcome["seq"], &json!(3), &json!("ran\n"), &json!("oh\n"))
    );
    assert_eq!(
        after.reconciled["commands_resumed"], 1,
        "{}",
        after.reconciled
    );
    assert_eq!(after.status(), "running");
    assert_eq!(
        after.api().exec(&after.session, "cat ran").text(),
        "ran\n",
        "it ran once"
    );
    after.settle();
}

#[test]
fn exec_outcome_the_command_has_the_one_outcome_that_was_recorded() {
    let command = "echo ran | tee -a ran";
    let after = crash_at("exec.outcome", &Asked::Exec(command));
    let outcome = after.api().only_event(&after.session, "exec");
    assert_eq!(outcome["data"]["exit_code"], 0, "{outcome}");
    assert_eq!(outcome["data"]["readopted"], Value::Null, "{outcome}");
    let retried = retry_exec(&after, command).expect(200);
    assert_eq!(
        (&retried["seq"], &retried["stdout"]),
        (&outcome["seq"], &json!("ran\n"))
    );
    assert_eq!(after.status(), "running");
    assert_eq!(
        after.api().exec(&after.session, "cat ran").text(),
        "ran\n",
        "it ran once"
    );
    after.settle();
}

fn was_finished(point: &str) {
    let after = crash_at(point, &Asked::Delete);
    assert_eq!(after.status(), "deleted", "{point}");
    let _ = after.api().only_event(&after.session, "session.delete");
    let _ = after.api().only_event(&after.session, "session.cleanup");
    after.api().remove(&after.session);
    assert!(
        after
            .api()
            .sessions()
            .iter()
            .all(|session| session["id"] != after.session.as_str())
    );
    after.settle();
}

#[test]
fn delete_intent_the_next_daemon_goes_through_with_it() {
    was_finished("delete.intent");
}

#[test]
fn delete_removed_the_next_daemon_records_that_it_is_done() {
    was_finished("delete.removed");
}

#[test]
fn delete_outcome_the_session_stays_deleted() {
    was_finished("delete.outcome");
}

#[test]
fn a_crash_during_the_deletion_of_a_session_whose_command_runs_closes_both() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    daemon.kill9();
    let daemon = Start::crashing_at(&state, "delete.intent").ready();
    let mut stream = daemon.api().stream(&id, "", None);
    let caller = std::thread::spawn({
        let (api, path) = (daemon.api().clone(), format!("{SESSIONS}/{id}/exec"));
        move || {
            api.try_send("POST", &path, &[], br#"{"command":"sleep 300"}"#)
                .is_err()
        }
    });
    stream.until("exec.started");
    let path = format!("{SESSIONS}/{id}");
    assert!(daemon.api().try_send("DELETE", &path, &[], &[]).is_err());
    assert_eq!(daemon.ended().signal, Some(SIGABRT));
    assert!(caller.join().expect("the caller"));

    let daemon = Daemon::start(&state);
    let record = daemon.api().session(&id);
    assert_eq!(
        (&record["status"], &record["in_flight"]),
        (&json!("deleted"), &json!([]))
    );
    let kinds = daemon.api().kinds(&id);
    assert!(kinds.contains(&"exec.failed".to_owned()), "{kinds:?}");
}
