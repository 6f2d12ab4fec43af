//! When things go wrong around it, the daemon says so, in an answer with a code and in the ledger, and
//! never hangs, panics or leaves a session half made.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Program;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::is_root_or_says_so;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::program;
use fluxvm_replay_tests::status_kib;
use nix::mount::MsFlags;
use nix::mount::mount;
use nix::sched::CloneFlags;
use nix::sched::unshare;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;
use serde_json::json;

/// Bytes that are kept of one stream of one command.
const KEPT_BYTES: u64 = 16 * 1024 * 1024;

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

/// A file system of its own for the state, seen by this thread and the daemons that it starts only.
fn small_disk(folder: &Path, mebibytes: u32) {
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private mounts");
    fs::create_dir_all(folder).expect("a mount point");
    let size = format!("size={mebibytes}m,mode=0700");
    mount(
        Some("tmpfs"),
        folder,
        Some("tmpfs"),
        MsFlags::empty(),
        Some(size.as_str()),
    )
    .expect("mounted");
}

/// Writes until there is no room.
fn fill(file: &Path) {
    let mut file = fs::File::create(file).expect("a file");
    for chunk in [vec![0; 1024 * 1024], vec![0; 4096]] {
        while file.write_all(&chunk).is_ok() {}
    }
}

#[test]
fn a_full_disk_is_a_typed_refusal_and_then_an_end_and_loses_nothing_that_was_acknowledged() {
    if !is_root_or_says_so("mount a small file system") {
        return;
    }
    let state = State::new();
    small_disk(&state.root(), 96);
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let mut acknowledged = vec![api.exec(&id, "echo before").seq];
    let filler = state.root().join("filler");
    fill(&filler);
    // What is written goes into the ledger whole: it needs room that there is not.
    let big = format!(": {}", "x".repeat(60_000));
    let refused = loop {
        match api.try_send(
            "POST",
            &format!("{SESSIONS}/{id}/exec"),
            &[],
            json!({"command": big}).to_string().as_bytes(),
        ) {
            Ok(answer) if answer.status == 200 => {
                acknowledged.push(answer.json()["seq"].as_u64().expect("seq"));
            }
            Ok(answer) => break Some(answer),
            Err(_) => break None,
        }
        assert!(acknowledged.len() < 10_000, "the disk never fills");
    };
    let refused = refused.expect("an answer before the end");
    let code = refused.error(503);
    assert!(
        ["ledger_unavailable", "content_unavailable"].contains(&code.as_str()),
        "{code}"
    );
    let ended = daemon.ended();
    assert!(
        ended.code.is_some_and(|code| code != 0),
        "{ended:?}: {}",
        state.last_words()
    );

    fs::remove_file(&filler).expect("room again");
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let known: Vec<u64> = api
        .events(&id)
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect();
    let lost: Vec<&u64> = acknowledged
        .iter()
        .filter(|seq| !known.contains(seq))
        .collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    assert_eq!(
        api.exec(&id, "echo after").text(),
        "after\n",
        "the session lives on"
    );
    eventually("nothing is left open", || {
        (api.session(&id)["in_flight"] == json!([])).then_some(())
    });
    drop(daemon);
    assert!(open_offline(&state.root()).len() > known.len());
}
