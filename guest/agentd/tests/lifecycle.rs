//! Starting, asking, acknowledging, killing.
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

use agentd_client::ClientError;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::ExecState;
use agentd_client::protocol::Phase;
use futures_util::future::join_all;
use support::*;

async fn exited(client: &agentd_client::AgentdClient, id: &ExecId) -> ExecState {
    let started = Instant::now();
    loop {
        let state = client.poll(id).await.unwrap();
        if state.phase != Phase::Running {
            return state;
        }
        assert!(started.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_start_is_polled_acknowledged_once_and_keeps_nothing() {
    let (_guest, client) = Guest::start().await;
    let request = script("echo out; echo err >&2; exit 3");
    let id = &request.exec_id;
    let started = client.start(&request).await.unwrap();
    assert_eq!((&started.exec_id, started.phase), (id, Phase::Running));
    let state = exited(&client, id).await;
    let outcome = state.outcome.as_ref().unwrap();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.stderr.as_str()),
        ("out\n", "err\n")
    );
    assert_eq!((outcome.exit_code, outcome.signal), (Some(3), None));
    assert!(!outcome.truncated && !outcome.timed_out && !outcome.writers_may_be_alive);

    let acked = client.ack(id).await.unwrap();
    assert_eq!((acked.phase, acked.outcome), (Phase::Acked, state.outcome));
    assert_eq!(client.poll(id).await.unwrap().outcome, None);
    let again = client.ack(id).await.unwrap_err();
    assert_eq!(refusal(&again), (409, Some("already_acked")));
    // A start of a known id says so for ever, and the stream replays until collection.
    assert_eq!(client.start(&request).await.unwrap().phase, Phase::Running);
    let told = follow(client.stream(id, 0).await.unwrap()).await;
    assert_eq!(
        (told.stdout.as_slice(), told.code()),
        (&b"out\n"[..], Some(3))
    );
}

#[tokio::test]
async fn a_release_is_an_acknowledgement_without_the_result() {
    let (guest, client) = Guest::start().await;
    let request = script("echo out");
    run(&client, &request).await;
    let path = format!("/v1/exec/{}/ack?x_outcome=none", request.exec_id);
    let answer = guest.http("POST", &path, &bearer(), "");
    assert_eq!(
        answer.body(),
        format!(r#"{{"exec_id":"{}","phase":"acked"}}"#, request.exec_id)
    );
    let again = client.release(&request.exec_id).await.unwrap_err();
    assert_eq!(refusal(&again), (409, Some("already_acked")));
}

#[tokio::test]
async fn an_acknowledgement_before_the_end_is_refused() {
    let (_guest, client) = Guest::start().await;
    let request = command(["sleep", "300"]);
    client.start(&request).await.unwrap();
    let early = client.ack(&request.exec_id).await.unwrap_err();
    assert_eq!(refusal(&early), (409, Some("still_running")));
    assert!(client.health().await.unwrap().busy);
    assert!(client.kill(&request.exec_id).await.unwrap().killed);
    let outcome = exited(&client, &request.exec_id).await.outcome.unwrap();
    assert_eq!((outcome.exit_code, outcome.signal), (None, Some(15)));
    assert!(!client.kill(&request.exec_id).await.unwrap().killed);
    assert!(!client.health().await.unwrap().busy);
    assert!(client.ack(&request.exec_id).await.is_ok());
}

#[tokio::test]
async fn an_unknown_id_is_404_with_the_id_as_the_detail() {
    let (_guest, client) = Guest::start().await;
    let id = ExecId::new("no/such exec?").unwrap();
    let errors = [
        client.poll(&id).await.unwrap_err(),
        client.ack(&id).await.unwrap_err(),
        client.kill(&id).await.unwrap_err(),
        client.stream(&id, 0).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(refusal(&error), (404, Some("unknown_exec")));
        let ClientError::Refused { detail, .. } = error else {
            unreachable!()
        };
        assert_eq!(detail, id.as_str());
    }
}

#[tokio::test]
async fn one_id_is_one_process_however_often_and_concurrently_it_is_started() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let request = script(&format!(
        "echo $$ >> {}/pids; echo once",
        folder.path().display()
    ));
    let starts = join_all((0..10).map(|_| client.start(&request)));
    let runs = join_all((0..10).map(|_| async { run(&client, &request).await }));
    let (starts, told) = tokio::join!(starts, runs);
    assert!(starts.iter().all(Result::is_ok));
    for told in told {
        assert_eq!(
            (told.stdout.as_slice(), told.code()),
            (&b"once\n"[..], Some(0))
        );
    }
    let pids = std::fs::read_to_string(folder.path().join("pids")).unwrap();
    assert_eq!(pids.lines().count(), 1);
    assert_eq!(client.health().await.unwrap().execs, 1);

    // A retry's fields are ignored, but a retry that is no request at all is still refused.
    let mut retry = request.clone();
    retry.command = vec!["exit 9".into()];
    assert_eq!(run(&client, &retry).await.code(), Some(0));
    retry.timeout_sec = Some(-1.0);
    let malformed = client.start(&retry).await.unwrap_err();
    assert_eq!(refusal(&malformed), (400, Some("malformed_request")));
}

#[tokio::test]
async fn a_thousand_execs_lose_no_result_blocking_or_streamed() {
    let (_guest, client) = Guest::start().await;
    let one = |index: usize| {
        let client = client.clone();
        async move {
            let request = command(["true"]);
            if index.is_multiple_of(2) {
                assert_eq!(run(&client, &request).await.code(), Some(0));
            } else {
                client.start(&request).await.unwrap();
                // Never 404 right after the start.
                let state = exited(&client, &request.exec_id).await;
                assert_eq!(state.outcome.unwrap().exit_code, Some(0));
            }
            client.ack(&request.exec_id).await.unwrap();
        }
    };
    for batch in 0..50 {
        join_all((batch * 20..batch * 20 + 20).map(one)).await;
    }
    let health = client.health().await.unwrap();
    assert_eq!((health.execs, health.busy), (1000, false));
}

#[tokio::test]
async fn a_caller_that_leaves_before_the_answer_leaves_one_whole_exec() {
    let (_guest, client) = Guest::start().await;
    let request = script("echo whole");
    // Polled once: the request is on its way, and then nobody waits for it.
    let _ = tokio::time::timeout(Duration::from_millis(1), client.start(&request)).await;
    client.start(&request).await.unwrap();
    let outcome = exited(&client, &request.exec_id).await.outcome.unwrap();
    assert_eq!(
        (outcome.stdout.as_str(), outcome.exit_code),
        ("whole\n", Some(0))
    );
    assert_eq!(client.health().await.unwrap().execs, 1);
}
