//! The cases that break products like this one, as far as they are about commands: what a command
//! writes, how it ends and what it leaves. Each test carries the number of its case.

use std::thread;
use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Exec;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::processes_of;
use fluxvm_replay_tests::processes_with;
use fluxvm_replay_tests::shared;
use serde_json::json;

/// Writes every byte value once, in order, by what every shell can.
const ALL_BYTES: &str =
    "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done";

/// How many processes in the sandbox have this among their arguments. The pattern does not match
/// itself: its last character stands in brackets.
fn inside_with(api: &Api, id: &str, marker: &str) -> u64 {
    let (head, last) = marker.split_at(marker.len() - 1);
    let command = format!(
        "n=0; for f in /proc/[0-9]*/cmdline; do \
         tr '\\0' ' ' <$f 2>/dev/null | grep -q '{head}[{last}]' \
         && n=$((n+1)); done; echo $n"
    );
    api.exec(id, &command)
        .text()
        .trim()
        .parse()
        .expect("a number")
}

#[test]
fn c01_a_child_in_the_background_does_not_hold_the_answer_and_is_accounted_for() {
    let daemon = shared();
    let (api, marker) = (daemon.api(), marker());
    let id = api.create();
    let started = Instant::now();
    let answer = api.exec(&id, &format!("sh -c 'sleep {marker} & echo hi'"));
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    assert_eq!((answer.exit_code, answer.text()), (0, "hi\n"));
    let listed = &answer.json["survivors"]["listed"];
    let named = listed.as_array().is_some_and(|listed| {
        let is_it =
            |one: &serde_json::Value| one["command"].as_str().unwrap_or("").contains(&marker);
        listed.iter().any(is_it)
    });
    assert!(named, "the sleep is listed: {}", answer.json);
    let recorded = api.only_event(&id, "exec");
    assert_eq!(
        recorded["data"]["survivors"]["total"], 1,
        "and the ledger has it: {recorded}"
    );
    assert_eq!(
        inside_with(api, &id, &marker),
        1,
        "it was not ended, because nobody asked for that"
    );
    api.remove(&id);
    assert_eq!(
        processes_with(&marker),
        [0_i32; 0],
        "it ends with its session"
    );
}

/// Runs a command until its time is over. Its children are seen alive first, and gone afterwards.
fn times_out_without_survivors(shape: &str) {
    let daemon = shared();
    let (api, marker) = (daemon.api().clone(), marker());
    let id = api.create();
    let command = shape.replace("MARKER", &marker);
    let started = Instant::now();
    let running = thread::spawn({
        let (api, id) = (api.clone(), id.clone());
        move || (api.exec_within(&id, 1.0, &command), started.elapsed())
    });
    eventually("the child is seen alive on the host", || {
        (!processes_of(&format!("sleep {marker}")).is_empty()).then_some(())
    });
    let (answer, took) = running.join().expect("an answer");
    assert!(answer.timed_out(), "{}", answer.json);
    assert_eq!(answer.exit_code, 124, "{}", answer.json);
    assert!(
        took < Duration::from_millis(1_000 + 2_500),
        "answered after {took:?}"
    );
    assert_eq!(processes_with(&marker), [0_i32; 0], "on the host");
    assert_eq!(inside_with(&api, &id, &marker), 0, "in the sandbox");
    let events = api.events(&id);
    let recorded = events
        .iter()
        .find(|event| event["seq"] == answer.seq)
        .expect("its event");
    assert_eq!(recorded["data"]["timed_out"], true, "{recorded}");
    assert_eq!(api.exec(&id, "echo ok").text(), "ok\n");
    api.remove(&id);
}

#[test]
fn c02_a_timeout_ends_a_child_in_the_background() {
    times_out_without_survivors("sleep MARKER & wait");
}

#[test]
fn c02_a_timeout_ends_a_child_in_a_session_of_its_own() {
    times_out_without_survivors("setsid sleep MARKER & wait");
}

#[test]
fn c02_a_timeout_ends_what_ignores_being_asked() {
    times_out_without_survivors("trap '' TERM; sleep MARKER");
}

#[test]
fn c02_a_timeout_ends_a_daemon_that_forked_twice() {
    times_out_without_survivors(
        "( ( setsid sleep MARKER </dev/null >/dev/null 2>&1 & ) & ); sleep 300",
    );
}

#[test]
fn c03_bytes_arrive_as_they_were_written() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let all: Vec<u8> = (0..=255).collect();
    let cases: [(&str, &[u8]); 4] = [
        (
            r"printf '\342'; sleep 0.05; printf '\202'; sleep 0.05; printf '\254'",
            "€".as_bytes(),
        ),
        (r"printf '\303\050'", b"\xc3\x28"),
        (
            r"printf '\001\001\001\002\002\002'",
            b"\x01\x01\x01\x02\x02\x02",
        ),
        (ALL_BYTES, &all),
    ];
    for (command, bytes) in cases {
        let on_stdout = api.exec(&id, command);
        assert_eq!(
            (on_stdout.stdout.as_slice(), on_stdout.stderr.as_slice()),
            (bytes, &b""[..])
        );
        let on_stderr = api.exec(&id, &format!("{{ {command}; }} >&2"));
        assert_eq!(
            (on_stderr.stdout.as_slice(), on_stderr.stderr.as_slice()),
            (&b""[..], bytes)
        );
        let digest = blake3::hash(bytes).to_hex().to_string();
        let events = api.events(&id);
        let recorded = |answer: &Exec, name: &str| {
            let event = events
                .iter()
                .find(|event| event["seq"] == answer.seq)
                .expect("its event");
            event["data"][name]["blake3"].clone()
        };
        assert_eq!(recorded(&on_stdout, "stdout"), digest.as_str(), "{command}");
        assert_eq!(recorded(&on_stderr, "stderr"), digest.as_str(), "{command}");
    }
    api.remove(&id);
}

#[test]
fn c14_what_a_command_does_to_its_shell_stays_in_that_shell() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let cases = [
        ("cat <<'END'\na $HOME\nb\nEND", 0, "a $HOME\nb\n"),
        ("exit 7", 7, ""),
        ("exec false", 1, ""),
        ("cat", 0, ""),
        ("set -e; false; echo no", 1, ""),
        ("unset PATH; echo $PATH", 0, "\n"),
        ("cd /; kill -9 $$", 137, ""),
        ("exec 1>&- 2>&-; echo no", 1, ""),
        ("trap 'echo bye' EXIT; exit 3", 3, "bye\n"),
    ];
    for (command, code, stdout) in cases {
        let started = Instant::now();
        let answer = api.exec(&id, command);
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{command}: {:?}",
            started.elapsed()
        );
        let ended = (answer.exit_code, answer.text());
        if command.starts_with("exec 1>&-") {
            assert_ne!(
                answer.exit_code, 0,
                "{command}: a closed output is no success"
            );
        } else {
            assert_eq!(ended, (code, stdout), "{command}: {}", answer.json);
        }
        assert_eq!(api.exec(&id, "echo ok").text(), "ok\n", "after {command}");
    }
    api.remove(&id);
}

#[test]
fn c16_twenty_commands_at_once_do_not_mix() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let one = |number: u32| {
        let (api, id) = (api.clone(), id.clone());
        let command = format!(
            "i=0; while [ $i -lt 1000 ]; do echo id-{number}; i=$((i+1)); done; exit {number}"
        );
        thread::spawn(move || (number, api.exec(&id, &command)))
    };
    let running: Vec<_> = (1..=20).map(one).collect();
    for command in running {
        let (number, answer) = command.join().expect("an answer");
        assert_eq!(answer.exit_code, i64::from(number));
        assert!(
            answer.text() == format!("id-{number}\n").repeat(1_000),
            "its own lines only"
        );
    }
    assert_eq!(api.session(&id)["in_flight"], json!([]));
    api.remove(&id);
}

#[test]
fn c17_a_thousand_times_true_and_no_exit_code_is_missing() {
    const TIMES: usize = 1_000;
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let mut stream = api.stream(&id, "", None);
    let mut micros = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let started = Instant::now();
        let answer = api.exec(&id, "true");
        micros.push(started.elapsed().as_micros());
        assert_eq!(answer.exit_code, 0);
        // Its events are there for whoever looks right after the answer.
        let events = format!(
            "{}/{id}/events?after={}",
            fluxvm_replay_tests::SESSIONS,
            answer.seq - 1
        );
        let events = api.get(&events).expect(200);
        assert_eq!(events["ledger"][0]["seq"], answer.seq, "{events}");
    }
    let mut streamed = 0;
    while streamed < TIMES {
        let frame = stream.next_frame();
        if frame.kind() == "exec" {
            assert_eq!(frame.data["data"]["exit_code"], 0, "{frame:?}");
            streamed += 1;
        }
    }
    // The listing is read in pages, and holds each event once.
    let listed = api.events(&id);
    let seqs: Vec<_> = listed.iter().map(|event| event["seq"].as_u64()).collect();
    assert!(
        seqs.is_sorted() && listed.len() == 2 + 2 * TIMES,
        "{seqs:?}"
    );
    let newest = format!(
        "{}/{id}/events?after={}",
        fluxvm_replay_tests::SESSIONS,
        seqs[TIMES].expect("a number")
    );
    let newest = api.get(&newest).expect(200);
    assert_eq!(
        newest["ledger"].as_array().map(Vec::as_slice),
        listed.get(TIMES + 1..)
    );
    micros.sort_unstable();
    let at = |percent: usize| micros[(TIMES - 1) * percent / 100];
    println!(
        "exec true, n {TIMES}: p50 {} µs, p95 {} µs, p99 {} µs",
        at(50),
        at(95),
        at(99)
    );
    api.remove(&id);
}

#[test]
fn c18_line_ends_and_their_absence_are_kept() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let cases = [
        (r"printf 'a\n\n\nb'", "a\n\n\nb"),
        ("printf x", "x"),
        (r"printf 'a\r\nb\r\n'", "a\r\nb\r\n"),
        (r"printf '\n'", "\n"),
        (r"printf ' \t '", " \t "),
        ("true", ""),
    ];
    for (command, bytes) in cases {
        assert_eq!(api.exec(&id, command).text(), bytes, "{command}");
        let on_stderr = api.exec(&id, &format!("{{ {command}; }} >&2"));
        assert_eq!(on_stderr.stderr, bytes.as_bytes(), "{command} on stderr");
    }
    api.remove(&id);
}

#[test]
fn c20_what_cannot_be_run_is_a_typed_answer() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let ends = |command: &str, code: i64| {
        let answer = api.exec(&id, command);
        assert_eq!(
            answer.exit_code,
            code,
            "{command:.60}: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
        answer
    };
    ends("/no/such/program", 127);
    ends("no-such-program", 127);
    ends("/tmp", 126);
    ends("echo x >plain; chmod 644 plain; ./plain", 126);
    ends(
        "/bin/true \"$(head -c 204800 /dev/zero | tr '\\0' x)\"",
        126,
    );
    assert_eq!(ends("printf %s 'a\nb'", 0).text(), "a\nb");
    let many = "i=0; while [ $i -lt 10000 ]; do export V$i=x; i=$((i+1)); done; env | grep -c ^V";
    assert_eq!(ends(many, 0).text(), "10000\n");

    let refused = |command: &str| {
        let answer = api.try_exec(&id, &json!({"command": command}));
        let code = answer.error(400);
        assert_eq!(answer.json()["field"], "command", "{command:.60}");
        code
    };
    for command in ["", " \t\n", "a\0b", &"x".repeat(200 * 1024)] {
        assert_eq!(refused(command), "invalid_field", "{command:.60}");
    }
    let large = json!({"command": "x".repeat(2 * 1024 * 1024)});
    let _ = api.try_exec(&id, &large).error(413);
    assert_eq!(
        api.session(&id)["in_flight"],
        json!([]),
        "no phantom that stays running"
    );
    assert_eq!(api.exec(&id, "echo ok").text(), "ok\n");
    let kinds = api.kinds(&id);
    let count = |kind: &str| kinds.iter().filter(|known| *known == kind).count();
    assert_eq!(
        count("exec.started"),
        count("exec"),
        "every start has its end: {kinds:?}"
    );
    api.remove(&id);
}
