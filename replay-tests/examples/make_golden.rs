//! Makes a golden ledger for a NEW format version: lets real daemons live a life with every kind of
//! event in it, and writes the export and the digests that `tests/golden_ledger.rs` compares with
//! for ever.
//!
//! Refuses to write over a file that exists. Needs the programs of `make build`.

use std::path::Path;
use std::thread;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::digests;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::verified;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::json;

fn main() {
    let number: u32 = std::env::args()
        .nth(1)
        .and_then(|word| word.parse().ok())
        .expect("the number of the new format version");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let ledger = folder.join(format!("ledger-{number}.jsonl"));
    assert!(
        !ledger.exists(),
        "{} is golden: it is never made again",
        ledger.display()
    );

    let state = State::new();
    before_the_crash(&state);
    let daemon = Start::crashing_at(&state, "create.sandbox").ready();
    let keyed = [("idempotency-key", "interrupted")];
    assert!(
        daemon
            .api()
            .try_send("POST", SESSIONS, &keyed, br#"{"agent":"f"}"#)
            .is_err()
    );
    let _ = daemon.ended();
    let daemon = Daemon::start(&state);
    for session in daemon.api().sessions() {
        daemon.api().remove(session["id"].as_str().expect("id"));
    }
    let export = daemon.api().export_ledger();
    verified(&export);
    let events = events_of(&export);
    std::fs::write(
        folder.join(format!("ledger-{number}.digests")),
        digests(&events),
    )
    .expect("written");
    std::fs::write(&ledger, export).expect("written");
    println!("{}: {} events", ledger.display(), events.len());
}

fn before_the_crash(state: &State) {
    let daemon = Daemon::start(state);
    let api = daemon.api();
    let keyed = [("idempotency-key", "once")];
    let made = api
        .send("POST", SESSIONS, &keyed, br#"{"agent":"codex"}"#)
        .expect(201);
    let first = made["id"].as_str().expect("id").to_owned();
    let _ = api
        .send("POST", SESSIONS, &keyed, br#"{"agent":"codex"}"#)
        .expect(201);
    let _ = api.exec(&first, "echo hello; echo oh >&2; exit 3");
    let _ = api.exec_within(&first, 0.2, "sleep 300 & wait");
    let _ = api.exec(&first, "sleep 300 & printf '\\377\\000'");
    let body = json!({"agent": "digest-only", "record": "digest", "ttl_seconds": 3600,
        "workspace": {"path": "/w", "git": "https://example.org/r"},
        "policy": {"preset": "offline"}});
    let second = api.create_with(&body);
    let replay = json!({"target": second, "stop_on_failure": false});
    let _ = api
        .post(&format!("{SESSIONS}/{first}/replay"), &replay)
        .expect(200);
    let image = br#"{"agent":"e","runtime":{"image":"none"}}"#;
    let _ = api
        .send("POST", SESSIONS, &[("idempotency-key", "released")], image)
        .error(400);
    let short = api.create_with(&json!({"agent": "short", "ttl_seconds": 1}));
    eventually("it expires", || {
        (api.session(&short)["status"] == "expired").then_some(())
    });
    let gone = api.create();
    let mut stream = api.stream(&gone, "", None);
    let running = thread::spawn({
        let (api, gone) = (api.clone(), gone.clone());
        move || {
            api.try_exec(&gone, &json!({"command": "sleep 300"}))
                .error(409)
        }
    });
    stream.until("exec.started");
    kill(Pid::from_raw(daemon.guest_pid(&gone)), Signal::SIGKILL).expect("its first process");
    stream.until("sandbox.gone");
    let _ = running.join().expect("answered");
    interrupted_replay(&daemon, &first, &second);
    daemon.kill9();
    let daemon = Daemon::start(state);
    assert_eq!(daemon.api().session(&second)["status"], "running");
    assert_eq!(daemon.terminate().code, Some(0));
}

/// Leaves a replay under way, whose second command waits: the next daemon cannot take it up and
/// says so.
fn interrupted_replay(daemon: &Daemon, first: &str, second: &str) {
    let mut stream = daemon.api().stream(second, "", None);
    stream.until("replay");
    let path = format!("{SESSIONS}/{first}/replay");
    let body = json!({"target": second, "stop_on_failure": false, "timeout_seconds": 3600});
    let (api, body) = (daemon.api().clone(), body.to_string());
    thread::spawn(move || api.try_send("POST", &path, &[], body.as_bytes()).is_err());
    stream.until("replay.started");
    stream.until("exec");
    stream.until("exec.started");
}
