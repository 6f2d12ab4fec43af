//! A job and its output live through every end of the daemon: nothing is missing, nothing comes twice, and
//! the exit code is the job's own.

use std::io::Read;
use std::process::Stdio;
use std::thread;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::JobOutput;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::Start;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
use fluxvm_replay_tests::marker;
use fluxvm_replay_tests::open_offline;
use fluxvm_replay_tests::processes_with;
use fluxvm_replay_tests::verified;
use serde_json::Value;
use serde_json::json;

/// The signal by which the crash build ends itself.
const SIGABRT: i32 = 6;

fn lines(to: usize) -> Vec<u8> {
    (1..=to)
        .flat_map(|n| format!("{n}\n").into_bytes())
        .collect()
}

fn ended(api: &Api, id: &str, job: &str) -> Value {
    eventually("the job has ended", || {
        let page = api.job(id, job, "?wait_ms=5000");
        (page["state"] != "running").then_some(page)
    })
}

#[test]
fn every_line_comes_once_and_in_order_through_kills_of_the_daemon() {
    let state = State::new();
    let mut daemon = Daemon::start(&state);
    let id = daemon.api().create();
    // 400,000 lines over some seconds, and as many to standard error of another kind.
    let command = "i=0; while [ $i -lt 80 ]; do seq $((i*5000+1)) $((i*5000+5000)); \
                   echo e$i >&2; i=$((i+1)); sleep 0.05; done; exit 3";
    let job = daemon.api().background(&id, command);
    let ctl = daemon.ctl();
    let mut follower = ctl
        .command(&["agent", "logs", &id, &job, "-f"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fluxctl runs");
    let mut stdout = follower.stdout.take().expect("piped");
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        stdout.read_to_end(&mut all).expect("read");
        all
    });
    for kills in 1..=3 {
        let seen = kills * 400_000;
        eventually("it writes", || {
            let page = daemon.api().job(&id, &job, "?offset=0");
            let spool = state
                .root()
                .join("jobs")
                .join(&id)
                .join(format!("{job}.stdout"));
            let length = spool.metadata().map_or(0, |file| file.len());
            (length > seen || page["state"] != "running").then_some(())
        });
        daemon.kill9();
        daemon = Daemon::start(&state);
    }
    let ended = follower.wait_with_output().expect("fluxctl ends");
    let all = reader.join().expect("the reader");
    assert_eq!(
        ended.status.code(),
        Some(3),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    assert!(
        all == lines(400_000),
        "every line once and in order: {} bytes",
        all.len()
    );
    let errors: String = (0..80).map(|n| format!("e{n}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), errors);
    let exit = daemon.api().only_event(&id, "job.exit");
    assert_eq!(exit["data"]["exit_code"], 3);
    assert_eq!(exit["data"]["readopted"], true);
    assert_eq!(exit["data"]["gap_bytes"], Value::Null, "{exit}");
    let digest = blake3::hash(&all).to_hex().to_string();
    assert_eq!(exit["data"]["stdout"]["blake3"], digest.as_str());
    verified(&daemon.api().export_ledger());
    daemon.api().remove(&id);
}

#[test]
fn a_job_that_writes_more_than_is_held_waits_for_the_next_daemon() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (id, marker) = (daemon.api().create(), marker());
    // Nobody reads while it begins: it fills what is held, and waits.
    let command =
        format!(": {marker} ; while [ ! -e go ]; do sleep 0.02; done; seq 1 1500000; exit 4");
    let job = daemon.api().background(&id, &command);
    eventually("it runs", || {
        (!processes_with(&marker).is_empty()).then_some(())
    });
    let _ = daemon.api().exec(&id, "touch go");
    daemon.kill9();
    let daemon = Daemon::start(&state);
    let output = daemon.api().follow_job(&id, &job);
    assert!(
        output.stdout == lines(1_500_000),
        "{} bytes",
        output.stdout.len()
    );
    assert_eq!(output.exit_code(), Some(4));
    daemon.api().remove(&id);
}

#[test]
fn a_job_that_ended_while_no_daemon_ran_has_its_true_end() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (id, marker) = (daemon.api().create(), marker());
    let command = format!(": {marker} ; read word; echo got $word; exit 42");
    let body = json!({"command": command, "stdin": true});
    let job = daemon.api().start_job(&id, &body);
    eventually("it runs", || {
        (!processes_with(&marker).is_empty()).then_some(())
    });
    let input = json!({"text": "it\n"});
    let _ = daemon.api().write_to_job(&id, &job, &input).expect(200);
    daemon.kill9();
    eventually("it ends", || {
        processes_with(&marker).is_empty().then_some(())
    });
    let gone_at = chrono::Utc::now();
    let daemon = Daemon::start(&state);
    let page = ended(daemon.api(), &id, &job);
    assert_eq!(
        (&page["state"], &page["exit_code"], &page["output"]),
        (&json!("exited"), &json!(42), &json!("got it\n"))
    );
    let ended_at = page["ended_at"].as_str().expect("a time");
    let ended_at = chrono::DateTime::parse_from_rfc3339(ended_at).expect("a time");
    assert!(
        ended_at <= gone_at,
        "it ended before it was taken up: {page}"
    );
    daemon.api().remove(&id);
}

#[test]
fn two_readers_that_come_back_at_once_each_go_on_at_their_own_place() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let command = "i=0; while [ $i -lt 40 ]; do seq $((i*2000+1)) $((i*2000+2000)); \
                   i=$((i+1)); sleep 0.05; done";
    let job = daemon.api().background(&id, command);
    let mut readers: Vec<(JobOutput, _)> = (0..2)
        .map(|_| {
            (
                JobOutput::default(),
                daemon.api().job_stream(&id, &job, None),
            )
        })
        .collect();
    for (nth, (output, stream)) in readers.iter_mut().enumerate() {
        while output.stdout.len() < 20_000 * (nth + 1) {
            output.take(&stream.next_frame());
        }
    }
    daemon.kill9();
    let daemon = Daemon::start(&state);
    for (mut output, _) in readers {
        let place = output.place.clone();
        output.take_all(daemon.api().job_stream(&id, &job, place.as_deref()));
        assert!(
            output.stdout == lines(80_000),
            "{} bytes",
            output.stdout.len()
        );
        assert_eq!(output.exit_code(), Some(0));
    }
    daemon.api().remove(&id);
}

/// Lets the daemon end at a point of what is asked for, and answers with the next one.
fn crash_at(
    point: &str,
    prepare: impl Fn(&Api, &str) -> String,
    ask: impl Fn(&Api, &str, &str) -> bool,
) -> (State, Daemon, String, String) {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let id = daemon.api().create();
    let job = prepare(daemon.api(), &id);
    assert_eq!(daemon.terminate().code, Some(0));
    let daemon = Start::crashing_at(&state, point).ready();
    assert!(
        ask(daemon.api(), &id, &job),
        "{point}: it ended before it could answer"
    );
    assert_eq!(daemon.ended().signal, Some(SIGABRT), "{point}");
    let daemon = Daemon::start(&state);
    (state, daemon, id, job)
}

/// Nothing is left open, on record or on the machine.
fn settle(state: &State, daemon: Daemon, id: &str) {
    let record = eventually("nothing is in flight", || {
        let record = daemon.api().session(id);
        (record["in_flight"] == json!([])).then_some(record)
    });
    assert_eq!(record["status"], "running");
    verified(&daemon.api().export_ledger());
    daemon.api().remove(id);
    drop(daemon);
    let events = open_offline(&state.root());
    for intent in &events {
        let kind = intent.header.kind.as_str();
        let is_intent = fluxvm_projections::is_intent(kind) && kind != "host.started";
        let closed = events
            .iter()
            .filter(|event| event.header.causation_id == Some(intent.header.event_id));
        assert!(
            !is_intent || closed.count() == 1,
            "{} {kind}",
            intent.header.seq
        );
    }
}

const KEY: [(&str, &str); 1] = [("idempotency-key", "the-only-one")];
const COMMAND: &str = "echo ran | tee -a ran; exit 3";

fn start_keyed(api: &Api, id: &str) -> Result<fluxvm_replay_tests::Answer, ureq::Error> {
    let body = json!({"command": COMMAND}).to_string();
    api.try_send(
        "POST",
        &format!("{SESSIONS}/{id}/jobs"),
        &KEY,
        body.as_bytes(),
    )
}

fn crash_at_start(point: &str) -> (State, Daemon, String) {
    let ask = |api: &Api, id: &str, _: &str| match start_keyed(api, id) {
        Err(_) => true,
        // It was answered, and the daemon ends with the job.
        Ok(answer) => answer.status == 201,
    };
    let (state, daemon, id, _) = crash_at(point, |_, _| String::new(), ask);
    (state, daemon, id)
}

#[test]
fn job_intent_the_job_never_ran_and_a_retry_may_run_it() {
    let (state, daemon, id) = crash_at_start("job.intent");
    let failed = eventually("it is recorded", || {
        let events = daemon.api().events(&id);
        events
            .into_iter()
            .find(|event| event["kind"] == "job.failed")
    });
    assert_eq!(failed["data"]["code"], "interrupted", "{failed}");
    let told = start_keyed(daemon.api(), &id).expect("an answer");
    assert_eq!(told.error(502), "interrupted", "a retry is told");
    let job = start_keyed(daemon.api(), &id)
        .expect("an answer")
        .expect(201);
    let page = ended(daemon.api(), &id, job["job"].as_str().expect("id"));
    assert_eq!(page["exit_code"], 3);
    assert_eq!(
        daemon.api().exec(&id, "cat ran").text(),
        "ran\n",
        "it ran once"
    );
    settle(&state, daemon, &id);
}

#[test]
fn after_each_later_step_of_a_start_the_job_ran_once_and_a_retry_gets_it() {
    for point in ["job.started", "job.ended", "job.outcome"] {
        let (state, daemon, id) = crash_at_start(point);
        let api = daemon.api();
        let job = start_keyed(api, &id).expect("an answer").expect(201);
        let job = job["job"].as_str().expect("id").to_owned();
        let page = ended(api, &id, &job);
        assert_eq!(
            (&page["exit_code"], &page["output"]),
            (&json!(3), &json!("ran\n")),
            "{point}"
        );
        assert_eq!(api.jobs(&id).len(), 1, "{point}: one job");
        assert_eq!(
            api.exec(&id, "cat ran").text(),
            "ran\n",
            "{point}: it ran once"
        );
        let exit = api.only_event(&id, "job.exit");
        let readopted = exit["data"]["readopted"] == true;
        assert_eq!(readopted, point != "job.outcome", "{point}: {exit}");
        settle(&state, daemon, &id);
    }
}

#[test]
fn at_each_step_of_a_write_it_can_be_repeated_and_is_done_once() {
    for point in ["job.stdin.intent", "job.stdin.written"] {
        let prepare =
            |api: &Api, id: &str| api.start_job(id, &json!({"command": "cat", "stdin": true}));
        let ask = |api: &Api, id: &str, job: &str| {
            let path = format!("{}/stdin", Api::job_path(id, job));
            api.try_send("POST", &path, &[], br#"{"text":"once\n","offset":0}"#)
                .is_err()
        };
        let (state, daemon, id, job) = crash_at(point, prepare, ask);
        let api = daemon.api();
        let interrupted = api.only_event(&id, "lifecycle.interrupted");
        assert_eq!(interrupted["data"]["op"], "job.stdin", "{interrupted}");
        // Whoever got no answer asks again, and need not know whether it was done.
        for _ in 0..2 {
            let repeat = json!({"text": "once\n", "offset": 0});
            let taken = api.write_to_job(&id, &job, &repeat).expect(200);
            assert_eq!(
                (&taken["written"], &taken["next_offset"]),
                (&json!(5), &json!(5))
            );
        }
        let end = json!({"text": "end", "offset": 5, "close": true});
        let _ = api.write_to_job(&id, &job, &end).expect(200);
        let output = api.follow_job(&id, &job);
        assert_eq!(
            (&output.stdout[..], output.exit_code()),
            (&b"once\nend"[..], Some(0)),
            "{point}"
        );
        settle(&state, daemon, &id);
    }
}

#[test]
fn at_each_step_of_a_signal_the_job_is_ended_or_can_be() {
    for point in ["job.kill.intent", "job.kill.sent"] {
        let prepare = |api: &Api, id: &str| api.background(id, "sleep 300");
        let ask = |api: &Api, id: &str, job: &str| {
            api.try_send("DELETE", &Api::job_path(id, job), &[], &[])
                .is_err()
        };
        let (state, daemon, id, job) = crash_at(point, prepare, ask);
        let api = daemon.api();
        if point == "job.kill.intent" {
            assert_eq!(api.job(&id, &job, "")["state"], "running");
            let _ = api.delete(&Api::job_path(&id, &job)).expect(200);
        }
        let page = ended(api, &id, &job);
        assert_eq!(
            (&page["state"], &page["exit_code"]),
            (&json!("killed"), &json!(143)),
            "{point}"
        );
        settle(&state, daemon, &id);
    }
}

#[test]
fn a_command_whose_input_ended_with_the_daemon_is_ended_and_never_takes_half_for_the_whole() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let (id, marker) = (daemon.api().create(), marker());
    let caller = {
        let (api, id, marker) = (daemon.api().clone(), id.clone(), marker.clone());
        thread::spawn(move || {
            let path = format!("{SESSIONS}/{id}/exec?command=sleep%20{marker}");
            let headers = [("content-type", "application/octet-stream")];
            api.try_send("POST", &path, &headers, &vec![b'x'; 8 << 20])
                .is_err()
        })
    };
    eventually("it runs", || {
        (!processes_with(&marker).is_empty()).then_some(())
    });
    daemon.kill9();
    assert!(caller.join().expect("the caller"));
    let daemon = Daemon::start(&state);
    let outcome = eventually("it has its outcome", || {
        let events = daemon.api().events(&id);
        events.into_iter().find(|event| event["kind"] == "exec")
    });
    assert_eq!(outcome["data"]["stdin_cut"], true, "{outcome}");
    assert!(processes_with(&marker).is_empty());
    settle(&state, daemon, &id);
}
