//! A guest daemon that does not answer a starting daemon costs nobody anything: its session stays, the
//! start does not wait for it, and it goes on where it was once it answers.

use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::is_root_or_says_so;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::json;

/// Longer than a start takes on a slow machine, and shorter than a start that waits for every guest.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// Opens connections with a head that never ends, and opens them anew for ever.
const FLOOD: &str = r#"python3 - <<'P'
import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
while True:
    try:
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        s.connect(b"\0fluxvm-agentd")
        held.append(s)
        s.send(b"GET /v1/health HTTP/1.1\r\nx: ")
    except OSError:
        time.sleep(0.001)
    if len(held) == 1500:
        print("full", flush=True)
    if len(held) > 1500:
        held = held[500:]
        time.sleep(0.01)
P
"#;

#[test]
fn a_flood_of_the_guests_socket_does_not_cost_the_session() {
    if !is_root_or_says_so("the socket of a guest lies in a namespace only for root") {
        return;
    }
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(daemon.api().exec(&id, "echo kept > file").exit_code, 0);
    let job = daemon.api().background(&id, FLOOD);
    eventually("its socket is flooded", || {
        let page = daemon.api().job(&id, &job, "");
        (page["next_offset"].as_u64()? > 0).then_some(())
    });
    daemon.kill9();
    let begun = Instant::now();
    let daemon = Daemon::start(&state);
    let took = begun.elapsed();
    assert!(took < START_TIME_MAX, "{took:?}");
    let api = daemon.api();
    assert_eq!(api.session(&id)["status"], "running");
    assert_eq!(api.exec(&id, "cat file").text(), "kept\n");
    assert_eq!(api.job(&id, &job, "")["state"], "running");
    api.remove(&id);
}

#[test]
fn a_guest_that_stands_still_at_a_start_goes_on_where_it_was() {
    if !is_root_or_says_so("the first process of a sandbox is stopped from outside") {
        return;
    }
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    assert_eq!(daemon.api().exec(&id, "mkfifo go").exit_code, 0);
    let job = daemon.api().background(&id, "read -r _ < go; echo went");
    let guest = Pid::from_raw(daemon.guest_pid(&id));
    daemon.kill9();
    kill(guest, Signal::SIGSTOP).expect("a sandbox that runs");
    let begun = Instant::now();
    let daemon = Daemon::start(&state);
    let took = begun.elapsed();
    assert!(took < START_TIME_MAX, "{took:?}");
    let api = daemon.api();
    assert_eq!(api.session(&id)["status"], "running");
    let body = json!({"command": "echo now"});
    let refused = api.try_exec(&id, &body);
    assert_eq!(refused.error(502), "guest_unreachable");
    assert_eq!(api.job(&id, &job, "")["state"], "running");
    kill(guest, Signal::SIGCONT).expect("a sandbox that runs");
    let answer = eventually("it answers again", || {
        let answer = api.try_exec(&id, &json!({"command": "echo now; echo > go"}));
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(answer.json()["exit_code"], 0);
    let followed = api.follow_job(&id, &job);
    assert_eq!(followed.exit_code(), Some(0));
    api.remove(&id);
}
