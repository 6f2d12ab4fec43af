//! What a job reads while it runs: how much there may be, what a repeat does, and what becomes of the job when
//! whoever feeds it, or the daemon between them, is gone.

use std::io::Read;
use std::io::Write;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

use fluxvm_replay_tests::Answer;
use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;
use sha2::Digest;
use sha2::Sha256;

/// Bytes that no shift maps onto themselves.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
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

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Posts bytes to a job's standard input.
fn pour(api: &Api, id: &str, job: &str, query: &str, bytes: &[u8]) -> Answer {
    let path = format!("{}/stdin{query}", Api::job_path(id, job));
    let headers = [("content-type", "application/octet-stream")];
    api.send("POST", &path, &headers, bytes)
}

fn ended(api: &Api, id: &str, job: &str) -> Value {
    eventually("the job has ended", || {
        let page = api.job(id, job, "?wait_ms=5000");
        (page["state"] != "running").then_some(page)
    })
}

#[test]
fn however_much_comes_in_one_body_is_read_whole_and_is_one_pair_of_events() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    for size in [0, 1, 64 * 1024, 65 << 20] {
        let job = api.start_job(&id, &json!({"command": "sha256sum; exit 6", "stdin": true}));
        let input = bytes(size);
        let taken = pour(api, &id, &job, "?offset=0&close=true", &input).expect(200);
        assert_eq!(
            (&taken["written"], &taken["next_offset"], &taken["closed"]),
            (&json!(size), &json!(size), &json!(true))
        );
        let page = ended(api, &id, &job);
        let output = page["output"].as_str().expect("text");
        assert_eq!(output, format!("{}  -\n", sha256(&input)), "C05 {size}");
        assert_eq!(
            (&page["exit_code"], &page["stdin_bytes"]),
            (&json!(6), &json!(size))
        );
    }
    let kinds = api.kinds(&id);
    let writes = kinds.iter().filter(|kind| kind.starts_with("job.stdin"));
    assert_eq!(writes.count(), 2 * 4, "{kinds:?}");
    let outcome = api
        .events(&id)
        .into_iter()
        .rfind(|event| event["kind"] == "job.stdin");
    assert_eq!(outcome.expect("one")["data"]["taken"], 65 << 20);
    api.remove(&id);
}

#[test]
fn a_write_with_its_offset_is_written_once_and_one_behind_a_gap_is_refused() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.start_job(&id, &json!({"command": "cat", "stdin": true}));
    for (text, offset, written, next) in [
        ("abc", 0, 3, 3),
        ("abc", 0, 3, 3),
        ("bcd", 1, 3, 4),
        ("", 4, 0, 4),
    ] {
        let body = json!({"text": text, "offset": offset});
        let taken = api.write_to_job(&id, &job, &body).expect(200);
        assert_eq!(
            (&taken["written"], &taken["next_offset"]),
            (&json!(written), &json!(next)),
            "{text} at {offset}"
        );
    }
    let gap = api.write_to_job(&id, &job, &json!({"text": "f", "offset": 5}));
    assert_eq!(
        (gap.error(400).as_str(), &gap.json()["field"]),
        ("invalid_field", &json!("offset"))
    );
    assert!(
        gap.json()["error"]
            .as_str()
            .expect("words")
            .contains("took 4 bytes")
    );
    let gap = pour(api, &id, &job, "?offset=9", b"x");
    assert_eq!(gap.json()["field"], "offset");
    let plain = api
        .write_to_job(&id, &job, &json!({"text": "e"}))
        .expect(200);
    assert_eq!(
        plain["next_offset"], 5,
        "whoever does not say where is told where it is"
    );
    let end = pour(api, &id, &job, "?offset=3&close=true", b"def").expect(200);
    assert_eq!((&end["written"], &end["closed"]), (&json!(3), &json!(true)));
    assert_eq!(api.follow_job(&id, &job).stdout, b"abcdef");
    let late = pour(api, &id, &job, "?offset=3&close=true", b"def");
    assert_eq!(late.error(409), "job_ended");
    api.remove(&id);
}

#[test]
fn a_body_is_answered_as_soon_as_the_job_has_ended() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.start_job(
        &id,
        &json!({"command": "head -c1 >/dev/null; exit 2", "stdin": true}),
    );
    let answer = pour(api, &id, &job, "?offset=0", &bytes(8 << 20));
    assert!(["job_ended", "stdin_closed"].contains(&answer.error(409).as_str()));
    assert_eq!(ended(api, &id, &job)["exit_code"], 2);
    api.remove(&id);
}

#[test]
fn a_job_whose_input_nobody_feeds_any_more_is_ended_as_cut() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let body = |lost: u64| {
        json!({"command": "cat; sleep 300", "stdin": true, "stdin_lost_seconds": lost,
            "timeout_seconds": 250})
    };
    let job = daemon.api().start_job(&id, &body(1));
    let _ = daemon
        .api()
        .write_to_job(&id, &job, &json!({"text": "half"}))
        .expect(200);
    let output = daemon.api().follow_job(&id, &job);
    let end = output.end.clone().expect("an end");
    assert_eq!(
        (&end["state"], &end["stdin_cut"]),
        (&json!("killed"), &json!(true))
    );
    assert_eq!(output.stdout, b"half");
    let exit = daemon.api().only_event(&id, "job.exit");
    assert_eq!(exit["data"]["stdin_cut"], true, "{exit}");

    // One that was closed is whole, however long it runs; one whose daemon was killed is given time anew.
    let whole = daemon.api().start_job(&id, &body(1));
    let close = json!({"text": "all", "close": true});
    let _ = daemon.api().write_to_job(&id, &whole, &close).expect(200);
    let job = daemon.api().start_job(&id, &body(2));
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let page = ended(daemon.api(), &id, &job);
    assert_eq!(
        (&page["state"], &page["stdin_cut"]),
        (&json!("killed"), &json!(true))
    );
    assert_eq!(daemon.api().job(&id, &whole, "")["state"], "running");
    for bad in [json!({"command": "true", "stdin_lost_seconds": 5}), body(0)] {
        let refused = daemon.api().post(&format!("{SESSIONS}/{id}/jobs"), &bad);
        assert_eq!(refused.json()["field"], "stdin_lost_seconds", "{bad}");
    }
    daemon.remove_everything();
}

#[test]
fn what_a_streamed_command_was_given_to_read_outlives_the_daemon() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let text = "0123456789abcdef".repeat(30_000);
    let command = "head -c 7 >/dev/null; while [ ! -e go ]; do sleep 0.02; done; sha256sum; exit 4";
    let body = json!({"command": command, "stdin": text, "timeout_seconds": 200}).to_string();
    let path = format!("{SESSIONS}/{id}/exec/stream");
    let mut stream = daemon
        .api()
        .event_stream("POST", &path, &[], body.as_bytes());
    let start = stream.next_frame();
    let job = start.data["job"].as_str().expect("a job").to_owned();
    daemon.kill9();
    let daemon = Daemon::start(&state);
    assert_eq!(daemon.api().exec(&id, "touch go").exit_code, 0);
    let output = daemon.api().follow_job(&id, &job);
    let rest = sha256(&text.as_bytes()[7..]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("{rest}  -\n")
    );
    assert_eq!(output.exit_code(), Some(4));
    let left = state
        .root()
        .join("jobs")
        .join(&id)
        .join(format!("{job}.given"));
    eventually("what it was given is removed", || {
        (!left.exists()).then_some(())
    });
    daemon.remove_everything();
}

/// `fluxctl agent exec --stream --stdin`, with both ends of it.
fn piped(daemon: &Daemon, id: &str, command: &str) -> Child {
    let words = [
        "agent",
        "exec",
        id,
        "--stream",
        "--stdin",
        "--timeout",
        "200",
        "--",
        command,
    ];
    let mut fluxctl = daemon.ctl().command(&words);
    fluxctl
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    fluxctl.spawn().expect("fluxctl runs")
}

#[test]
fn what_is_piped_into_a_streamed_command_arrives_once_through_kills_of_the_daemon() {
    let state = State::new();
    let mut daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let mut child = piped(&daemon, &id, "cat >got; sha256sum <got; exit 3");
    let mut pipe = child.stdin.take().expect("piped");
    let input = bytes(48 << 20);
    let (first, rest) = input.split_at(20 << 20);
    let (second, last) = rest.split_at(5);
    pipe.write_all(first).expect("written");
    let size_of = |daemon: &Daemon| -> usize {
        let told = daemon
            .api()
            .exec(&id, "stat -c %s got 2>/dev/null || echo 0");
        told.text().trim().parse().expect("a size")
    };
    eventually("some of it has arrived", || {
        (size_of(&daemon) > 1 << 20).then_some(())
    });
    daemon.kill9();
    daemon = Daemon::start(&state);
    // A few bytes, and nothing for a while: nobody waits for more to find out that the daemon is another.
    pipe.write_all(second).expect("written");
    let wanted = first.len() + second.len();
    eventually("all of that has arrived", || {
        (size_of(&daemon) == wanted).then_some(())
    });
    daemon.kill9();
    daemon = Daemon::start(&state);
    pipe.write_all(last).expect("written");
    drop(pipe);
    let ended = child.wait_with_output().expect("fluxctl ends");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert_eq!(stdout, format!("{}  -\n", sha256(&input)), "{stderr}");
    assert_eq!(ended.status.code(), Some(3), "{stderr}");
    daemon.remove_everything();
}

#[test]
fn a_streamed_command_is_ended_as_cut_when_fluxctl_is_killed() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let mut child = piped(&daemon, &id, "echo up; cat >/dev/null; echo whole");
    let mut up = [0; 3];
    child
        .stdout
        .take()
        .expect("piped")
        .read_exact(&mut up)
        .expect("it runs");
    child.kill().expect("killed");
    child.wait().expect("ended");
    let job = daemon.api().jobs(&id)[0]["job"]
        .as_str()
        .expect("id")
        .to_owned();
    let page = ended(daemon.api(), &id, &job);
    assert_eq!(
        (&page["output"], &page["stdin_cut"]),
        (&json!("up\n"), &json!(true)),
        "{page}"
    );
    daemon.remove_everything();
}

#[test]
fn a_command_that_ends_is_answered_whatever_its_input_does() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    for (words, code) in [
        (&["--stdin", "--", "exit 7"][..], 7),
        (&["--stdin", "--timeout", "1", "--", "cat"], 124),
        (&["--stdin", "--stream", "--", "exit 8"], 8),
    ] {
        let words = [&["agent", "exec", &id], words].concat();
        let mut fluxctl = daemon.ctl().command(&words);
        let mut child = fluxctl.stdin(Stdio::piped()).spawn().expect("fluxctl runs");
        // Held open for as long as fluxctl runs.
        let open = child.stdin.take();
        assert_eq!(child.wait().expect("ended").code(), Some(code), "{words:?}");
        drop(open);
    }
    let mut endless = Command::new("yes")
        .stdout(Stdio::piped())
        .spawn()
        .expect("yes runs");
    let words = ["agent", "exec", &id, "--stdin", "--", "head -c 4; exit 5"];
    let mut fluxctl = daemon.ctl().command(&words);
    let ended = fluxctl
        .stdin(endless.stdout.take().expect("piped"))
        .output()
        .expect("fluxctl runs");
    assert_eq!(
        (ended.status.code(), &ended.stdout[..]),
        (Some(5), &b"y\ny\n"[..])
    );
    // It holds the pipe's other end too.
    drop(fluxctl);
    endless.wait().expect("it ends with its reader");
    daemon.remove_everything();
}
