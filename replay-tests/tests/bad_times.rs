//! When things go wrong around it, the daemon says so, in an answer with a code and in the ledger,
//! and never hangs, panics or leaves a session half made.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Program;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::program;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

#[test]
fn a_guest_that_dies_is_a_session_that_is_gone() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let mut stream = api.stream(&id, "", None);
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || api.try_exec(&id, &json!({"command": "sleep 300"}))
    });
    stream.until("exec.started");
    kill(Pid::from_raw(daemon.guest_pid(&id)), Signal::SIGKILL).expect("its first process");
    let frames = stream.until("sandbox.gone");
    assert_eq!(
        running.join().expect("an answer").error(409),
        "sandbox_gone"
    );
    let record = api.session(&id);
    assert_eq!(record["status"], "gone", "{record}");
    assert!(
        record["status_reason"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{record}"
    );
    let gone = frames.last().expect("the event");
    assert_eq!(gone.data["data"]["sandbox_id"], record["sandbox_id"]);
    let refused = api.try_exec(&id, &json!({"command": "true"}));
    assert_eq!(refused.error(409), "session_not_running");
    let failed = api.only_event(&id, "exec.failed");
    assert_eq!(failed["data"]["code"], "sandbox_gone", "{failed}");
    let other = api.create();
    assert_eq!(
        api.exec(&other, "echo ok").text(),
        "ok\n",
        "nobody else is touched"
    );
    assert_eq!(api.sessions().len(), 2, "it is shown until it is deleted");
}

#[test]
fn a_guest_that_died_while_no_daemon_ran_is_found_gone() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let guest = daemon.guest_pid(&id);
    daemon.kill9();
    kill(Pid::from_raw(guest), Signal::SIGKILL).expect("its first process");
    eventually("it has ended", || {
        (!Path::new(&format!("/proc/{guest}/root/")).exists()).then_some(())
    });
    let daemon = Daemon::start(&state);
    assert_eq!(daemon.api().session(&id)["status"], "gone");
    let _ = daemon.api().only_event(&id, "sandbox.gone");
}

/// Asks for a session that cannot be made, and looks at what that leaves.
fn cannot_be_made(daemon: &Daemon, body: &Value, status: u16) {
    let api = daemon.api();
    let before = daemon.census();
    let answer = api.post(SESSIONS, body);
    assert_eq!(
        answer.error(status),
        "sandbox_create_failed",
        "{}",
        answer.json()
    );
    assert_eq!(daemon.census(), before, "nothing of it is left");
    let sessions = api.sessions();
    let made = sessions.last().expect("the attempt is listed");
    assert_eq!(
        (&made["status"], &made["in_flight"]),
        (&json!("failed"), &json!([])),
        "{made}"
    );
    let failed = api.only_event(made["id"].as_str().expect("id"), "session.create.failed");
    assert!(
        failed["data"]["reason"]
            .as_str()
            .is_some_and(|why| !why.is_empty()),
        "{failed}"
    );
}

#[test]
fn an_image_that_does_not_exist_is_the_callers_mistake() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let body = json!({"agent": "a", "runtime": {"image": "no-such-image"}});
    cannot_be_made(&daemon, &body, 400);
}

#[test]
fn a_folder_of_sandboxes_that_cannot_be_written_is_the_hosts() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (folder, aside) = (
        state.root().join("sandboxes"),
        state.beside("sandboxes-aside"),
    );
    fs::rename(&folder, &aside).expect("moved");
    fs::write(&folder, "").expect("a file in its place");
    cannot_be_made(&daemon, &json!({"agent": "a"}), 503);
    fs::remove_file(&folder).expect("removed");
    fs::rename(&aside, &folder).expect("moved back");
    let id = daemon.api().create();
    assert_eq!(
        daemon.api().exec(&id, "echo ok").text(),
        "ok\n",
        "it recovers by itself"
    );
}

#[test]
fn a_launcher_that_fails_is_the_hosts() {
    let state = State::new();
    let launcher = state.beside("launcher");
    let path = launcher.to_str().expect("a path");
    fs::copy(program(Program::Launcher), &launcher).expect("a launcher");
    let daemon = Start::new(&state).launcher(path).ready();
    fs::remove_file(&launcher).expect("removed");
    cannot_be_made(&daemon, &json!({"agent": "a"}), 503);
    fs::copy("/bin/false", &launcher).expect("one that fails");
    cannot_be_made(&daemon, &json!({"agent": "a"}), 503);
}

#[test]
fn a_host_that_cannot_make_sandboxes_at_all_is_said_at_the_start() {
    let state = State::new();
    let (ended, said) = Start::new(&state).launcher("/bin/false").refused();
    assert_eq!(ended.code, Some(1), "{said}");
    assert!(said.contains("sandboxes cannot be made"), "{said}");
}

#[test]
fn a_caller_that_goes_away_does_not_end_its_command() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    assert_eq!(api.exec(&id, "mkfifo go").exit_code, 0);
    let mut stream = api.stream(&id, "", None);
    stream.until("exec");
    let host = api.url().strip_prefix("http://").expect("an address");
    let mut caller = TcpStream::connect(host).expect("a connection");
    let body = r#"{"command":"read word <go; echo $word"}"#;
    let token = api.token().expect("a token");
    write!(
        caller,
        "POST {SESSIONS}/{id}/exec HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("sent");
    stream.until("exec.started");
    drop(caller);
    assert_eq!(api.exec(&id, "echo on >go").exit_code, 0);
    let outcome = loop {
        let frame = stream.next_frame();
        if frame.data["data"]["command"] == "read word <go; echo $word" {
            break frame;
        }
    };
    assert_eq!(
        (outcome.kind(), &outcome.data["data"]["exit_code"]),
        ("exec", &json!(0))
    );
    assert_eq!(outcome.data["data"]["stdout"]["bytes"], 3);
}

#[test]
fn a_guest_that_does_not_move_can_still_be_deleted() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    kill(Pid::from_raw(daemon.guest_pid(&id)), Signal::SIGSTOP).expect("its first process");
    let started = Instant::now();
    daemon.api().remove(&id);
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    assert!(daemon.census().is_empty(), "{:#?}", daemon.census());
}

#[test]
fn a_guest_that_does_not_move_does_not_hold_up_a_start() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (stuck, well) = (daemon.api().create(), daemon.api().create());
    let guest = Pid::from_raw(daemon.guest_pid(&stuck));
    daemon.kill9();
    kill(guest, Signal::SIGSTOP).expect("its first process");
    let daemon = Daemon::start(&state);
    assert_eq!(daemon.api().exec(&well, "echo ok").text(), "ok\n");
    let status = daemon.api().session(&stuck)["status"].clone();
    assert!(status == "running" || status == "gone", "{status}");
}

#[test]
fn a_fork_bomb_stays_in_its_session() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    if api.session(&id)["capabilities"]["process_limit"] != true {
        println!("skipped: this machine has no limit on processes to enforce");
        return;
    }
    let other = api.create();
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || api.exec_within(&id, 2.0, "b() { b | b & }; b; sleep 300")
    });
    assert_eq!(
        api.exec(&other, "echo ok").text(),
        "ok\n",
        "nobody else is touched"
    );
    let answer = running.join().expect("an answer");
    assert!(
        answer.timed_out() || answer.exit_code != 0,
        "{}",
        answer.json
    );
    assert_eq!(
        api.exec(&id, "echo ok").text(),
        "ok\n",
        "nothing of it is left"
    );
}

#[test]
fn memory_beyond_the_limit_ends_the_command_and_not_the_session() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let body = json!({"agent": "a", "runtime": {"memory_mb": 64}});
    let capabilities = api.get("/v1/capabilities").expect(200);
    if capabilities["capabilities"]["memory_limit"] != true {
        let refused = api.post(SESSIONS, &body);
        assert_eq!(
            refused.error(400),
            "not_enforceable",
            "never promised and not held"
        );
        return;
    }
    let id = api.create_with(&body);
    let answer = api.exec_within(&id, 20.0, "head -c 512M /dev/zero | tail -c 512M | wc -c");
    assert_ne!(
        answer.text(),
        "536870912\n",
        "it cannot have held that much"
    );
    assert_eq!(api.exec(&id, "echo ok").text(), "ok\n");
    assert_eq!(api.session(&id)["status"], "running");
}
