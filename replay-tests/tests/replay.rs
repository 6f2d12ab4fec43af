//! A replay runs what was recorded again, in another session, and says step by step what differs.

use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::shared;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

fn replay(api: &Api, source: &str, body: &Value) -> Value {
    api.post(&format!("{SESSIONS}/{source}/replay"), body)
        .expect(200)
}

fn of_steps<'a>(answer: &'a Value, key: &str) -> Vec<&'a Value> {
    answer["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| &step[key])
        .collect()
}

fn record(api: &Api, commands: &[&str]) -> String {
    let id = api.create();
    for command in commands {
        let _ = api.exec(&id, command);
    }
    id
}

#[test]
fn the_same_commands_end_the_same_way_and_other_output_is_flagged() {
    let daemon = shared();
    let api = daemon.api();
    let commands = [
        "echo a >f",
        "cat f",
        "cat /proc/sys/kernel/random/uuid",
        "echo e >&2; exit 3",
    ];
    let source = record(api, &commands);
    let target = api.create();
    let keep_going = json!({"target": target, "stop_on_failure": false});
    let answer = replay(api, &source, &keep_going);
    assert_eq!(of_steps(&answer, "command"), commands);
    assert_eq!(of_steps(&answer, "exit_code"), [0, 0, 0, 3]);
    assert_eq!(of_steps(&answer, "recorded_exit_code"), [0, 0, 0, 3]);
    assert_eq!(of_steps(&answer, "same_exit_code"), [true; 4]);
    assert_eq!(of_steps(&answer, "same_stdout"), [true, true, false, true]);
    assert_eq!(of_steps(&answer, "same_stderr"), [true; 4]);
    assert_eq!(
        (&answer["stopped_at"], &answer["skipped"]),
        (&Value::Null, &json!([]))
    );

    let entry = api.only_event(&target, "replay");
    assert_eq!(answer["seq"], entry["seq"]);
    assert_eq!(entry["data"]["source"], source.as_str());
    assert_eq!(entry["data"]["ran"], 4);
    assert_eq!(entry["data"]["same_exit_code"], 4);
    assert_eq!(entry["data"]["same_output"], 3);
    let outcomes = of_steps(&answer, "target_seq");
    let events = api.events(&target);
    let recorded: Vec<&Value> = events
        .iter()
        .filter(|event| event["kind"] == "exec")
        .map(|event| &event["seq"])
        .collect();
    assert_eq!(outcomes, recorded, "every step is the target's own exec");
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn it_stops_at_the_first_failure_unless_told_otherwise() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["true", "exit 4", "echo after"]);
    let target = api.create();
    let answer = replay(api, &source, &json!({"target": target}));
    assert_eq!(
        of_steps(&answer, "exit_code"),
        [&json!(0), &json!(4), &Value::Null]
    );
    assert_eq!(answer["stopped_at"], answer["steps"][1]["seq"]);
    assert!(
        answer["stopped_because"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{answer}"
    );

    let rest = answer["stopped_at"].as_u64().expect("where");
    let since = api
        .events(&source)
        .into_iter()
        .find(|event| event["seq"] == rest)
        .expect("the event at which it stopped")["at"]
        .clone();
    let goes_on = replay(api, &source, &json!({"target": target, "since": since}));
    let commands = of_steps(&goes_on, "command");
    assert_eq!(
        commands.last(),
        Some(&&json!("echo after")),
        "since goes on from there"
    );
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn a_dry_run_lists_and_runs_nothing() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["echo one", "exit 2"]);
    let target = api.create();
    let (before, kinds) = (api.kinds(&source), api.kinds(&target));
    for body in [
        json!({"dry_run": true}),
        json!({"dry_run": true, "target": target}),
    ] {
        let answer = replay(api, &source, &body);
        assert_eq!(of_steps(&answer, "command"), ["echo one", "exit 2"]);
        assert_eq!(of_steps(&answer, "exit_code"), [&Value::Null; 2]);
        assert_eq!(
            (&answer["seq"], &answer["dry_run"]),
            (&Value::Null, &json!(true))
        );
    }
    assert_eq!((api.kinds(&source), api.kinds(&target)), (before, kinds));
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn what_has_no_outcome_is_skipped_with_its_reason() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["echo one"]);
    let mut stream = api.stream(&source, "", None);
    let running = thread::spawn({
        let (api, source) = (api.clone(), source.clone());
        move || {
            api.try_exec(&source, &json!({"command": "sleep 300"}))
                .error(409)
        }
    });
    stream.until("exec");
    stream.until("exec.started");
    kill(Pid::from_raw(daemon.guest_pid(&source)), Signal::SIGKILL).expect("its first process");
    assert_eq!(running.join().expect("answered"), "sandbox_gone");
    let target = api.create();
    let answer = replay(api, &source, &json!({"target": target}));
    assert_eq!(
        of_steps(&answer, "command"),
        ["echo one"],
        "a session that is gone can be replayed"
    );
    let skipped = &answer["skipped"][0];
    assert_eq!(skipped["kind"], "exec.failed", "{answer}");
    assert!(
        skipped["reason"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{skipped}"
    );
    api.remove(&source);
    api.remove(&target);
}

#[test]
fn one_replay_runs_at_most_five_hundred_commands() {
    const LIMIT: usize = 500;
    let daemon = shared();
    let api = daemon.api();
    let source = api.create();
    let mut middle = Value::Null;
    for number in 0..=LIMIT {
        let answer = api.exec(&source, ":");
        if number == LIMIT / 2 {
            let events = api.events(&source);
            middle = events
                .iter()
                .find(|event| event["seq"] == answer.seq)
                .expect("it")["at"]
                .clone();
        }
    }
    let path = format!("{SESSIONS}/{source}/replay");
    let refused = api.post(&path, &json!({"dry_run": true}));
    assert_eq!(refused.error(400), "invalid_field");
    assert!(
        refused.json()["error"]
            .as_str()
            .expect("words")
            .contains("501"),
        "{}",
        refused.json()
    );
    let narrowed = replay(api, &source, &json!({"dry_run": true, "since": middle}));
    let steps = narrowed["steps"].as_array().expect("steps").len();
    assert!((LIMIT / 2 - 1..=LIMIT / 2 + 1).contains(&steps), "{steps}");
    api.remove(&source);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["true"]);
    let path = format!("{SESSIONS}/{source}/replay");
    let field = |body: Value| {
        let answer = api.post(&path, &body);
        let _ = answer.error(400);
        answer.json()["field"].clone()
    };
    assert_eq!(field(json!({})), "target");
    assert_eq!(field(json!({"target": source})), "target");
    assert_eq!(field(json!({"target": "x"})), "target");
    assert_eq!(
        field(json!({"dry_run": true, "keep_going": true})),
        "keep_going"
    );
    let nobody = json!({"target": "00000000-0000-4000-8000-000000000000"});
    assert_eq!(api.post(&path, &nobody).error(404), "session_not_found");
    let deleted = api.create();
    api.remove(&deleted);
    assert_eq!(
        api.post(&path, &json!({"target": deleted})).error(409),
        "session_not_running"
    );
    api.remove(&source);
}

#[test]
fn a_replay_starts_from_a_checkpoint_in_a_child_of_it() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["echo 1 >f"]);
    api.checkpoint(&source, "cp");
    for command in ["echo 2 >>f", "cat f"] {
        let _ = api.exec(&source, command);
    }
    let planned = replay(api, &source, &json!({"checkpoint": "cp", "dry_run": true}));
    assert_eq!(of_steps(&planned, "command"), ["echo 2 >>f", "cat f"]);
    assert_eq!(planned["target"], Value::Null);
    let answer = replay(api, &source, &json!({"checkpoint": "cp"}));
    assert_eq!(of_steps(&answer, "same"), [true; 2], "{answer}");
    let child = answer["target"].as_str().expect("a child");
    assert_eq!(api.session(child)["origin"]["tag"], "cp");
    assert_eq!(api.exec(child, "cat f").text(), "1\n2\n");
    let missing = api.post(
        &format!("{SESSIONS}/{source}/replay"),
        &json!({"checkpoint": "none", "dry_run": true}),
    );
    assert_eq!(missing.error(404), "tag_not_found");
    api.remove(child);
    api.remove(&source);
}

#[test]
fn what_was_undone_is_left_out_and_named() {
    let daemon = shared();
    let api = daemon.api();
    let source = record(api, &["echo 1 >f"]);
    api.checkpoint(&source, "cp");
    let _ = api.exec(&source, "rm f");
    let restored = api.restore(&source, "cp");
    let _ = api.exec(&source, "echo 2 >>f");
    let target = api.create();
    let answer = replay(api, &source, &json!({"target": target}));
    assert_eq!(of_steps(&answer, "command"), ["echo 1 >f", "echo 2 >>f"]);
    let reason = answer["skipped"][0]["reason"].as_str().expect("a reason");
    let by = format!("it was undone: event {} went back past it", restored["seq"]);
    assert_eq!(reason, by);
    assert_eq!(api.exec(&target, "cat f").text(), "1\n2\n");
    api.remove(&target);
    api.remove(&source);
}
