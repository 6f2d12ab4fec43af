//! fluxctl against the real daemon, as a person at a terminal and as a script has it.

use std::io::BufRead;
use std::io::BufReader;
use std::process::Stdio;

use fluxvm_replay_tests::Ctl;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::Ran;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use serde_json::Value;

fn run_session(ctl: &Ctl) -> String {
    let made = ctl.run(&["agent", "run", "codex", "--ttl", "1h"]).json(0);
    assert_eq!(made["agent"], "codex");
    made["id"].as_str().expect("an id").to_owned()
}

fn exec(ctl: &Ctl, id: &str, command: &str) -> Ran {
    ctl.run(&["agent", "exec", id, "--", command])
}

#[test]
fn exec_passes_bytes_and_exit_codes_through() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    for code in [0, 1, 7, 255] {
        assert_eq!(exec(&ctl, &id, &format!("exit {code}")).code, code);
    }
    assert_eq!(exec(&ctl, &id, "kill -9 $$").code, 137);
    let timed_out = ctl.run(&["agent", "exec", &id, "--timeout", "1s", "--", "sleep 300"]);
    assert_eq!(timed_out.code, 124);
    assert!(
        timed_out.errors().contains("--timeout"),
        "it says what to do: {}",
        timed_out.errors()
    );
    let words = ctl.run(&[
        "agent", "exec", &id, "--", "printf", "%s|", "a b", "*", "$HOME", "'",
    ]);
    assert_eq!(
        words.text(),
        "a b|*|$HOME|'|",
        "several words are taken as they are"
    );
    let _ = ctl.run(&["agent", "rm", &id]);
}

#[test]
fn c03_c18_bytes_come_out_of_the_command_line_as_they_were_written() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    let all: Vec<u8> = (0..=255).collect();
    let all_bytes =
        "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done";
    let cases: [(&str, &[u8]); 8] = [
        (
            r"printf '\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254'",
            "€".as_bytes(),
        ),
        (r"printf '\303\050'", b"\xc3\x28"),
        (
            r"printf '\001\001\001\002\002\002'",
            b"\x01\x01\x01\x02\x02\x02",
        ),
        (all_bytes, &all),
        (r"printf 'a\n\n\nb'", b"a\n\n\nb"),
        ("printf x", b"x"),
        (r"printf 'a\r\nb\r\n'", b"a\r\nb\r\n"),
        ("true", b""),
    ];
    for (command, bytes) in cases {
        assert_eq!(exec(&ctl, &id, command).stdout, bytes, "{command}");
        let on_stderr = exec(&ctl, &id, &format!("{{ {command}; }} >&2"));
        assert_eq!(
            (on_stderr.stdout.as_slice(), on_stderr.stderr.as_slice()),
            (&b""[..], bytes)
        );
    }
    let _ = ctl.run(&["agent", "rm", &id]);
}

#[test]
fn in_a_pipe_everything_is_json_and_with_table_it_is_for_people() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    let _ = exec(&ctl, &id, "echo hi");
    let listed = ctl.run(&["agent", "ls"]).json(0);
    let listed = listed["items"].as_array().expect("items").clone();
    assert!(listed.iter().any(|session| session["id"] == id.as_str()));
    assert_eq!(
        ctl.run(&["agent", "get", &id[..8]]).json(0)["id"],
        id.as_str(),
        "by its beginning"
    );
    let answer = ctl
        .run(&["agent", "exec", &id, "--json", "--", "echo hi; exit 3"])
        .json(3);
    assert_eq!(
        (&answer["stdout"], &answer["exit_code"]),
        (&"hi\n".into(), &3.into())
    );
    let events = ctl.run(&["agent", "events", &id]).json(0);
    assert_eq!(events["ledger"][3]["kind"], "exec");
    let info = ctl.run(&["ledger", "info"]).json(0);
    assert!(info["head"]["position"].as_u64() >= Some(6), "{info}");
    assert!(ctl.run(&["capabilities"]).json(0)["capabilities"]["network"].is_string());

    let table = ctl.run(&["agent", "ls", "--table"]).text();
    assert!(
        table.contains("codex") && table.contains("running") && !table.contains('{'),
        "{table}"
    );
    let timeline = ctl.run(&["agent", "timeline", &id, "--table"]).text();
    assert!(
        timeline.contains("echo hi") && !timeline.contains("{\""),
        "{timeline}"
    );
    assert!(
        !timeline.contains('\u{1b}'),
        "no colours where nobody looks"
    );
    let _ = ctl.run(&["agent", "rm", &id]);
}

#[test]
fn events_are_followed_until_the_session_ends() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    let mut follow = ctl.command(&["agent", "events", &id, "--follow"]);
    let mut follow = follow
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut lines = BufReader::new(follow.stdout.take().expect("a pipe")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("another event").expect("a line");
        serde_json::from_str(&line).expect("a line of JSON")
    };
    let mut seen = vec![next(), next()];
    assert_eq!(seen[1]["kind"], "session.create", "history first");
    let _ = exec(&ctl, &id, "echo live");
    seen.extend([next(), next()]);
    assert_eq!(seen[3]["data"]["command"], "echo live", "then what happens");
    assert_eq!(ctl.run(&["agent", "rm", &id]).code, 0);
    seen.extend([next(), next(), next()]);
    assert_eq!(seen, daemon.api().events(&id));
    assert_eq!(follow.wait().expect("it ends").code(), Some(0));
}

#[test]
fn following_goes_on_over_a_restart_of_the_daemon() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    let mut follow = ctl.command(&["agent", "events", &id, "--follow"]);
    let mut follow = follow
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("runs");
    let mut lines = BufReader::new(follow.stdout.take().expect("a pipe")).lines();
    let mut next = || -> u64 {
        let line = lines.next().expect("another event").expect("a line");
        serde_json::from_str::<Value>(&line).expect("JSON")["seq"]
            .as_u64()
            .expect("seq")
    };
    let mut seen = vec![next(), next()];
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let _ = exec(&ctl, &id, "echo on");
    assert_eq!(ctl.run(&["agent", "rm", &id]).code, 0);
    let recorded: Vec<u64> = daemon
        .api()
        .events(&id)
        .iter()
        .map(|event| event["seq"].as_u64().expect("seq"))
        .collect();
    while seen.len() < recorded.len() {
        seen.push(next());
    }
    assert_eq!(seen, recorded);
    assert_eq!(follow.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_replay_is_a_table_and_its_exit_code_says_whether_it_differs() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let (source, target) = (run_session(&ctl), run_session(&ctl));
    let _ = exec(&ctl, &source, "echo same");
    let _ = exec(&ctl, &source, "cat /proc/sys/kernel/random/uuid");
    let _ = exec(&ctl, &source, "test -e marker || { touch marker; false; }");
    let dry = ctl.run(&["agent", "replay", &source, "--dry-run"]).json(0);
    assert_eq!(dry["steps"].as_array().map(Vec::len), Some(3));
    let ran = ctl.run(&[
        "agent",
        "replay",
        &source,
        "--target",
        &target,
        "--keep-going",
        "--table",
    ]);
    assert_eq!(ran.code, 0, "{}{}", ran.text(), ran.errors());
    assert!(ran.text().contains("echo same"), "{}", ran.text());
    assert!(
        ran.text().contains("other output in step 2"),
        "{}",
        ran.text()
    );
    let again = ctl.run(&[
        "agent",
        "replay",
        &source,
        "--target",
        &target,
        "--keep-going",
    ]);
    assert_eq!(
        again.code,
        1,
        "the third step finds its marker now: {}",
        again.text()
    );
    let _ = ctl.run(&["agent", "rm", &source, &target]);
}

#[test]
fn an_export_is_verified_without_the_daemon_and_one_flipped_byte_names_its_event() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let ctl = daemon.ctl();
    let id = run_session(&ctl);
    let _ = exec(&ctl, &id, "echo evidence");
    let (of_session, whole) = (state.beside("session.jsonl"), state.beside("whole.jsonl"));
    let (of_session, whole) = (
        of_session.to_str().expect("path"),
        whole.to_str().expect("path"),
    );
    assert_eq!(
        ctl.run(&["agent", "export", &id, "--out", of_session]).code,
        0
    );
    assert_eq!(ctl.run(&["ledger", "export", "--out", whole]).code, 0);
    daemon.kill9();

    for file in [of_session, whole] {
        let report = ctl.run(&["ledger", "verify", file]).json(0);
        assert_eq!(
            (&report["ok"], &report["faults"]),
            (&true.into(), &serde_json::json!([]))
        );
        let verdict = ctl.run(&["ledger", "verify", file, "--table"]);
        assert!(verdict.text().contains("OK"), "{}", verdict.text());

        let mut bytes = std::fs::read(file).expect("the export");
        let place = bytes
            .windows(8)
            .position(|part| part == b"evidence")
            .expect("it is there");
        bytes[place] ^= 1;
        std::fs::write(file, bytes).expect("changed");
        let report = ctl.run(&["ledger", "verify", file]).json(1);
        assert_eq!(report["ok"], false);
        let fault = &report["faults"][0];
        assert_eq!(
            fault["kind"], "exec.started",
            "the first that holds those words: {report}"
        );
        assert!(fault["seq"].is_u64(), "{report}");
        let said = ctl.run(&["ledger", "verify", file, "--table"]);
        assert_eq!(said.code, 1);
        assert!(said.text().contains("exec.started") && said.text().contains("BROKEN"));
    }
    assert_eq!(ctl.run(&["ledger", "verify", "/no/such/file"]).code, 2);
    // The session lives on; a daemon removes it.
    drop(Daemon::start(&state));
}

#[test]
fn errors_say_what_to_do_next() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let unknown = ctl.run(&["agent", "get", "00000000-0000-4000-8000-000000000000"]);
    assert_eq!(unknown.code, 1, "{}", unknown.errors());
    assert!(
        unknown.errors().contains("fluxctl agent ls"),
        "{}",
        unknown.errors()
    );
    let on_exec = ctl.run(&[
        "agent",
        "exec",
        "00000000-0000-4000-8000-000000000000",
        "--",
        "true",
    ]);
    assert_eq!(
        on_exec.code, 125,
        "apart from every code that a command ends with"
    );
    let mut wrong = ctl.command(&["agent", "ls"]);
    let output = wrong.env("FLUXVM_TOKEN", "nobody").output().expect("runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("401") && errors.contains("admin-token"),
        "{errors}"
    );
    let nowhere = Ctl::new("/nonexistent/state".into()).run(&["agent", "ls"]);
    assert_eq!(nowhere.code, 3);
    assert!(
        nowhere.errors().contains("make run"),
        "{}",
        nowhere.errors()
    );
    let usage = ctl.run(&["agent", "exec", "x"]);
    assert_eq!(usage.code, 2, "{}", usage.errors());
    let ttl = ctl.run(&["agent", "run", "codex", "--ttl", "soon"]);
    assert_eq!(ttl.code, 2, "{}", ttl.errors());
}

#[test]
fn removing_is_done_for_each_named_session() {
    let daemon = shared();
    let ctl = daemon.ctl();
    let (one, two) = (run_session(&ctl), run_session(&ctl));
    assert_eq!(ctl.run(&["agent", "rm", &one, &two]).code, 0);
    for id in [&one, &two] {
        eventually("it is deleted", || {
            (daemon.api().session(id)["status"] == "deleted").then_some(())
        });
    }
}

#[test]
fn there_is_a_completion_for_each_shell() {
    let daemon = shared();
    for shell in ["bash", "zsh", "fish"] {
        let script = daemon.ctl().run(&["completion", shell]);
        assert_eq!(script.code, 0);
        assert!(
            script.text().contains("fluxctl") && script.text().contains("timeline"),
            "{shell}"
        );
    }
}
