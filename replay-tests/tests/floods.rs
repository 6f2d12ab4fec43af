//! The daemon's memory stays bounded whatever a guest prints, and every byte that is not kept is
//! counted.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::status_kib;
use serde_json::Value;

/// Bytes that are kept of one stream of one command.
const KEPT_BYTES: u64 = 16 * 1024 * 1024;

/// Runs what writes without end, and answers how much it wrote as the ledger has it.
fn flood(api: &Api, id: &str, seconds: f64, command: &str) -> (Value, u64) {
    let answer = api.exec_within(id, seconds, command);
    let events = api.events(id);
    let event = events
        .iter()
        .find(|event| event["seq"] == answer.seq)
        .expect("its event");
    let written = event["data"]["stdout"]["bytes"].as_u64().expect("a number");
    let kept = answer.stdout.len() as u64;
    let dropped = answer.json["stdout_dropped_bytes"]
        .as_u64()
        .unwrap_or_default();
    assert_eq!(kept + dropped, written, "every byte is kept or counted");
    assert_eq!(
        event["data"]["gap_bytes"],
        Value::Null,
        "a reader that keeps up misses nothing"
    );
    assert_eq!(answer.json["output_truncated"], true);
    (answer.json, written)
}

#[test]
fn a_flood_of_output_is_cut_and_counted_and_does_not_fill_the_daemon() {
    const WRITTEN: u64 = 100 * 1024 * 1024;
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let command = format!("yes | head -c {WRITTEN}");
    let (answer, written) = flood(api, &id, 60.0, &command);
    assert_eq!(written, WRITTEN);
    assert_eq!(answer["stdout_dropped_bytes"], WRITTEN - KEPT_BYTES);
    let line = format!("head -c {WRITTEN} /dev/zero | tr '\\0' x >&2");
    let one_line = api.exec_within(&id, 60.0, &line);
    assert_eq!(one_line.json["stderr_dropped_bytes"], WRITTEN - KEPT_BYTES);
    assert!(
        one_line.stderr.len() as u64 == KEPT_BYTES && one_line.stderr.iter().all(|b| *b == b'x')
    );
    let peak_kib = status_kib(daemon.pid(), "VmHWM");
    println!("peak memory of the daemon: {peak_kib} KiB");
    assert!(peak_kib < 192 * 1024, "{peak_kib} KiB at its peak");
}

#[test]
fn what_writes_for_ever_is_ended_at_its_limit() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let (answer, written) = flood(daemon.api(), &id, 1.5, "yes");
    assert_eq!(answer["timed_out"], true);
    assert!(written > KEPT_BYTES, "{written}");
    assert_eq!(daemon.api().exec(&id, "echo ok").text(), "ok\n");
}
