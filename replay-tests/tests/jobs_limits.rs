//! Where jobs end: at what is kept of them, at how many there may be, at the end of their session.

use std::time::Duration;
use std::time::Instant;

use fluxvm_replay_tests::Api;
use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::JobOutput;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_replay_tests::eventually;
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
fn what_does_not_fit_is_counted_and_the_exit_code_is_the_commands_own() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let body = json!({"command": "seq 1 400000; exit 5", "max_output_bytes": 1000});
    let job = api.start_job(&id, &body);
    let output = api.follow_job(&id, &job);
    let whole: String = (1..=400_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(output.stdout, &whole.as_bytes()[..1000]);
    let end = output.end.as_ref().expect("an end");
    assert_eq!(
        (&end["exit_code"], &end["truncated"]),
        (&json!(5), &json!(true))
    );
    assert_eq!(end["dropped_bytes"], whole.len() - 1000);
    let page = ended(api, &id, &job);
    assert_eq!(
        (&page["eof"], &page["truncated"]),
        (&json!(true), &json!(true))
    );
    let recorded = api.only_event(&id, "job.exit");
    assert_eq!(recorded["data"]["stdout"]["bytes"], whole.len());
    let none = api.start_job(&id, &json!({"command": "echo x", "max_output_bytes": 0}));
    let output = api.follow_job(&id, &none);
    assert_eq!((output.stdout.len(), output.exit_code()), (0, Some(0)));
    let over = json!({"command": "true", "max_output_bytes": 256 * 1024 * 1024 + 1});
    let refused = api.post(&format!("{SESSIONS}/{id}/jobs"), &over);
    assert_eq!(refused.error(400), "invalid_field");
    api.remove(&id);
}

#[test]
fn so_many_jobs_run_and_so_many_streams_are_read_and_no_more() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let jobs: Vec<String> = (0..32).map(|_| api.background(&id, "sleep 300")).collect();
    let path = format!("{SESSIONS}/{id}/jobs");
    let refused = api.post(&path, &json!({"command": "true"}));
    assert_eq!(refused.error(429), "too_many");
    assert_eq!(api.exec(&id, "echo still").text(), "still\n");
    // Two readers of each job that may run; another session has its own.
    let streams: Vec<_> = (0..64)
        .map(|_| api.job_stream(&id, &jobs[0], None))
        .collect();
    let one_more = api.get(&format!("{}/stream", Api::job_path(&id, &jobs[0])));
    assert_eq!(one_more.error(429), "too_many");
    let other = api.create();
    let output = api.exec_stream(&other, &json!({"command": "exit 3"}));
    assert_eq!(output.exit_code(), Some(3));
    api.remove(&other);
    let _ = api.delete(&Api::job_path(&id, &jobs[0])).expect(200);
    for stream in streams {
        let mut output = JobOutput::default();
        output.take_all(stream);
        assert_eq!(output.exit_code(), Some(143));
    }
    api.remove(&id);
    let kinds = api.kinds(&id);
    let ends = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!(
        ends("job.start"),
        ends("job.exit") + ends("job.failed"),
        "{kinds:?}"
    );
    assert_eq!(ends("job.failed"), 31, "they ended with their session");
    let spools = state.root().join("jobs").join(&id);
    assert!(!spools.exists(), "their output went with it");
}

#[test]
fn an_expired_session_ends_its_jobs_and_whoever_follows_them_is_told() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create_with(&json!({"agent": "short", "ttl_seconds": 1}));
    let job = api.background(&id, "echo begun; sleep 300");
    let output = api.follow_job(&id, &job);
    assert_eq!(output.stdout, b"begun\n");
    assert!(output.exit_code().is_none(), "{output:?}");
    let failed = eventually("it is recorded", || {
        let events = api.events(&id);
        events
            .into_iter()
            .find(|event| event["kind"] == "job.failed")
    });
    assert_eq!(failed["data"]["code"], "sandbox_gone");
    assert_eq!(failed["data"]["stdout"]["bytes"], 6, "{failed}");
    api.remove(&id);
}

#[test]
fn a_thousand_short_jobs_each_have_their_end() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let id = api.create();
    let began = Instant::now();
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (api, id) = (api.clone(), id.clone());
            std::thread::spawn(move || {
                for round in 0..130 {
                    let code = (worker * 130 + round) % 256;
                    let job = api.background(&id, &format!("echo {code}; exit {code}"));
                    let page = ended(&api, &id, &job);
                    assert_eq!(page["exit_code"], code, "{page}");
                    assert_eq!(page["output"], format!("{code}\n"));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker");
    }
    println!("1040 jobs in {:?}", began.elapsed());
    let listed = api.jobs(&id);
    assert_eq!(listed.len(), 1000, "the oldest are not listed any more");
    assert!(listed.iter().all(|job| job["state"] == "exited"));
    let spools = std::fs::read_dir(state.root().join("jobs").join(&id)).expect("spools");
    eventually("what is not listed is removed", || {
        let spools = std::fs::read_dir(state.root().join("jobs").join(&id)).expect("spools");
        (spools.count() <= 3 * 1000).then_some(())
    });
    drop(spools);
    api.remove(&id);
}

#[test]
fn a_wait_for_a_silent_job_lasts_as_long_as_it_was_asked_for() {
    let daemon = shared();
    let api = daemon.api();
    let id = api.create();
    let job = api.background(&id, "sleep 300");
    let began = Instant::now();
    let page = api.job(&id, &job, "?wait_ms=300");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        (&page["state"], &page["eof"]),
        (&json!("running"), &json!(false))
    );
    api.remove(&id);
}
