//! Processes: none is lost, none is left, none is blamed on another.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::time::Duration;
use std::time::Instant;

use agentd_client::AgentdClient;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::Phase;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use support::*;

#[tokio::test]
async fn a_background_child_does_not_hold_the_answer_and_is_named_as_a_survivor() {
    let (_guest, client) = Guest::start().await;
    let marker = marker();
    let mut request = tree(script(&format!("sleep {marker} & echo hi")), 10);
    request.x.as_mut().unwrap().output_linger_ms = Some(50);
    let asked = Instant::now();
    let told = run(&client, &request).await;
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(
        (told.stdout.as_slice(), told.code()),
        (&b"hi\n"[..], Some(0))
    );
    assert!(told.exit().writers_may_be_alive);
    let x = told.exit().x.as_ref().unwrap();
    assert_eq!(x.survivors_total, 1);
    assert_eq!(x.survivors[0].command, format!("sleep {marker}"));
    assert_eq!(
        vec![i32::try_from(x.survivors[0].pid).unwrap()],
        processes_with(&marker)
    );

    // It lives on until somebody asks for its end.
    assert!(client.kill(&request.exec_id).await.unwrap().killed);
    assert_eq!(processes_with(&marker), Vec::<i32>::new());
    assert!(!client.kill(&request.exec_id).await.unwrap().killed);
}

#[tokio::test]
async fn reap_group_on_exit_ends_a_background_child_before_the_answer() {
    let (_guest, client) = Guest::start().await;
    let marker = marker();
    let mut request = tree(script(&format!("sleep {marker} & echo hi")), 10_000);
    request.reap_group_on_exit = true;
    let told = run(&client, &request).await;
    assert_eq!(
        (told.stdout.as_slice(), told.code()),
        (&b"hi\n"[..], Some(0))
    );
    assert!(!told.exit().writers_may_be_alive);
    assert_eq!(told.exit().x.as_ref().unwrap().survivors_total, 0);
    assert_eq!(processes_with(&marker), Vec::<i32>::new());
}

/// Starts `text`, sees the marker alive, and returns what was told after the deadline.
async fn timed_out(text: &str, marker: &str, alive: usize) -> Told {
    let (_guest, client) = Guest::start().await;
    let mut request = tree(script(text), 100);
    request.timeout_sec = Some(1.0);
    let stream = client.run(&request).await.unwrap();
    let seen = || {
        let sleeps = processes_with(marker);
        sleeps.iter().filter(|&&pid| is_sleep(pid)).count() >= alive
    };
    until("the marked process is alive", seen).await;
    let told = follow(stream).await;
    assert!(told.exit().timed_out, "{:?}", told.exit());
    assert_eq!(processes_with(marker), Vec::<i32>::new());
    assert_eq!(told.exit().x.as_ref().unwrap().survivors_total, 0);
    told
}

fn is_sleep(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
}

#[tokio::test]
async fn a_timeout_ends_a_background_child_that_is_waited_for() {
    let marker = marker();
    timed_out(&format!("sleep {marker} & wait"), &marker, 1).await;
}

#[tokio::test]
async fn a_timeout_ends_a_child_in_another_session() {
    let marker = marker();
    timed_out(&format!("setsid sleep {marker} & wait"), &marker, 1).await;
}

#[tokio::test]
async fn a_timeout_ends_a_process_that_ignores_sigterm() {
    let marker = marker();
    let told = timed_out(&format!("trap '' TERM; sleep {marker}"), &marker, 1).await;
    assert_eq!(told.exit().signal, Some(9));
}

#[tokio::test]
async fn a_timeout_ends_a_daemon_that_forked_twice() {
    let marker = marker();
    let text = format!("setsid sh -c 'setsid sleep {marker} & exit 0'; sleep {marker}");
    timed_out(&text, &marker, 2).await;
}

#[tokio::test]
async fn a_deadline_counts_even_when_the_process_makes_it_look_like_success() {
    let (_guest, client) = Guest::start().await;
    let mut request = script("trap 'exit 0' TERM; while :; do sleep 0.01; done");
    request.timeout_sec = Some(0.1);
    let asked = Instant::now();
    let told = run(&client, &request).await;
    assert!(told.exit().timed_out);
    assert_eq!(told.code(), Some(0));
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "the grace ends with the group"
    );
}

#[tokio::test]
async fn a_group_kill_leaves_other_sessions_alone_and_they_are_told_of() {
    let (_guest, client) = Guest::start().await;
    let marker = marker();
    let mut request = script(&format!("setsid sleep {marker} & sleep 300"));
    request.x = Some(agentd_client::protocol::StartExtension {
        output_linger_ms: Some(20),
        ..Default::default()
    });
    let stream = client.run(&request).await.unwrap();
    until("the other session is alive", || {
        processes_with(&marker).iter().any(|&pid| is_sleep(pid))
    })
    .await;
    assert!(client.kill(&request.exec_id).await.unwrap().killed);
    let told = follow(stream).await;
    assert_eq!(told.exit().signal, Some(15));
    let x = told.exit().x.as_ref().unwrap();
    assert_eq!(x.survivors_total, 1, "{x:?}");
    assert_eq!(processes_with(&marker).len(), 1);
}

#[tokio::test]
async fn a_killed_supervisor_does_not_hide_how_its_leader_ended() {
    let (guest, client) = Guest::start().await;
    let marker = marker();
    let request = tree(script(&format!("sleep {marker}; exit 7")), 50);
    let stream = client.run(&request).await.unwrap();
    until("the command is alive", || {
        processes_with(&marker).iter().any(|&pid| is_sleep(pid))
    })
    .await;
    let children = |parent| {
        let states = states();
        let found = states.iter().filter(|(_, (_, ppid))| *ppid == parent);
        found.map(|(&pid, _)| pid).collect::<Vec<_>>()
    };
    let supervisors = children(guest.pid());
    assert_eq!(supervisors.len(), 1);
    let leader = children(supervisors[0])[0];
    kill(Pid::from_raw(supervisors[0]), Signal::SIGKILL).unwrap();
    until("the leader hangs under the daemon", || {
        states()
            .get(&leader)
            .is_some_and(|(_, parent)| *parent == guest.pid())
    })
    .await;
    for sleep in processes_with(&marker)
        .into_iter()
        .filter(|&pid| is_sleep(pid))
    {
        kill(Pid::from_raw(sleep), Signal::SIGTERM).unwrap();
    }
    let told = follow(stream).await;
    assert_eq!(told.code(), Some(7));
    assert_eq!(descendants(guest.pid()), Vec::<i32>::new());
}

/// Starts `text` and stops its supervisor. Answers the leader too.
async fn with_a_stopped_supervisor(text: &str) -> (Guest, AgentdClient, ExecId, ExecStream, Pid) {
    let (guest, client) = Guest::start().await;
    let request = tree(script(text), 50);
    let mut stream = client.run(&request).await.unwrap();
    // Its first word says that it is ready.
    stream.next().await.unwrap().unwrap();
    let child = |parent| {
        let states = states();
        let found = states.iter().find(|(_, (_, ppid))| *ppid == parent);
        *found.unwrap().0
    };
    let supervisor = child(guest.pid());
    let leader = Pid::from_raw(child(supervisor));
    kill(Pid::from_raw(supervisor), Signal::SIGSTOP).unwrap();
    until("the supervisor is stopped", || {
        states().get(&supervisor).is_some_and(|(it, _)| *it == 'T')
    })
    .await;
    (guest, client, request.exec_id, stream, leader)
}

async fn exit_of(mut stream: ExecStream) -> agentd_client::protocol::ExitEvent {
    loop {
        if let ExecEvent::Exit(exit) = stream.next().await.unwrap().unwrap() {
            return exit;
        }
    }
}

#[tokio::test]
async fn a_signal_that_kills_is_told_of_by_a_supervisor_that_was_stopped() {
    let text = "echo ready; exec sleep 300";
    let (_guest, client, id, stream, _) = with_a_stopped_supervisor(text).await;
    assert!(client.signal(&id, "KILL").await.unwrap().killed);
    assert_eq!(exit_of(stream).await.signal, Some(9));
}

#[tokio::test]
async fn a_kill_finds_out_how_a_leader_ended_under_a_stopped_supervisor() {
    let text = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.01; done";
    let (_guest, client, id, stream, leader) = with_a_stopped_supervisor(text).await;
    kill(leader, Signal::SIGUSR1).unwrap();
    until("the leader has ended", || {
        let states = states();
        states
            .get(&leader.as_raw())
            .is_some_and(|(it, _)| *it == 'Z')
    })
    .await;
    client.kill(&id).await.unwrap();
    assert_eq!(exit_of(stream).await.exit_code, Some(3));
}

#[tokio::test]
async fn a_deadline_counts_however_often_the_supervisor_is_stopped() {
    let (_guest, client) = Guest::start().await;
    let mut request = tree(script("while :; do kill -STOP $PPID; done"), 50);
    request.timeout_sec = Some(0.2);
    let told = run(&client, &request).await;
    assert!(told.exit().timed_out);
    assert_eq!(told.exit().x.as_ref().unwrap().survivors_total, 0);
}

#[tokio::test]
async fn a_leader_without_its_supervisor_can_still_be_killed() {
    let (guest, client) = Guest::start().await;
    let request = tree(command(["sleep", &marker()]), 50);
    let stream = client.run(&request).await.unwrap();
    let supervisor = *descendants(guest.pid()).first().unwrap();
    kill(Pid::from_raw(supervisor), Signal::SIGKILL).unwrap();
    until("the supervisor is gone", || {
        !states().contains_key(&supervisor)
    })
    .await;
    assert!(client.kill(&request.exec_id).await.unwrap().killed);
    assert_eq!(follow(stream).await.exit().signal, Some(15));
}

#[tokio::test]
async fn no_zombie_and_no_descriptor_is_left_after_two_hundred_execs() {
    let (guest, client) = Guest::start().await;
    run(&client, &command(["true"])).await;
    let before = guest.descriptors();
    for _ in 0..50 {
        let requests = [
            command(["true"]),
            script("sh -c 'exit 3' & exit 3"),
            script("(sh -c true &) ; true"),
            script("setsid sh -c 'true &'"),
        ];
        let told = futures_util::future::join_all(requests.iter().map(|r| run(&client, r))).await;
        let codes: Vec<_> = told.iter().map(Told::code).collect();
        assert_eq!(codes, [Some(0), Some(3), Some(0), Some(0)]);
    }
    until("all descendants are gone", || {
        descendants(guest.pid()).is_empty()
    })
    .await;
    until("descriptors are given back", || {
        guest.descriptors() <= before + 8
    })
    .await;
    assert!(!client.health().await.unwrap().busy);
}

#[tokio::test]
async fn a_command_sees_three_descriptors_and_no_ignored_or_blocked_signal() {
    let (_guest, client) = Guest::start().await;
    let told = run(
        &client,
        &script(
            "ls -l /proc/self/fd | grep -c -- '->'; readlink /proc/$$/fd/0; \
        grep -E 'Sig(Blk|Ign)' /proc/self/status; cut -d' ' -f1,5 /proc/self/stat",
        ),
    )
    .await;
    let text = String::from_utf8(told.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // The three, and the folder that `ls` itself reads.
    assert_eq!(lines[0], "4");
    assert_eq!(lines[1], "/dev/null");
    assert_eq!(lines[2], "SigBlk:\t0000000000000000");
    assert_eq!(lines[3], "SigIgn:\t0000000000000000");
}

#[tokio::test]
async fn the_leader_leads_a_group_of_its_own() {
    let (_guest, client) = Guest::start().await;
    let told = run(&client, &script("echo $$; cut -d' ' -f5 /proc/$$/stat")).await;
    let text = String::from_utf8(told.stdout).unwrap();
    let numbers: Vec<&str> = text.lines().collect();
    assert_eq!(numbers[0], numbers[1]);
}

#[tokio::test]
async fn a_survivor_that_writes_on_is_not_killed_by_a_closed_pipe() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let (go, done) = (folder.path().join("go"), folder.path().join("done"));
    let text = format!(
        "(while [ ! -e {go} ]; do sleep 0.01; done; head -c 300000 /dev/zero && touch {done}) & :",
        go = go.display(),
        done = done.display()
    );
    let mut request = tree(script(&text), 50);
    request.x.as_mut().unwrap().output_linger_ms = Some(0);
    let told = run(&client, &request).await;
    assert!(told.exit().writers_may_be_alive);
    assert_eq!(
        client.poll(&request.exec_id).await.unwrap().phase,
        Phase::Exited
    );
    std::fs::write(go, "").unwrap();
    until("the survivor wrote all that it had", || done.exists()).await;
}

#[tokio::test]
async fn as_the_first_process_it_outlives_a_kill_of_everybody_and_leaves_no_zombie() {
    // Where nobody may make a namespace, there is no first process to test.
    let starter = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = std::process::Command::new(starter[0])
        .args(&starter[1..])
        .arg("true")
        .status();
    if !possible.is_ok_and(|status| status.success()) {
        return;
    }
    let guest = Guest::under(&starter, &[]);
    let client = guest.client(TOKEN);
    let token = agentd_client::protocol::AgentToken::new(TOKEN);
    client
        .run_hook(&agentd_client::protocol::RunHookPayload::new(token))
        .await
        .unwrap();
    let bystander = client.run(&command(["sleep", &marker()])).await.unwrap();
    // A daemon whose parent has ended, then the end of everybody but the first process.
    run(&client, &tree(script("setsid sleep 300 & exit 0"), 10)).await;
    let told = run(&client, &script("echo before; kill -9 -1; echo after")).await;
    assert_eq!(told.stdout, b"before\nafter\n");
    assert_eq!(told.code(), Some(0));
    assert_eq!(follow(bystander).await.exit().signal, Some(9));
    let told = run(
        &client,
        &script("cat /proc/[0-9]*/stat | cut -d' ' -f3 | grep -c Z"),
    )
    .await;
    assert_eq!(
        (told.stdout.as_slice(), told.code()),
        (&b"0\n"[..], Some(1))
    );
    let told = run(
        &client,
        &script("cat /proc/1/comm; readlink /proc/1/exe >/dev/null; echo $PPID"),
    )
    .await;
    assert!(told.stdout.starts_with(b"microvms-agentd\n"));
}
