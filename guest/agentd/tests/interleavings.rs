//! The views of one exec agree, in whatever order they are asked for.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use agentd_client::AgentdClient;
use agentd_client::ExecEvent;
use agentd_client::protocol::ExecId;
use agentd_client::protocol::Phase;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use support::*;

/// Runs of the real daemon; each is a few dozen requests.
const RUNS: usize = 24;

/// Bytes that the command writes before it waits to be told to go on: the numbers up to 2,500.
const BEFORE_GO: usize = 9 * 2 + 90 * 3 + 900 * 4 + 1501 * 5;

#[derive(Clone, Debug)]
enum Step {
    Poll,
    /// Follows from a part of what is known to have been written, for some events, and detaches.
    Follow {
        from: prop::sample::Index,
        events: usize,
    },
    /// The host ends all connections.
    Quiesce,
    Acknowledge,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Poll),
        (any::<prop::sample::Index>(), 1_usize..6)
            .prop_map(|(from, events)| Step::Follow { from, events }),
        Just(Step::Quiesce),
        Just(Step::Acknowledge),
    ]
}

/// Checks bytes at their place in the one offset space, and says where it is.
fn check(expected: &[u8], at: u64, bytes: &[u8]) -> usize {
    let from = usize::try_from(at).unwrap();
    assert_eq!(bytes, &expected[from..from + bytes.len()]);
    from + bytes.len()
}

async fn take(client: &AgentdClient, id: &ExecId, expected: &[u8], step: Step, known: &mut usize) {
    match step {
        Step::Poll => {
            let state = client.poll(id).await.unwrap();
            if let Some(outcome) = state.outcome {
                assert_eq!(outcome.stdout.as_bytes(), expected);
                *known = expected.len();
            } else {
                assert_eq!(state.phase, Phase::Running);
            }
        }
        Step::Follow { from, events } => {
            let from = from.index((*known).min(BEFORE_GO - 1) + 1);
            let mut stream = client
                .stream(id, u64::try_from(from).unwrap())
                .await
                .unwrap();
            let mut next = from;
            for _ in 0..events {
                if next == BEFORE_GO {
                    // More comes only when it is told to go on.
                    break;
                }
                match tokio::time::timeout(PATIENCE, stream.next()).await.unwrap() {
                    Some(Ok(ExecEvent::Output { offset, bytes, .. })) => {
                        assert_eq!(offset, u64::try_from(next).unwrap());
                        next = check(expected, offset, &bytes);
                    }
                    Some(Ok(ExecEvent::Exit(exit))) => {
                        assert_eq!(exit.offset, u64::try_from(expected.len()).unwrap());
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            *known = next.max(*known);
        }
        Step::Quiesce => {
            let quiesced = client.quiesce(PATIENCE).await.unwrap();
            assert_eq!(quiesced.state.connections_left, 0);
        }
        Step::Acknowledge => match client.ack(id).await {
            Ok(state) => panic!("released before its end: {state:?}"),
            Err(error) => assert_eq!(refusal(&error), (409, Some("still_running"))),
        },
    }
}

#[tokio::test]
async fn poll_stream_and_ack_of_the_real_daemon_agree_in_any_order() {
    let (_guest, client) = Guest::start().await;
    let lines: String = (1..=3000).map(|number| format!("{number}\n")).collect();
    let expected = lines.as_bytes();
    let mut runner = TestRunner::deterministic();
    for _ in 0..RUNS {
        let steps = prop::collection::vec(step(), 1..12);
        let steps = steps.new_tree(&mut runner).unwrap().current();
        // It ends when it is told to, so that what comes before its end is always the same.
        let mut request = script("seq 1 1500; seq 1501 2500; read go; seq 2501 3000");
        request.stdin = true;
        let id = &request.exec_id;
        client.start(&request).await.unwrap();
        let mut known = 0;
        for step in steps {
            take(&client, id, expected, step, &mut known).await;
        }
        client.feed(id, b"\n", true).await.unwrap();
        let told = follow(client.stream(id, 0).await.unwrap()).await;
        assert_eq!((told.stdout.as_slice(), told.gaps.len()), (expected, 0));
        let polled = client.poll(id).await.unwrap();
        let acked = client.ack(id).await.unwrap();
        assert_eq!(polled.outcome, acked.outcome);
        assert_eq!(acked.outcome.unwrap().stdout.as_bytes(), expected);
        let again = client.ack(id).await.unwrap_err();
        assert_eq!(refusal(&again), (409, Some("already_acked")));
        let replayed = follow(client.stream(id, 0).await.unwrap()).await;
        assert_eq!(replayed.stdout, expected);
    }
}
