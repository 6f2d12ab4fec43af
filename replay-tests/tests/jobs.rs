//! Jobs through the host API: started once, read from any byte, written to, signalled, and on record.

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::JobOutput;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::processes_with;
use fluxvm_replay_tests::shared;
use serde_json::Value;
use serde_json::json;

/// Waits for a job's end by polling as long as the daemon lets one wait.
fn ended(api: &Api, id: &str, job: &str) -> Value {
    eventually("the job has ended", || {
        let page = api.job(id, job, "?wait_ms=5000");
        (page["state"] != "running").then_some(page)
    })
}

#[test]
fn a_job_is_listed_read_and_recorded() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.background(&id, "echo out; echo err >&2; exit 7");
    let output = api.follow_job(&id, &job);
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(output.exit_code(), Some(7));
    let page = api.job(&id, &job, "");
    assert_eq!(
        (
            &page["state"],
            &page["exit_code"],
            &page["output"],
            &page["stderr"]
        ),
        (
            &json!("exited"),
            &json!(7),
            &json!("out\n"),
            &json!("err\n")
        )
    );
    assert_eq!((&page["eof"], &page["more"]), (&json!(true), &json!(false)));
    let listed = api.jobs(&id);
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (&listed[0]["job"], &listed[0]["exit_code"]),
        (&json!(job), &json!(7))
    );
    let started = api.only_event(&id, "job.start");
    let exit = api.only_event(&id, "job.exit");
    assert_eq!(exit["data"]["op"], started["seq"]);
    let digest = blake3::hash(b"out\n").to_hex().to_string();
    assert_eq!(exit["data"]["stdout"]["blake3"], digest.as_str());
    assert_eq!(
        exit["data"]["stdout"]["blob"],
        digest.as_str(),
        "it is kept"
    );
    assert_eq!(api.session(&id)["usage"]["jobs"], 1);
    api.remove(&id);
    let path = Api::job_path(&id, &job);
    assert_eq!(api.get(&path).error(409), "session_not_running");
}

#[test]
fn a_page_ends_where_the_next_begins_and_a_wait_ends_with_news() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.background(&id, "seq 1 60000; exec sleep 300");
    let mut read = Vec::new();
    let mut offset = 0;
    let whole: String = (1..=60_000).map(|n| format!("{n}\n")).collect();
    while read.len() < whole.len() {
        let page = api.job(&id, &job, &format!("?offset={offset}&wait_ms=10000"));
        let text = page["output"].as_str().expect("text");
        assert!(!text.is_empty(), "a wait ends with news: {page}");
        read.extend_from_slice(text.as_bytes());
        offset = page["next_offset"].as_u64().expect("an offset");
    }
    assert!(read == whole.as_bytes(), "{} bytes", read.len());
    let stream = format!("{}/stream", Api::job_path(&id, &job));
    for (place, field) in [("999999999:0", "Last-Event-ID"), ("x", "Last-Event-ID")] {
        let headers = [("last-event-id", place)];
        let refused = api.send("GET", &stream, &headers, b"");
        assert_eq!(refused.error(400), "invalid_field");
        assert_eq!(refused.json()["field"], field);
    }
    let behind = api.get(&format!(
        "{}?offset={}",
        Api::job_path(&id, &job),
        offset + 1
    ));
    assert_eq!(behind.error(400), "invalid_field");
    let too_long = api.get(&format!("{}?wait_ms=25001", Api::job_path(&id, &job)));
    assert_eq!(too_long.error(400), "invalid_field");
    api.remove(&id);
}

#[test]
fn a_job_reads_what_is_written_to_it_and_the_ledger_has_sizes_only() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.start_job(&id, &json!({"command": "cat; echo end", "stdin": true}));
    let secret = "do-not-record-me";
    let written = api
        .write_to_job(&id, &job, &json!({"text": secret}))
        .expect(200);
    assert_eq!(
        (&written["written"], &written["closed"]),
        (&json!(16), &json!(false))
    );
    let body = json!({"data_base64": "/wA=", "close": true});
    let written = api.write_to_job(&id, &job, &body).expect(200);
    assert_eq!(
        (&written["written"], &written["closed"]),
        (&json!(2), &json!(true))
    );
    let output = api.follow_job(&id, &job);
    assert_eq!(
        output.stdout,
        [secret.as_bytes(), b"\xff\x00end\n"].concat()
    );
    for event in api.events(&id) {
        let is_input = event["kind"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("job.stdin"));
        assert!(!is_input || !event.to_string().contains(secret), "{event}");
    }
    assert_eq!(
        api.write_to_job(&id, &job, &json!({"text": "more"}))
            .error(409),
        "job_ended"
    );
    let without = api.background(&id, "sleep 300");
    let refused = api.write_to_job(&id, &without, &json!({"text": "x"}));
    assert_eq!(refused.error(409), "stdin_closed");
    let large = json!({"text": "x".repeat(48 * 1024 + 1)});
    assert_eq!(
        api.write_to_job(&id, &without, &large).error(400),
        "invalid_field"
    );
    assert_eq!(
        api.write_to_job(&id, &without, &json!({})).error(400),
        "invalid_field"
    );
    let nobody = "00000000-0000-4000-8000-000000000000";
    assert_eq!(
        api.write_to_job(&id, nobody, &json!({"text": "x"}))
            .error(404),
        "job_not_found"
    );
    api.remove(&id);
}

#[test]
fn a_signal_reaches_the_whole_tree_and_says_how_the_job_ended() {
    let daemon = shared();
    let (api, marker) = (daemon.api(), marker());
    let id = api.create();
    let job = api.background(
        &id,
        &format!("setsid sleep {marker} & sleep {marker} & wait"),
    );
    eventually("both run", || {
        (processes_with(&marker).len() >= 2).then_some(())
    });
    let sent = api.delete(&Api::job_path(&id, &job)).expect(200);
    assert_eq!(
        (&sent["signal"], &sent["delivered"]),
        (&json!("TERM"), &json!(true))
    );
    let page = ended(api, &id, &job);
    assert_eq!(
        (&page["state"], &page["exit_code"]),
        (&json!("killed"), &json!(143))
    );
    eventually("nobody is left", || {
        processes_with(&marker).is_empty().then_some(())
    });
    assert_eq!(
        api.delete(&Api::job_path(&id, &job)).error(409),
        "job_ended"
    );

    let trap = "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done";
    let job = api.background(&id, trap);
    let mut stream = api.job_stream(&id, &job, None);
    let mut output = JobOutput::default();
    while output.stdout.is_empty() {
        output.take(&stream.next_frame());
    }
    let path = Api::job_path(&id, &job);
    assert_eq!(
        api.delete(&format!("{path}?signal=NOPE")).error(400),
        "invalid_field"
    );
    let sent = api.delete(&format!("{path}?signal=USR1")).expect(200);
    assert_eq!(sent["signal"], "USR1");
    output.take_all(stream);
    assert_eq!(output.stdout, b"ready\ncaught\n");
    assert_eq!(output.exit_code(), Some(3));
    assert_eq!(output.end.expect("an end")["state"], "exited");

    let job = api.start_job(
        &id,
        &json!({"command": "sleep 300", "timeout_seconds": 0.3}),
    );
    let page = ended(api, &id, &job);
    assert_eq!(
        (&page["state"], &page["exit_code"]),
        (&json!("timed_out"), &json!(124))
    );
    let job = api.background(&id, "kill -9 $$");
    let page = ended(api, &id, &job);
    assert_eq!(
        (&page["state"], &page["signal"]),
        (&json!("signaled"), &json!(9))
    );
    api.remove(&id);
}

#[test]
fn a_key_starts_one_job_however_often_it_is_sent() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let path = format!("{SESSIONS}/{id}/jobs");
    let key = [("idempotency-key", "one-job")];
    let body = json!({"command": "echo ran >>ran"}).to_string();
    let first = api.send("POST", &path, &key, body.as_bytes());
    let again = api.send("POST", &path, &key, body.as_bytes());
    assert_eq!(first.expect(201)["job"], again.expect(201)["job"]);
    assert_eq!(again.headers["idempotent-replayed"], "true");
    let other = api.send("POST", &path, &key, br#"{"command":"true"}"#);
    assert_eq!(other.error(422), "idempotency_key_reused");
    let job = first.json()["job"].as_str().expect("id").to_owned();
    let _ = ended(api, &id, &job);
    assert_eq!(api.exec(&id, "cat ran").text(), "ran\n");
    api.remove(&id);
}

#[test]
fn a_streamed_command_is_a_job_with_its_start_its_output_and_its_end() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let path = format!("{SESSIONS}/{id}/exec/stream");
    let body = json!({"command": "echo out; echo err >&2; exit 9"}).to_string();
    let mut stream = api.event_stream("POST", &path, &[], body.as_bytes());
    let start = stream.next_frame();
    assert_eq!(
        (start.event.as_str(), start.place.as_deref()),
        ("start", Some("0:0"))
    );
    let job = start.data["job"].as_str().expect("a job").to_owned();
    let mut output = JobOutput::default();
    output.take_all(stream);
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    assert_eq!(output.place.as_deref(), Some("4:4"));
    let end = output.end.as_ref().expect("an end");
    assert_eq!(
        (&end["exit_code"], &end["state"]),
        (&json!(9), &json!("exited"))
    );
    let mut resumed = JobOutput {
        stdout: b"ou".to_vec(),
        ..JobOutput::default()
    };
    resumed.take_all(api.job_stream(&id, &job, Some("2:0")));
    assert_eq!(resumed.stdout, b"out\n", "it goes on at the place");
    let reading = json!({"command": "wc -c", "stdin": "x".repeat(100_000)});
    let output = api.exec_stream(&id, &reading);
    assert_eq!(
        (&output.stdout[..], output.exit_code()),
        (&b"100000\n"[..], Some(0))
    );
    let slow = json!({"command": "sleep 300", "timeout_seconds": 0.2});
    let end = api.exec_stream(&id, &slow).end.expect("an end");
    assert_eq!(
        (&end["exit_code"], &end["state"]),
        (&json!(124), &json!("timed_out"))
    );
    let bad = api.send(
        "GET",
        &format!("{}/stream", Api::job_path(&id, &job)),
        &[("last-event-id", "7")],
        &[],
    );
    assert_eq!(bad.error(400), "invalid_field");
    api.remove(&id);
}

#[test]
fn a_key_runs_one_streamed_command_and_a_retry_follows_the_same_from_its_beginning() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let path = format!("{SESSIONS}/{id}/exec/stream");
    let ask = |command: &str| {
        let body = json!({"command": command}).to_string();
        api.send("POST", &path, &[("idempotency-key", "k")], body.as_bytes())
    };
    let command = "echo ran | tee -a ran; exit 3";
    let (first, again) = (ask(command), ask(command));
    let frames = |answer: &fluxvm_replay_tests::Answer| {
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.body.clone()).expect("text");
        let frames = text
            .split("\n\n")
            .filter(|frame| frame.starts_with("event: "));
        frames.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        frames(&first),
        frames(&again),
        "the same job, from its first byte on"
    );
    assert!(!first.headers.contains_key("idempotent-replayed"));
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert_eq!(ask("echo other").error(422), "idempotency_key_reused");
    assert_eq!(api.exec(&id, "cat ran").text(), "ran\n", "it ran once");
    api.remove(&id);
}

#[test]
fn what_is_no_json_is_said_to_be_none() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let bytes = [("content-type", "application/octet-stream")];
    for route in ["exec/stream", "jobs"] {
        let path = format!("{SESSIONS}/{id}/{route}");
        let refused = api.send("POST", &path, &bytes, br#"{"command":"true"}"#);
        assert_eq!(refused.error(415), "unsupported_media_type", "{route}");
        let broken = api.send("POST", &path, &[], br#"{"command":"a" "b"}"#);
        assert_eq!(broken.error(400), "invalid_body", "{route}");
        assert!(broken.json().get("field").is_none(), "{}", broken.json());
    }
    assert!(api.jobs(&id).is_empty());
    api.remove(&id);
}

#[test]
fn a_limit_that_cuts_a_character_does_not_show_a_broken_one() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let body = json!({"command": "printf 'a\u{20ac}\u{20ac}'", "max_output_bytes": 5});
    let job = api.start_job(&id, &body);
    let page = ended(api, &id, &job);
    assert_eq!(page["output"], "a\u{20ac}", "{page}");
    assert_eq!(
        (&page["next_offset"], &page["dropped_bytes"]),
        (&json!(5), &json!(2))
    );
    let path = format!("{}/stream", Api::job_path(&id, &job));
    let mut stream = api.event_stream("GET", &path, &[], &[]);
    let frame = stream.next_frame();
    assert_eq!(
        (&frame.data["output"], &frame.data["next_offset"]),
        (&json!("a\u{20ac}"), &json!(5))
    );
    let own = api.background(&id, "printf 'a\\342'");
    let page = ended(api, &id, &own);
    assert_eq!(
        page["output"], "a\u{fffd}",
        "what the job wrote is shown as it is"
    );
    api.remove(&id);
}

#[test]
fn a_replay_lists_jobs_with_the_reason_why_it_does_not_run_them() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    assert_eq!(api.exec(&id, "echo one").exit_code, 0);
    assert_eq!(api.exec_reading(&id, "cat", b"secret").text(), "secret");
    let job = api.background(&id, "echo two");
    let _ = ended(api, &id, &job);
    let plan = api.post(
        &format!("{SESSIONS}/{id}/replay"),
        &json!({"dry_run": true}),
    );
    let plan = plan.expect(200);
    assert_eq!(plan["steps"].as_array().map(Vec::len), Some(1), "{plan}");
    let skipped = plan["skipped"].as_array().expect("a list");
    let reason = |kind: &str| {
        let found = skipped.iter().find(|step| step["kind"] == kind);
        found.map(|step| step["reason"].as_str().unwrap_or_default().to_owned())
    };
    assert!(
        reason("job.exit").is_some_and(|why| why.contains("job")),
        "{plan}"
    );
    assert!(
        reason("exec").is_some_and(|why| why.contains("standard input")),
        "{plan}"
    );
    api.remove(&id);
}

#[test]
fn an_erased_job_is_gone_from_the_list_the_disk_and_the_store() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let job = api.background(&id, "echo to-be-erased");
    let _ = ended(api, &id, &job);
    let seq = api.only_event(&id, "job.exit")["seq"].clone();
    let body = json!({"seq": seq, "reason": "a test"});
    let answer = api.post("/v1/ledger/redact", &body).expect(200);
    assert_eq!(
        answer["redacted"].as_array().map(Vec::len),
        Some(2),
        "{answer}"
    );
    assert_eq!(answer["blobs"], 1, "{answer}");
    assert!(api.jobs(&id).is_empty());
    assert_eq!(
        api.get(&Api::job_path(&id, &job)).error(404),
        "job_not_found"
    );
    let spools = std::fs::read_dir(state.root().join("jobs").join(&id)).expect("a folder");
    assert_eq!(spools.count(), 0);
    api.remove(&id);
}
