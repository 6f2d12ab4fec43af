//! A daemon that is killed while a command runs loses nothing of it: the session and the command go
//! on, and whoever listens goes on where it was.

use std::thread;
use std::thread::JoinHandle;

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Frame;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::processes_with;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// Waits, between its first and its last word, for whoever opens the other end of the pipe. The
/// marker shows from the host that it runs.
fn waiting_command(marker: &str) -> String {
    format!(": {marker} ; echo begin; read word <go; echo $word; exit 5")
}

/// The key under which the command may be asked for again.
const KEY: [(&str, &str); 1] = [("idempotency-key", "the-only-one")];

/// Asks for the command once more, as a client does whose connection broke.
fn retry(daemon: &Daemon, id: &str, command: &str) -> Answer {
    let body = json!({"command": command}).to_string();
    let path = format!("{SESSIONS}/{id}/exec");
    daemon.api().send("POST", &path, &KEY, body.as_bytes())
}

/// Starts the command in a thread of its own, which answers whether its connection broke, and waits
/// until the command runs.
fn start_waiting(daemon: &Daemon, id: &str) -> (String, JoinHandle<bool>) {
    let marker = marker();
    let command = waiting_command(&marker);
    let body = json!({"command": command}).to_string();
    let (api, path) = (daemon.api().clone(), format!("{SESSIONS}/{id}/exec"));
    let caller = thread::spawn(move || api.try_send("POST", &path, &KEY, body.as_bytes()).is_err());
    eventually("the command runs", || {
        (!processes_with(&marker).is_empty()).then_some(())
    });
    (command, caller)
}

/// The outcome of a command that was taken up again, with everything that it wrote.
fn assert_whole(outcome: &Value, output: &[u8]) {
    let data = &outcome["data"];
    assert_eq!(
        (&data["exit_code"], &data["readopted"]),
        (&json!(5), &json!(true)),
        "{outcome}"
    );
    assert_eq!(data["stdout"]["bytes"], output.len(), "{outcome}");
    let digest = blake3::hash(output).to_hex().to_string();
    assert_eq!(
        data["stdout"]["blake3"],
        digest.as_str(),
        "not a byte is missing"
    );
    assert_eq!(data["gap_bytes"], Value::Null, "{outcome}");
}

#[test]
fn a_command_that_runs_over_a_kill_of_the_daemon_has_its_outcome() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(daemon.api().exec(&id, "mkfifo go").exit_code, 0);
    let mut stream = daemon.api().stream(&id, "", None);
    let mut seen = stream.until("exec");
    let (command, caller) = start_waiting(&daemon, &id);
    seen.extend(stream.until("exec.started"));
    daemon.kill9();
    seen.extend(stream.rest());
    assert!(caller.join().expect("the caller"), "its connection broke");

    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let last = seen.last().and_then(|frame| frame.id);
    let mut stream = api.stream(&id, "", last);
    assert_eq!(api.session(&id)["status"], "running");
    assert_eq!(api.session(&id)["in_flight"][0]["op"], "exec");
    assert_eq!(
        retry(&daemon, &id, &command).error(409),
        "idempotency_key_running"
    );
    assert_eq!(api.exec(&id, "echo done >go").exit_code, 0);

    let outcome = loop {
        let frame = stream.next_frame();
        seen.push(frame.clone());
        if frame.kind() == "exec" && frame.data["data"]["command"] == command.as_str() {
            break frame.data;
        }
    };
    assert_whole(&outcome, b"begin\ndone\n");
    let retried = retry(&daemon, &id, &command).expect(200);
    assert_eq!(
        (&retried["seq"], &retried["stdout"], &retried["exit_code"]),
        (&outcome["seq"], &json!("begin\ndone\n"), &json!(5)),
        "a retry gets what was done"
    );

    // The command that released it may have its outcome still to come.
    api.remove(&id);
    let rest = stream.rest().into_iter();
    seen.extend(rest.filter(|frame| frame.event == "ledger"));
    let streamed: Vec<u64> = seen.iter().map(Frame::seq).collect();
    let recorded: Vec<u64> = api
        .events(&id)
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect();
    assert_eq!(streamed, recorded, "no gap and no repeat across the kill");
    verified(&api.export_ledger());
    drop(daemon);
    assert!(open_offline(&state.root()).len() >= recorded.len());
}

#[test]
fn a_command_that_ended_while_no_daemon_ran_has_its_outcome_too() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(daemon.api().exec(&id, "mkfifo go").exit_code, 0);
    let mut stream = daemon.api().stream(&id, "", None);
    stream.until("exec");
    let (_, caller) = start_waiting(&daemon, &id);
    let guest = daemon.guest_pid(&id);
    let pipe = format!("/proc/{guest}/root/workspace/go");
    daemon.kill9();
    assert!(caller.join().expect("the caller"));
    // Opening the pipe to write waits for its reader; then the command ends, with nobody there to
    // see it.
    std::fs::write(&pipe, "alone\n").expect("the command reads");

    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let mut stream = api.stream(&id, "", None);
    stream.until("exec");
    let outcome = stream.until("exec").pop().expect("its outcome").data;
    assert_eq!(outcome["data"]["exit_code"], 5, "{outcome}");
    assert_eq!(outcome["data"]["stdout"]["bytes"], 12, "{outcome}");
    assert_eq!(outcome["data"]["readopted"], true, "{outcome}");
    assert_eq!(api.session(&id)["in_flight"], json!([]));
}

#[test]
fn an_ordinary_end_of_the_daemon_leaves_sandboxes_running() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(
        daemon
            .api()
            .exec(&id, "echo kept >file; sleep 300 & echo $!")
            .exit_code,
        0
    );
    let before = daemon.guest_pid(&id);
    assert_eq!(daemon.terminate().code, Some(0));

    let daemon = Daemon::start(&state);
    assert_eq!(daemon.guest_pid(&id), before, "the same sandbox");
    assert_eq!(daemon.api().exec(&id, "cat file").text(), "kept\n");
    let export = daemon.api().export_ledger();
    let kinds: Vec<String> = fluxvm_replay_tests::events_of(&export)
        .iter()
        .filter(|event| event.header.stream.as_str() == "host")
        .map(|event| event.header.kind.to_string())
        .collect();
    let twice = ["host.started", "host.reconciled"];
    assert_eq!(
        kinds,
        [twice[0], twice[1], "host.stopped", twice[0], twice[1]]
    );
}

#[test]
fn a_command_that_runs_over_an_ordinary_end_of_the_daemon_has_its_outcome() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(daemon.api().exec(&id, "mkfifo go").exit_code, 0);
    let (command, caller) = start_waiting(&daemon, &id);
    assert_eq!(daemon.terminate().code, Some(0));
    // Whether it was told or cut off, it was not answered.
    let _ = caller.join().expect("the caller");

    let daemon = Daemon::start(&state);
    assert_eq!(daemon.api().session(&id)["in_flight"][0]["op"], "exec");
    assert_eq!(daemon.api().exec(&id, "echo later >go").exit_code, 0);
    let retried = eventually("the command ends", || {
        let answer = retry(&daemon, &id, &command);
        (answer.status != 409).then_some(answer)
    });
    assert_eq!(retried.expect(200)["stdout"], "begin\nlater\n");
}
