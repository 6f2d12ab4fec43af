//! fluxctl that follows a command, and what becomes of both when it is interrupted or nobody reads it.

use std::io::BufRead;
use std::io::BufReader;
use std::process::Child;
use std::process::ChildStdout;
use std::process::Stdio;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Runs fluxctl until its command has said `up`.
fn up(daemon: &Daemon, words: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut command = daemon.ctl().command(words);
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().expect("fluxctl runs");
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    (child, stdout)
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("sent");
}

fn ended(child: Child) -> (Option<i32>, String) {
    let ended = child.wait_with_output().expect("fluxctl ends");
    (
        ended.status.code(),
        String::from_utf8_lossy(&ended.stderr).into_owned(),
    )
}

fn state_of(daemon: &Daemon, id: &str, nth: usize) -> String {
    let jobs = daemon.api().jobs(id);
    jobs[nth]["state"].as_str().expect("a state").to_owned()
}

#[test]
fn an_interrupt_is_passed_on_and_a_second_one_leaves_the_command_running() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let obeys = "trap 'echo bye; exit 9' INT; echo up; while :; do sleep 0.05; done";
    let (child, mut stdout) = up(&daemon, &["agent", "exec", &id, "--stream", "--", obeys]);
    interrupt(&child);
    let mut line = String::new();
    stdout.read_line(&mut line).expect("its last words");
    let (code, errors) = ended(child);
    assert_eq!((line.as_str(), code), ("bye\n", Some(9)), "{errors}");

    let ignores = "trap '' INT; echo up; sleep 300";
    let words = ["agent", "exec", &id, "--stream", "--", ignores];
    let (mut child, _stdout) = up(&daemon, &words);
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    interrupt(&child);
    let mut told = String::new();
    stderr.read_line(&mut told).expect("a line");
    assert!(told.contains("SIGINT"), "{told}");
    interrupt(&child);
    assert_eq!(child.wait().expect("ended").code(), Some(130));
    let rest: Vec<String> = stderr.lines().map(|line| line.expect("a line")).collect();
    let job = daemon.api().jobs(&id)[1]["job"]
        .as_str()
        .expect("id")
        .to_owned();
    let told = rest.join("\n");
    for next in ["logs", "kill"] {
        assert!(
            told.contains(&format!("fluxctl agent {next} {id} {job}")),
            "{told}"
        );
    }
    assert_eq!(state_of(&daemon, &id, 1), "running");
    daemon.remove_everything();
}

#[test]
fn a_command_ends_with_its_reader_and_a_job_does_not() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    // One that goes on writing, and one that is silent: neither waits for the next byte to find out.
    for command in [
        "echo up; while :; do echo y; sleep 0.01; done",
        "echo up; sleep 300",
    ] {
        let (child, stdout) = up(&daemon, &["agent", "exec", &id, "--stream", "--", command]);
        drop(stdout);
        assert_eq!(ended(child), (Some(0), String::new()), "quietly: {command}");
    }
    for nth in 0..2 {
        eventually("the command is ended", || {
            (state_of(&daemon, &id, nth) == "killed").then_some(())
        });
    }
    for command in [
        "echo up; while :; do echo y; sleep 0.01; done",
        "echo up; sleep 300",
    ] {
        let job = daemon.api().background(&id, command);
        let (child, stdout) = up(&daemon, &["agent", "logs", &id, &job, "-f"]);
        drop(stdout);
        assert_eq!(ended(child), (Some(0), String::new()), "quietly: {command}");
        assert_eq!(daemon.api().job(&id, &job, "")["state"], "running");
    }
    daemon.remove_everything();
}

#[test]
fn an_approval_counts_whatever_the_command_reads_and_however_it_runs() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (api, ctl) = (daemon.api(), daemon.ctl());
    let policy = serde_json::json!({"agent": "tester", "policy": {"process": {"ask": ["cat"]}}});
    let id = api.create_with(&policy);
    for words in [
        &["exec", "--stdin"][..],
        &["exec", "--stdin", "--stream"],
        &["exec", "--stream"],
        &["bg"],
    ] {
        let run = |more: &[&str]| {
            let words = [&["agent", words[0], &id], &words[1..], more, &["--", "cat"]].concat();
            let mut command = ctl.command(&words);
            let output = command.stdin(Stdio::null()).output().expect("fluxctl runs");
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let (code, errors) = run(&[]);
        assert!(
            code != Some(0) && errors.contains("428"),
            "{words:?}: {errors}"
        );
        let path = format!("{}/{id}/approvals", fluxvm_replay_tests::SESSIONS);
        let asked = api.get(&path).expect(200)["items"].clone();
        let asked = asked.as_array().expect("a list");
        let open = asked
            .iter()
            .rfind(|one| one["status"] == "pending")
            .expect("one is open");
        let approval = open["id"].as_str().expect("id").to_owned();
        let decided = api.send("POST", &format!("{path}/{approval}/approve"), &[], b"");
        let _ = decided.expect(200);
        let (code, errors) = run(&["--approval-id", &approval]);
        assert_eq!(code, Some(0), "{words:?}: {errors}");
    }
    daemon.remove_everything();
}
