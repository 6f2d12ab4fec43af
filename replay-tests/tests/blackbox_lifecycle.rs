//! The cases that break products like this one, as far as they are about making and deleting
//! sessions, once, twice and at once. Each test carries the number of its case.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

/// Within which a deletion must be done.
const DELETED_WITHIN: Duration = Duration::from_secs(10);

/// Deletes twice and looks whether it is done.
fn deletes(api: &Api, id: &str, what: &str) {
    let started = Instant::now();
    api.remove(id);
    assert!(
        started.elapsed() < DELETED_WITHIN,
        "{what}: {:?}",
        started.elapsed()
    );
    api.remove(id);
    let record = api.session(id);
    assert_eq!(record["status"], "deleted", "{what}: {record}");
    assert_eq!(record["in_flight"], json!([]), "{what}: {record}");
    assert_eq!(
        api.kinds(id)
            .iter()
            .filter(|kind| *kind == "session.delete")
            .count(),
        1,
        "{what}"
    );
    assert_eq!(
        api.kinds(id)
            .iter()
            .filter(|kind| *kind == "session.cleanup")
            .count(),
        1,
        "{what}"
    );
    assert!(
        api.sessions().iter().all(|session| session["id"] != id),
        "{what}: still listed"
    );
    let refused = api.try_exec(id, &json!({"command": "true"}));
    assert_eq!(refused.error(409), "session_not_running", "{what}");
}

#[test]
fn c48_a_session_is_deleted_whatever_state_it_is_in_and_twice() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();

    let idle = api.create();
    deletes(api, &idle, "idle");

    let expired = api.create_with(&json!({"agent": "a", "ttl_seconds": 1}));
    eventually("it expires", || {
        (api.session(&expired)["status"] == "expired").then_some(())
    });
    assert_eq!(
        api.try_exec(&expired, &json!({"command": "true"}))
            .error(409),
        "session_not_running"
    );
    deletes(api, &expired, "expired");

    let gone = api.create();
    let mut stream = api.stream(&gone, "", None);
    kill(Pid::from_raw(daemon.guest_pid(&gone)), Signal::SIGKILL).expect("its first process");
    stream.until("sandbox.gone");
    assert_eq!(api.session(&gone)["status"], "gone");
    deletes(api, &gone, "gone");

    let image = json!({"agent": "a", "runtime": {"image": "no-such-image"}});
    let _ = api.post(SESSIONS, &image).error(400);
    for failed in api.sessions() {
        assert_eq!(
            failed["status"], "failed",
            "nothing stays in creating: {failed}"
        );
        deletes(api, failed["id"].as_str().expect("id"), "failed");
    }
}

#[test]
fn c48_deleting_ends_the_commands_that_run() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let mut stream = api.stream(&id, "", None);
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || api.try_exec(&id, &json!({"command": "sleep 300"}))
    });
    stream.until("exec.started");
    deletes(api, &id, "running");
    let answer = running.join().expect("an answer");
    assert_eq!(answer.error(409), "sandbox_gone", "the caller is told");
    let kinds = api.kinds(&id);
    let place = |kind: &str| {
        kinds
            .iter()
            .position(|known| known == kind)
            .expect("recorded")
    };
    assert!(place("exec.failed") < place("session.delete"), "{kinds:?}");
}

#[test]
fn c48_a_session_that_is_being_made_is_deleted_or_says_why_not_yet() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    for round in 0..8 {
        let maker = thread::spawn({
            let api = api.clone();
            move || api.post(SESSIONS, &json!({"agent": "a"}))
        });
        let id = eventually("it is listed", || {
            let newest = api.sessions().get(round)?["id"].as_str()?.to_owned();
            Some(newest)
        });
        let early = api.delete(&format!("{SESSIONS}/{id}"));
        if early.status != 204 {
            assert_eq!(early.error(409), "operation_in_flight");
        }
        let made = maker.join().expect("an answer");
        assert!(
            made.status == 201 || made.error(409) != "internal",
            "{}",
            made.json()
        );
        deletes(api, &id, "just made");
        // One more, so that the list is as long as there were rounds.
        let _ = api.create();
    }
}

#[test]
fn c48_deletions_and_commands_at_once_are_each_done_or_refused_with_a_reason() {
    let daemon = shared();
    let api = daemon.api();
    for _ in 0..5 {
        let id = api.create();
        let started = Instant::now();
        let both: Vec<_> = (0..12)
            .map(|number| {
                let (api, id) = (api.clone(), id.clone());
                thread::spawn(move || match number % 3 {
                    0 => api.delete(&format!("{SESSIONS}/{id}")),
                    _ => api.try_exec(&id, &json!({"command": "echo hi"})),
                })
            })
            .collect();
        for (number, request) in both.into_iter().enumerate() {
            let answer = request.join().expect("an answer");
            match (number % 3, answer.status) {
                (0, 204) => {}
                (0, _) => assert_eq!(answer.error(409), "operation_in_flight"),
                (_, 200) => assert_eq!(answer.json()["stdout"], "hi\n"),
                _ => {
                    let code = answer.error(409);
                    let known = ["operation_in_flight", "session_not_running", "sandbox_gone"];
                    assert!(known.contains(&code.as_str()), "{code}");
                }
            }
        }
        assert!(started.elapsed() < DELETED_WITHIN);
        deletes(api, &id, "raced");
        let kinds = api.kinds(&id);
        let count = |wanted: &[&str]| {
            kinds
                .iter()
                .filter(|k| wanted.contains(&k.as_str()))
                .count()
        };
        assert_eq!(
            count(&["exec.started"]),
            count(&["exec", "exec.failed"]),
            "{kinds:?}"
        );
    }
}

#[test]
fn twenty_sessions_made_at_once_are_twenty_sandboxes_and_are_deleted_at_once() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let made: Vec<_> = (0..20)
        .map(|number| {
            let api = daemon.api().clone();
            thread::spawn(move || {
                let id = api.create();
                assert_eq!(api.exec(&id, &format!("echo {number} >own")).exit_code, 0);
                (number, id)
            })
        })
        .collect();
    let made: Vec<(usize, String)> = made
        .into_iter()
        .map(|it| it.join().expect("made"))
        .collect();
    for (number, id) in &made {
        assert_eq!(
            daemon.api().exec(id, "cat own").text(),
            format!("{number}\n")
        );
    }
    let guests: BTreeSet<i32> = made.iter().map(|(_, id)| daemon.guest_pid(id)).collect();
    assert_eq!((guests.len(), daemon.api().sessions().len()), (20, 20));
    let started = Instant::now();
    let deleted: Vec<_> = made
        .into_iter()
        .map(|(_, id)| {
            let api = daemon.api().clone();
            thread::spawn(move || api.remove(&id))
        })
        .collect();
    deleted
        .into_iter()
        .for_each(|it| it.join().expect("deleted"));
    assert!(started.elapsed() < DELETED_WITHIN);
    assert!(daemon.census().is_empty(), "{:#?}", daemon.census());
}

#[test]
fn if_match_refuses_what_was_decided_on_another_revision() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let revision = api.session(&id)["revision"].as_u64().expect("a revision");
    let path = format!("{SESSIONS}/{id}");
    let delete = |tag: &str| api.send("DELETE", &path, &[("if-match", tag)], &[]);
    assert_eq!(
        delete(&(revision + 1).to_string()).error(412),
        "revision_differs"
    );
    let _ = delete("x").error(400);
    assert_eq!(api.exec(&id, "true").exit_code, 0);
    assert_eq!(
        api.session(&id)["revision"],
        revision,
        "a command does not change it"
    );
    assert_eq!(delete(&revision.to_string()).status, 204);
    assert_eq!(delete("*").status, 204);
}

#[test]
fn c49_nothing_that_is_asked_for_wrongly_is_accepted() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let head = api.get("/v1/ledger/info").expect(200)["head"]["position"].clone();
    let long = format!(r#"{{"agent":"{}"}}"#, "n".repeat(300));
    let cases: [(&str, &str); 20] = [
        (r#"{"agent":"a","ttl_seconds":0}"#, "ttl_seconds"),
        (r#"{"agent":"a","ttl_seconds":-1}"#, "ttl_seconds"),
        (r#"{"agent":"a","ttl_seconds":1e18}"#, "ttl_seconds"),
        (
            r#"{"agent":"a","ttl_seconds":1000000000000000000}"#,
            "ttl_seconds",
        ),
        (r#"{"agent":"a","ttl_seconds":NaN}"#, "ttl_seconds"),
        (r#"{"agent":"a","ttl_seconds":"60"}"#, "ttl_seconds"),
        (r#"{"agent":"a","colour":"red"}"#, "colour"),
        (r#"{"agent":"a","workspace":{"pth":"/w"}}"#, "workspace.pth"),
        (
            r#"{"agent":"a","budget":{"max_tokens":5}}"#,
            "budget.max_tokens",
        ),
        (r#"{"agent":"a","agent":"b"}"#, "agent"),
        (&long, "agent"),
        (r#"{"agent":"../x"}"#, "agent"),
        (r#"{"agent":""}"#, "agent"),
        (r#"{"agent":7}"#, "agent"),
        ("{}", "agent"),
        (
            r#"{"agent":"a","workspace":{"path":"../x"}}"#,
            "workspace.path",
        ),
        (
            r#"{"agent":"a","workspace":{"path":"/w/../etc"}}"#,
            "workspace.path",
        ),
        (
            r#"{"agent":"a","workspace":{"git":"file:///etc"}}"#,
            "workspace.git",
        ),
        (
            r#"{"agent":"a","runtime":{"image":"../x"}}"#,
            "runtime.image",
        ),
        (
            r#"{"agent":"a","runtime":{"memory_mb":0}}"#,
            "runtime.memory_mb",
        ),
    ];
    for (body, field) in cases {
        let answer = api.send("POST", SESSIONS, &[], body.as_bytes());
        let _ = answer.error(400);
        assert_eq!(
            answer.json()["field"],
            field,
            "{body:.80}: {}",
            answer.json()
        );
    }
    for body in [
        "",
        "[]",
        "null",
        "{",
        "\u{feff}{}",
        "{\"agent\":\"a\"} trailing",
    ] {
        let _ = api.send("POST", SESSIONS, &[], body.as_bytes()).error(400);
    }
    assert_eq!(api.sessions(), Vec::<Value>::new());
    let info = api.get("/v1/ledger/info").expect(200);
    assert_eq!(
        info["head"]["position"], head,
        "what was never accepted is in no ledger"
    );
}

#[test]
fn c49_a_limit_that_is_not_enforced_is_not_accepted() {
    let daemon = shared();
    for (body, field) in [
        (
            r#"{"agent":"a","budget":{"max_workspace_bytes":5}}"#,
            "budget.max_workspace_bytes",
        ),
        (
            r#"{"agent":"a","workspace":{"mode":"overlay"}}"#,
            "workspace.mode",
        ),
    ] {
        let answer = daemon.api().send("POST", SESSIONS, &[], body.as_bytes());
        assert_eq!(answer.error(400), "not_enforceable", "{body}");
        assert_eq!(answer.json()["field"], field);
    }
}
