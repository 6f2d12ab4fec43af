//! An ordinary user needs nothing from root: the daemon runs, sandboxes are made, used and removed.

use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::copy_programs;
use fluxvm_replay_tests::is_root_or_says_so;
use serde_json::json;

/// A user that owns nothing on any machine: above those of people, below those of containers.
const USER: u32 = 61_234;

/// A daemon of an ordinary user, with programs that it may run; it goes before what it stands on.
/// None where this test is not root: then every other test of this crate already is that ordinary
/// user's.
fn users_daemon() -> Option<(State, tempfile::TempDir, Daemon)> {
    if !is_root_or_says_so("become an ordinary user; the other tests run as one already") {
        return None;
    }
    let programs = tempfile::Builder::new()
        .prefix("fluxvm-programs-")
        .tempdir()
        .expect("folder");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(programs.path(), open).expect("mode");
    let program = copy_programs(programs.path());
    let state = State::of_user(USER);
    let daemon = Start::as_user(&program, &state, USER).ready();
    Some((state, programs, daemon))
}

#[test]
fn an_ordinary_users_session_is_made_used_and_removed() {
    let Some((state, _programs, daemon)) = users_daemon() else {
        return;
    };
    let api = daemon.api();
    let id = api.create();
    assert_eq!(
        api.session(&id)["capabilities"]["user_namespace"],
        "single-user"
    );
    assert_eq!(
        api.exec(&id, "id -u; pwd").text(),
        "0\n/workspace\n",
        "root inside"
    );
    assert_eq!(api.exec(&id, "echo x >file; cat file; exit 4").exit_code, 4);
    let timed_out = api.exec_within(&id, 0.5, "sleep 300 & wait");
    assert!(timed_out.timed_out(), "{}", timed_out.json);
    let guest = daemon.guest_pid(&id);
    let owner = std::fs::metadata(format!("/proc/{guest}"))
        .expect("it runs")
        .uid();
    assert_eq!(owner, USER, "and nobody in particular outside");
    assert_eq!(
        api.exec(&id, "cat /etc/shadow").exit_code,
        1,
        "what the user may not read"
    );
    api.remove(&id);
    let left = daemon.census();
    assert!(left.is_empty(), "{left:#?}");
    let owner = std::fs::metadata(state.root().join("ledger"))
        .expect("the ledger")
        .uid();
    assert_eq!(owner, USER);
}

#[test]
fn an_ordinary_users_session_lives_through_a_kill_of_the_daemon() {
    let Some((state, programs, daemon)) = users_daemon() else {
        return;
    };
    let id = daemon.api().create();
    let _ = daemon.api().exec(&id, "echo kept >file");
    let guest = daemon.guest_pid(&id);
    daemon.kill9();
    let program = programs.path().join("fluxvmd");
    let daemon = Start::as_user(&program, &state, USER).ready();
    assert_eq!(daemon.guest_pid(&id), guest);
    assert_eq!(daemon.api().exec(&id, "cat file").text(), "kept\n");
    let target = daemon.api().create();
    let path = format!("{}/{id}/replay", fluxvm_replay_tests::SESSIONS);
    let answer = daemon
        .api()
        .post(&path, &json!({"target": target}))
        .expect(200);
    assert_eq!(answer["steps"][0]["same_exit_code"], true, "{answer}");
}
