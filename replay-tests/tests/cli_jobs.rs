//! The verbs on jobs of fluxctl, against the real daemon.

use std::io::Write;
use std::process::Stdio;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;

#[test]
fn a_job_is_started_listed_read_fed_and_killed() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (ctl, id) = (daemon.ctl(), daemon.api().create());
    let start = |words: &[&str]| {
        let words = [&["agent", "bg", &id], words].concat();
        let job = ctl.run(&words).json(0)["job"].clone();
        job.as_str().expect("`jq -r .job` works").to_owned()
    };
    let job = start(&["--", "echo out; echo err >&2; exit 7"]);
    let followed = ctl.run(&["agent", "logs", &id, &job, "-f"]);
    assert_eq!((followed.code, followed.text().as_str()), (7, "out\n"));
    assert_eq!(followed.errors(), "err\n");
    let read = ctl.run(&["agent", "logs", &id, &job]);
    assert_eq!((read.code, read.text().as_str()), (0, "out\n"));
    assert_eq!(read.errors(), "err\n");

    let fed = start(&["--stdin", "--", "cat; echo end"]);
    let written = ctl.run(&["agent", "stdin", &id, &fed, "one "]).json(0);
    assert_eq!(written["written"], 4, "{written}");
    let mut piped = ctl
        .command(&["agent", "stdin", &id, &fed])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("fluxctl runs");
    let input = piped.stdin.take().expect("piped");
    { input }.write_all(&vec![b'x'; 200_000]).expect("written");
    assert!(piped.wait().expect("fluxctl ends").success());
    // What is piped into the last write is written before the end.
    let words = ["agent", "stdin", &id, &fed, "--close"];
    let mut last = ctl
        .command(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let last = last.as_mut().expect("fluxctl runs");
    let input = last.stdin.take().expect("piped");
    { input }.write_all(b" last ").expect("written");
    assert!(last.wait().expect("fluxctl ends").success());
    let followed = ctl.run(&["agent", "logs", &id, &fed, "-f"]);
    let expected = format!("one {} last end\n", "x".repeat(200_000));
    assert!(
        followed.text() == expected,
        "{} bytes",
        followed.stdout.len()
    );
    let late = ctl.run(&["agent", "stdin", &id, &fed, "more"]);
    let next = format!("fluxctl agent logs {id} {fed} -f");
    assert!(
        late.code == 1 && late.errors().contains(&next),
        "{}",
        late.errors()
    );

    let killed = start(&["--timeout", "5m", "--", "sleep 300"]);
    let short = &killed[..13];
    assert_eq!(
        ctl.run(&["agent", "kill", &id, short]).json(0)["signal"],
        "TERM"
    );
    assert_eq!(ctl.run(&["agent", "logs", &id, &killed, "-f"]).code, 143);
    let table = ctl.run(&["--table", "agent", "jobs", &id]).text();
    assert!(
        table.contains("killed") && table.contains("exited"),
        "{table}"
    );
    let again = ctl.run(&["agent", "kill", &id, &killed]);
    assert!(
        again.code == 1 && again.errors().contains("has ended"),
        "{}",
        again.errors()
    );
    let timeline = ctl.run(&["--table", "agent", "timeline", &id]).text();
    assert!(
        timeline.contains("job.stdin") && timeline.contains("exit 7"),
        "{timeline}"
    );
    daemon.remove_everything();
}

#[test]
fn a_streamed_command_shows_what_it_writes_before_it_ends() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (ctl, id) = (daemon.ctl(), daemon.api().create());
    let command = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo last; exit 5";
    let out = state.root().join("seen");
    let file = std::fs::File::create(&out).expect("a file");
    let mut child = ctl
        .command(&["agent", "exec", &id, "--stream", "--", command])
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("fluxctl runs");
    eventually("the first line is there", || {
        (std::fs::read_to_string(&out).ok()? == "first\n").then_some(())
    });
    assert_eq!(daemon.api().exec(&id, "touch go").exit_code, 0);
    assert_eq!(child.wait().expect("fluxctl ends").code(), Some(5));
    assert_eq!(
        std::fs::read_to_string(&out).expect("read"),
        "first\nlast\n"
    );
    let refused = ctl.run(&["agent", "exec", &id, "--stream", "--", " "]);
    assert_eq!(refused.code, 125, "{}", refused.errors());
    daemon.remove_everything();
}
