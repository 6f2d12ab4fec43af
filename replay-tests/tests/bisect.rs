//! The command that broke it is found, and the session is as it was.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn run(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

fn bisect(api: &Api, id: &str, body: &Value) -> Value {
    api.ask(id, "rewind/bisect", body).expect(200)
}

/// Everything about a session that a search could have touched.
fn seen(api: &Api, id: &str) -> String {
    let session = api.session(id);
    let disk = |session: &Value| (session["sandbox_id"].clone(), session["revision"].clone());
    format!("{} {:?}", api.ring_line(id), disk(&session))
}

#[test]
fn the_one_command_of_forty_is_found_and_the_session_is_as_it_was() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(
        api,
        &id,
        "echo 0 >steps; echo good >program; printf 'test:\\n\\t@grep -q good program || \
         { echo broken >>steps; false; }\\n' >Makefile",
    );
    // What runs is a part of each state, where the engine keeps memory.
    run(
        api,
        &id,
        "setsid sh -c 'n=0; while :; do n=$((n+1)); echo $n >/tmp/count; sleep 0.05; done' \
         >/dev/null 2>&1 </dev/null & echo $! >/tmp/loop",
    );
    api.checkpoint(&id, "start");
    api.rewind_on(&id, 5);
    for step in 1..=40 {
        match step {
            23 => run(api, &id, "sed -i s/good/bad/ program; echo 23 >>steps"),
            _ => run(api, &id, &format!("echo {step} >>steps")),
        };
    }
    let before = seen(api, &id);
    let kinds = api.kinds(&id).len();
    let found = bisect(api, &id, &json!({"test": "make test", "good": "start"}));
    let culprit = &found["culprit"];
    assert_eq!(
        culprit["command"], "sed -i s/good/bad/ program; echo 23 >>steps",
        "{found}"
    );
    assert_eq!(culprit["tag"], "start", "the ring has the last five only");
    let tested = found["tested"].as_array().expect("a list").len();
    assert!(tested <= 2 + 3 + 6, "{tested} states were looked at");
    assert_eq!(seen(api, &id), before);
    assert_eq!(
        api.kinds(&id).len(),
        kinds + 2,
        "its intent and its outcome"
    );
    assert_eq!(
        run(api, &id, "tail -1 steps; grep -c broken steps || true"),
        "40\n0\n"
    );
    let count = || run(api, &id, "kill -0 $(cat /tmp/loop) && cat /tmp/count");
    let counted = count();
    eventually("what ran runs on", || (count() != counted).then_some(()));
    let event = api.only_event(&id, "rewind.bisect");
    assert_eq!(event["data"]["culprit"]["command"], culprit["command"]);
    api.remove(&id);
}

#[test]
fn the_ring_alone_is_enough_where_it_reaches() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    api.rewind_on(&id, 10);
    run(api, &id, "echo good >program");
    for step in 1..=6 {
        let command = if step == 4 {
            "echo bad >program"
        } else {
            "true"
        };
        run(api, &id, command);
    }
    let found = bisect(
        api,
        &id,
        &json!({"test": "grep -q good program", "good": "rw-2"}),
    );
    assert_eq!(found["culprit"]["command"], "echo bad >program", "{found}");
    assert_eq!(found["last_good"], "rw-5");
    assert_eq!(found["first_bad"], "rw-6");
    for (body, status, code) in [
        (json!({"test": "true", "good": "rw-2"}), 409, "ends_agree"),
        (json!({"test": "false", "good": "rw-2"}), 409, "ends_agree"),
        (
            json!({"test": "true", "good": "nothing"}),
            404,
            "tag_not_found",
        ),
        (
            json!({"test": "true", "good": "rw-5", "bad": "rw-2"}),
            400,
            "invalid_field",
        ),
        (json!({"test": " "}), 400, "invalid_field"),
        (json!({}), 400, "missing_field"),
    ] {
        assert_eq!(
            api.ask(&id, "rewind/bisect", &body).error(status),
            code,
            "{body}"
        );
    }
    run(api, &id, "grep -q bad program");
    api.remove(&id);
}

#[test]
fn a_search_that_a_crash_interrupts_leaves_nothing() {
    for point in ["bisect.intent", "bisect.revived", "bisect.found"] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let id = api.create();
        api.rewind_on(&id, 5);
        run(api, &id, "echo good >program");
        run(api, &id, "echo bad >program");
        let ring = api.ring_line(&id);
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let path = format!("{}/{id}/rewind/bisect", fluxvm_replay_tests::SESSIONS);
        let body = json!({"test": "grep -q good program", "good": "rw-2"}).to_string();
        let answer = daemon.api().try_send("POST", &path, &[], body.as_bytes());
        assert!(answer.is_err(), "{point}: {answer:?}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let record = api.session(&id);
        assert_eq!(record["in_flight"], json!([]), "{point}: {record}");
        assert_eq!(api.ring_line(&id), ring, "{point}");
        let sandboxes = std::fs::read_dir(state.root().join("sandboxes")).expect("a folder");
        let live = sandboxes.filter_map(Result::ok);
        let live = live
            .filter(|it| !it.file_name().to_string_lossy().starts_with('.'))
            .count();
        assert_eq!(live, 1, "{point}: the sandbox of the session");
        run(api, &id, "grep -q bad program");
        api.remove(&id);
        assert_eq!(daemon.terminate().code, Some(0));
    }
}
