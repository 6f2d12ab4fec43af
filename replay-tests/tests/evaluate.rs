//! Candidates are tried side by side, scored, and the children that are of no use are gone again.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::is_tidy;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn run(api: &Api, id: &str, command: &str) -> String {
    let ran = api.exec(id, command);
    assert_eq!(ran.exit_code, 0, "{command}: {}", ran.json);
    ran.text().to_owned()
}

fn scores(answer: &Value) -> Vec<u64> {
    let items = answer["items"].as_array().expect("a list").iter();
    items.filter_map(|item| item["score"].as_u64()).collect()
}

fn status(api: &Api, id: &str) -> String {
    let record = api.session(id);
    record["status"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_quickest_candidate_that_passes_its_test_wins_and_can_be_promoted() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    run(api, &id, "echo broken >f");
    let body = json!({
        "candidates": [
            "echo slow; sleep 1; echo fixed >f",
            "echo fixed >f",
            "echo worse >f",
            "exit 3",
        ],
        "test": "cat f; grep -q fixed f",
    });
    let tried = api.ask(&id, "evaluate", &body).expect(200);
    assert_eq!(scores(&tried), [100, 100, 10, 0], "{tried}");
    let items = &tried["items"];
    assert_eq!(tried["winner"], items[1]["child"]);
    assert_eq!(items[0]["output_tail"], "slow\n");
    assert_eq!(items[2]["test_output_tail"], "worse\n");
    assert_eq!(
        (&items[2]["exit_code"], &items[2]["test_exit_code"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(items[3]["test_exit_code"], Value::Null);
    for (index, expected) in ["deleted", "running", "deleted", "deleted"]
        .iter()
        .enumerate()
    {
        let child = items[index]["child"].as_str().expect("an id");
        assert_eq!(&status(api, child), expected, "candidate {index}");
        assert_eq!(items[index]["kept"], *expected == "running");
    }
    let event = api.only_event(&id, "evaluate");
    assert_eq!(event["data"]["winner"], tried["winner"]);
    assert_eq!(
        event["data"]["results"][2]["score"], 10,
        "scores are events"
    );
    assert_eq!(
        run(api, &id, "cat f"),
        "broken\n",
        "the parent is as it was"
    );
    let winner = tried["winner"].as_str().expect("a winner").to_owned();
    let _ = api.ask(&winner, "promote", &json!({})).expect(200);
    assert_eq!(run(api, &id, "cat f"), "fixed\n");
    let none = json!({"candidates": ["true"], "test": "false"});
    let none = api.ask(&id, "evaluate", &none).expect(200);
    assert_eq!((&none["winner"], scores(&none)), (&Value::Null, vec![10]));
    api.remove(&winner);
    api.remove(&id);
}

#[test]
fn a_rollout_is_one_command_in_several_children_none_of_which_stays() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let body = json!({"count": 3, "command": "hostname"});
    let tried = api.ask(&id, "rollout", &body).expect(200);
    assert_eq!(scores(&tried), [100, 100, 100]);
    assert_eq!(tried["winner"], Value::Null);
    let items = tried["items"].as_array().expect("a list").iter();
    let names: std::collections::BTreeSet<String> = items
        .map(|item| {
            let child = item["child"].as_str().expect("an id");
            assert_eq!(status(api, child), "deleted");
            item["output_tail"].to_string()
        })
        .collect();
    assert_eq!(names.len(), 3, "each is a machine of its own: {names:?}");
    assert_eq!(
        api.only_event(&id, "rollout")["data"]["results"][0]["score"],
        100
    );
    for (verb, body, status, code) in [
        (
            "rollout",
            json!({"count": 0, "command": "true"}),
            400,
            "invalid_field",
        ),
        (
            "rollout",
            json!({"count": 33, "command": "true"}),
            400,
            "invalid_field",
        ),
        (
            "rollout",
            json!({"count": 1, "command": " "}),
            400,
            "invalid_field",
        ),
        ("evaluate", json!({"candidates": []}), 400, "invalid_field"),
        (
            "evaluate",
            json!({"candidates": ["true"], "test": ""}),
            400,
            "invalid_field",
        ),
        ("evaluate", json!({}), 400, "missing_field"),
    ] {
        assert_eq!(api.ask(&id, verb, &body).error(status), code, "{body}");
    }
    api.remove(&id);
}

#[test]
fn an_evaluation_that_a_crash_interrupts_leaves_no_child() {
    const KEY: [(&str, &str); 1] = [("idempotency-key", "the-only-one")];
    for (point, done) in [
        ("evaluate.intent", false),
        ("fork.intent", false),
        ("fork.snapshot", false),
        ("fork.children", false),
        ("fork.outcome", false),
        ("evaluate.forked", false),
        ("exec.intent", false),
        ("exec.ended", false),
        ("exec.outcome", false),
        ("delete.intent", false),
        ("delete.removed", false),
        ("delete.outcome", false),
        ("evaluate.judged", false),
        ("evaluate.outcome", true),
    ] {
        let state = State::new();
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let id = api.create();
        run(api, &id, "echo 1 >f");
        assert_eq!(daemon.terminate().code, Some(0));
        let daemon = Start::crashing_at(&state, point).ready();
        let path = format!("{SESSIONS}/{id}/evaluate");
        let body = json!({"candidates": ["true", "false"], "test": "true"});
        let sent = body.to_string();
        let answer = daemon.api().try_send("POST", &path, &KEY, sent.as_bytes());
        assert!(answer.is_err(), "{point}: {answer:?}");
        assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
        let daemon = Daemon::start(&state);
        let api = daemon.api();
        let record = api.session(&id);
        assert_eq!(record["in_flight"], json!([]), "{point}: {record}");
        let children = record["children"].as_array().cloned().unwrap_or_default();
        let children = children.iter().filter_map(Value::as_str);
        let there = children
            .filter(|child| status(api, child) == "running")
            .count();
        assert_eq!(there, usize::from(done), "{point}: only a winner stays");
        is_tidy(api, &state, point);
        let retried = api.ask_with(&id, "evaluate", &KEY, &body).expect(200);
        assert_eq!(scores(&retried), [100, 0], "{point}");
        assert_eq!(
            api.kinds(&id)
                .iter()
                .filter(|kind| *kind == "evaluate")
                .count(),
            1
        );
        let winner = retried["winner"].as_str().expect("a winner").to_owned();
        verified(&api.export_ledger());
        api.remove(&winner);
        api.remove(&id);
        assert_eq!(daemon.terminate().code, Some(0));
    }
}
