//! Nothing is left: not by two hundred commands, not by twenty sessions.

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::fd_count;
use fluxvm_replay_tests::status_kib;

/// Commands that are run before the first count, so that what is opened once is open.
const WARM_UP: usize = 10;

#[test]
fn two_hundred_commands_leave_the_machine_as_it_was() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    for _ in 0..WARM_UP {
        let _ = daemon.api().exec(&id, "true");
    }
    let guest = daemon.guest_pid(&id);
    let counts = || {
        let guest = u32::try_from(guest).expect("a process id");
        (daemon.census(), fd_count(daemon.pid()), fd_count(guest))
    };
    let before = counts();
    for _ in 0..200 {
        let ran = daemon.ctl().run(&["agent", "exec", &id, "--", "true"]);
        assert_eq!(ran.code, 0, "{}", ran.errors());
    }
    // A connection to the guest may be on its way out when the last answer is here.
    eventually("everything is as before", || {
        (counts() == before).then_some(())
    });
    let inside = daemon.api().exec(&id, "set -- /proc/[0-9]*; echo $#");
    assert_eq!(
        inside.text(),
        "3\n",
        "the guest daemon, which is two, and this shell"
    );
    assert_eq!(daemon.ctl().run(&["agent", "rm", &id]).code, 0);
    assert!(daemon.census().is_empty(), "{:#?}", daemon.census());
}

#[test]
fn sessions_that_were_deleted_leave_nothing() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let once = daemon.api().create();
    daemon.api().remove(&once);
    let fds = fd_count(daemon.pid());
    let rss_before_kib = status_kib(daemon.pid(), "VmRSS");
    for round in 0..5 {
        let ids: Vec<String> = (0..4).map(|_| daemon.api().create()).collect();
        for id in &ids {
            let answer = daemon
                .api()
                .exec(id, "sleep 300 & mkdir -p d/e; echo x >d/e/f; chmod 0 d");
            assert_eq!(answer.exit_code, 0);
        }
        assert!(!daemon.census().is_empty());
        for id in &ids {
            daemon.api().remove(id);
        }
        assert!(
            daemon.census().is_empty(),
            "round {round}: {:#?}",
            daemon.census()
        );
    }
    eventually("the daemon has no more open than before", || {
        (fd_count(daemon.pid()) <= fds).then_some(())
    });
    let grown_kib = status_kib(daemon.pid(), "VmRSS").saturating_sub(rss_before_kib);
    assert!(grown_kib < 64 * 1024, "the daemon grew by {grown_kib} KiB");
}

#[test]
fn a_session_that_is_there_is_seen_so_that_its_absence_means_something() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let census = daemon.census();
    let guest = daemon.guest_pid(&id);
    assert!(
        census.processes.contains_key(&guest),
        "its first process: {census:#?}"
    );
    assert!(!census.mounts.is_empty(), "its mounts: {census:#?}");
    assert!(
        !census.network_namespaces.is_empty(),
        "its network: {census:#?}"
    );
    assert!(!census.files.is_empty(), "its files: {census:#?}");
    let capabilities = daemon.api().session(&id)["capabilities"].clone();
    if capabilities["memory_limit"] == true || capabilities["process_limit"] == true {
        assert!(
            !census.cgroups.is_empty(),
            "its control groups: {census:#?}"
        );
    }
}
