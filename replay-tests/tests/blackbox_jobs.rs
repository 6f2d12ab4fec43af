//! The cases that break products like this one, as far as they are about output as it comes, jobs and
//! standard input. Each test carries the number of its case.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::processes_with;
use fluxvm_replay_tests::shared;
use fluxvm_replay_tests::status_kib;
use serde_json::json;

/// Writes every byte value once, in order, by what every shell can.
const ALL_BYTES: &str =
    "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done";

/// What the commands of C03 write, with what it is.
fn odd_outputs() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (
            "printf '\\342'; sleep 0.05; printf '\\202'; sleep 0.05; printf '\\254'",
            "\u{20ac}".as_bytes().to_vec(),
        ),
        ("printf '\\303\\050'", b"\xc3\x28".to_vec()),
        (
            "printf '\\001\\001\\001\\002\\002\\002'",
            b"\x01\x01\x01\x02\x02\x02".to_vec(),
        ),
        (ALL_BYTES, (0..=255).collect()),
        ("printf 'a\\n\\n\\nb'", b"a\n\n\nb".to_vec()),
        ("printf 'a\\r\\nb\\r\\n'", b"a\r\nb\r\n".to_vec()),
        ("printf x", b"x".to_vec()),
        (":", Vec::new()),
    ]
}

#[test]
fn c02_a_jobs_time_limit_leaves_nobody() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for shape in [
        "sleep MARKER & wait",
        "setsid sleep MARKER & wait",
        "trap '' TERM; sleep MARKER; sleep MARKER",
        "(setsid sh -c 'sleep MARKER & sleep MARKER' &) ; sleep MARKER",
    ] {
        let marker = marker();
        let command = shape.replace("MARKER", &marker);
        let job = api.start_job(&id, &json!({"command": command, "timeout_seconds": 1}));
        eventually("a child is seen alive", || {
            (!processes_with(&marker).is_empty()).then_some(())
        });
        let output = api.follow_job(&id, &job);
        let end = output.end.expect("an end");
        assert_eq!(
            (&end["state"], &end["exit_code"]),
            (&json!("timed_out"), &json!(124)),
            "{shape}"
        );
        assert!(processes_with(&marker).is_empty(), "{shape}");
    }
    api.remove(&id);
}

#[test]
fn c03_c18_every_byte_comes_through_as_it_was_written_on_every_path() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    for (command, expected) in odd_outputs() {
        for to_stderr in [false, true] {
            let command = match to_stderr {
                true => format!("{{ {command}; }} >&2"),
                false => command.to_owned(),
            };
            let streamed = api.exec_stream(&id, &json!({"command": command}));
            let job = api.background(&id, &command);
            let followed = api.follow_job(&id, &job);
            let words = ["agent", "exec", &id, "--stream", "--", &command];
            let ran = daemon.ctl().run(&words);
            let blocking = api.exec(&id, &command);
            for (way, stdout, stderr) in [
                ("exec/stream", &streamed.stdout, &streamed.stderr),
                ("job", &followed.stdout, &followed.stderr),
                ("fluxctl", &ran.stdout, &ran.stderr),
                ("exec", &blocking.stdout, &blocking.stderr),
            ] {
                let (full, empty) = match to_stderr {
                    true => (stderr, stdout),
                    false => (stdout, stderr),
                };
                assert_eq!(full, &expected, "{way}: {command}");
                assert!(empty.is_empty(), "{way}: {command}");
            }
        }
    }
    daemon.remove_everything();
}

#[test]
fn c03_text_is_never_torn_at_the_edge_of_a_frame() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    // 3-byte characters that no power of two divides, for several frames.
    let command = "i=0; while [ $i -lt 200 ]; do printf '%01000d' 0 | sed 's/0/\u{20ac}/g'; \
                   i=$((i+1)); done";
    let path = format!("{SESSIONS}/{id}/exec/stream");
    let body = json!({"command": command}).to_string();
    let mut stream = api.event_stream("POST", &path, &[], body.as_bytes());
    let mut text = String::new();
    while let Some(frame) = stream.next_or_end() {
        text.push_str(frame.data["output"].as_str().unwrap_or_default());
    }
    assert!(
        text == "\u{20ac}".repeat(200_000),
        "{} characters",
        text.chars().count()
    );
    api.remove(&id);
}

fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u64;
    let mut all = Vec::with_capacity(count + 8);
    while all.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(count);
    all
}

/// What the tool of that name says of them, on this side.
fn sha256sum(bytes: &[u8]) -> Vec<u8> {
    let mut local = std::process::Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sha256sum");
    let mut stdin = local.stdin.take().expect("piped");
    stdin.write_all(bytes).expect("written");
    drop(stdin);
    local.wait_with_output().expect("ended").stdout
}

#[test]
fn c05_what_a_command_reads_is_what_was_sent_whatever_its_size() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    for size in [0, 1, 64 * 1024, 65 << 20, 200 << 20] {
        let input = bytes(size);
        let ran = api.exec_reading(&id, "sha256sum; exit 6", &input);
        assert_eq!(
            (&ran.stdout, ran.exit_code),
            (&sha256sum(&input), 6),
            "{size}"
        );
        let recorded = api.events(&id).pop().expect("an event");
        assert_eq!(
            recorded["data"]["stdin_bytes"], size,
            "its size is recorded"
        );
    }
    let peak = status_kib(daemon.pid(), "VmHWM");
    assert!(
        peak < 160 * 1024,
        "the daemon needs little memory for it: {peak} KiB"
    );
    daemon.remove_everything();
}

#[test]
fn c05_a_command_that_stops_reading_is_a_result() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let input = bytes(65 << 20);
    let began = Instant::now();
    let ran = api.exec_reading(&id, "head -c1 | wc -c", &input);
    assert_eq!((ran.text().trim(), ran.exit_code), ("1", 0));
    let ran = api.exec_reading(&id, "exit 9", &input);
    assert_eq!(ran.exit_code, 9);
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(api.exec(&id, "echo ok").text(), "ok\n");
    api.remove(&id);
}

#[test]
fn c05_fluxctl_passes_its_own_input_on() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let input = bytes(3 << 20);
    for words in [
        &["agent", "exec", &id, "--stdin", "--", "wc -c; exit 4"][..],
        &[
            "agent",
            "exec",
            &id,
            "--stdin",
            "--stream",
            "--",
            "wc -c; exit 4",
        ],
    ] {
        let mut child = daemon
            .ctl()
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fluxctl runs");
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(&input)
            .expect("written");
        let ended = child.wait_with_output().expect("fluxctl ends");
        let text = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(
            (text, ended.status.code()),
            (input.len().to_string(), Some(4)),
            "{errors}"
        );
    }
    daemon.remove_everything();
}

#[test]
fn c06_a_hundred_mebibytes_reach_a_fast_reader_whole_and_memory_stays_bounded() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let command = "head -c 104857600 /dev/urandom >big; cat big; rm big";
    let output = api.exec_stream(&id, &json!({"command": command, "timeout_seconds": 120}));
    assert_eq!(output.stdout.len(), 100 << 20);
    assert_eq!(output.exit_code(), Some(0));
    assert_eq!(output.end.as_ref().expect("end")["dropped_bytes"], 0);
    let recorded = api.only_event(&id, "job.exit");
    let digest = blake3::hash(&output.stdout).to_hex().to_string();
    assert_eq!(recorded["data"]["stdout"]["blake3"], digest.as_str());
    let line = api.exec_stream(
        &id,
        &json!({"command": "head -c 10485760 /dev/zero | tr '\\0' x"}),
    );
    assert!(line.stdout == vec![b'x'; 10 << 20], "one line of 10 MiB");
    daemon.remove_everything();
}

#[test]
fn c06_a_slow_reader_holds_back_nobody_and_loses_nothing() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let before = status_kib(daemon.pid(), "VmRSS");
    let body = json!({"command": "head -c 104857600 /dev/zero | tr '\\0' y",
        "max_output_bytes": 209_715_200});
    let job = api.start_job(&id, &body);
    // A reader that takes a kibibyte and then nothing for as long as the job runs.
    let address = api.url().trim_start_matches("http://").to_owned();
    let mut slow = TcpStream::connect(address).expect("a connection");
    let token = api.token().unwrap_or_default();
    let path = format!("{}/stream", Api::job_path(&id, &job));
    write!(
        slow,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .expect("asked");
    let mut some = [0; 1024];
    slow.read_exact(&mut some).expect("a kibibyte");
    let fast = api.follow_job(&id, &job);
    assert!(
        fast.stdout == vec![b'y'; 100 << 20],
        "{} bytes",
        fast.stdout.len()
    );
    let after = status_kib(daemon.pid(), "VmRSS");
    let recorded = api.only_event(&id, "job.exit");
    assert_eq!(recorded["data"]["stdout"]["bytes"], 100 << 20);
    println!("resident before {before} KiB, after {after} KiB");
    // It goes on where it was: what it did not take waits on the disk.
    let late = api.follow_job(&id, &job);
    assert!(late.stdout == fast.stdout);
    daemon.remove_everything();
}

#[test]
fn c16_twenty_at_once_do_not_mix() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let workers: Vec<_> = (0..20)
        .map(|nth| {
            let (api, id) = (api.clone(), id.clone());
            thread::spawn(move || {
                let command = format!(
                    "i=0; while [ $i -lt 1000 ]; do echo id{nth}; i=$((i+1)); done; exit {nth}"
                );
                let job = api.background(&id, &command);
                // One half is followed, the other polled.
                let (stdout, code) = if nth < 10 {
                    let output = api.follow_job(&id, &job);
                    let code = output.exit_code();
                    (output.stdout, code)
                } else {
                    let page = eventually("it ends", || {
                        let page = api.job(&id, &job, "?wait_ms=5000");
                        (page["state"] != "running").then(|| api.job(&id, &job, ""))
                    });
                    let text = page["output"].as_str().expect("text").as_bytes().to_vec();
                    (text, page["exit_code"].as_i64())
                };
                let expected = format!("id{nth}\n").repeat(1000);
                assert!(stdout == expected.as_bytes(), "{nth}");
                assert_eq!(code, Some(nth));
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker");
    }
    daemon.remove_everything();
}

#[test]
fn c16_twenty_streamed_at_once_do_not_mix() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let workers: Vec<_> = (0..20)
        .map(|nth| {
            let (api, id) = (daemon.api().clone(), id.clone());
            thread::spawn(move || {
                let command = format!(
                    "i=0; while [ $i -lt 1000 ]; do echo id{nth}; i=$((i+1)); done; exit {nth}"
                );
                let output = api.exec_stream(&id, &json!({"command": command}));
                assert!(
                    output.stdout == format!("id{nth}\n").repeat(1000).as_bytes(),
                    "{nth}"
                );
                assert_eq!(output.exit_code(), Some(nth));
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker");
    }
    daemon.remove_everything();
}

#[test]
fn c17_a_thousand_streamed_commands_each_have_their_exit_code() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let mut took: Vec<Duration> = (0..1000)
        .map(|_| {
            let began = Instant::now();
            let output = api.exec_stream(&id, &json!({"command": "true"}));
            assert_eq!(output.exit_code(), Some(0));
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    println!("streamed true: p50 {:?}, p99 {:?}", took[500], took[990]);
    daemon.remove_everything();
}

#[test]
fn c20_what_cannot_run_is_a_typed_error_or_an_exit_code_and_nothing_stays_running() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    assert_eq!(api.exec(&id, "echo >plain").exit_code, 0);
    for (command, code) in [
        ("no-such-program", 127),
        ("/tmp", 126),
        ("./plain", 126),
        ("printf 'a\nb'", 0),
    ] {
        let output = api.exec_stream(&id, &json!({"command": command}));
        assert_eq!(output.exit_code(), Some(code), "{command}");
    }
    let path = format!("{SESSIONS}/{id}/jobs");
    for command in ["", "  ", "a\0b", &"x".repeat(200 * 1024)] {
        for path in [path.clone(), format!("{SESSIONS}/{id}/exec/stream")] {
            let refused = api.post(&path, &json!({"command": command}));
            assert_eq!(refused.error(400), "invalid_field");
        }
    }
    let unknown = api.post(&path, &json!({"command": "true", "shell": "bash"}));
    assert_eq!(unknown.error(400), "unknown_field");
    // The folder that commands start in is gone: the guest cannot start anything.
    assert_eq!(
        api.exec(
            &id,
            "rm -rf /workspace 2>/dev/null; rmdir \"$PWD\" 2>/dev/null; true"
        )
        .exit_code,
        0
    );
    let answer = api.post(&path, &json!({"command": "true"}));
    if answer.status == 400 {
        assert_eq!(answer.error(400), "spawn_failed");
    } else {
        let _ = answer.expect(201);
    }
    eventually("nothing stays running", || {
        let running = api.jobs(&id).iter().any(|job| job["state"] == "running");
        (!running).then_some(())
    });
    assert_eq!(api.session(&id)["in_flight"], json!([]));
    daemon.remove_everything();
}
