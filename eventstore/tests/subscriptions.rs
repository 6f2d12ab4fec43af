//! A subscription passes from history to what comes without a gap and without a repeat.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_eventstore::*;
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_hand_over_has_no_gap_and_no_repeat_under_concurrent_appends() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/old", 100).await;
    let writers = (0..8).map(|writer| {
        let ledger = ledger.clone();
        tokio::spawn(async move { fill(&ledger, &format!("session/{writer}"), 100).await })
    });
    let writers: Vec<_> = writers.collect();
    let followers = (0..4_u64).map(|start| {
        let mut subscription = ledger.subscribe(Filter::All, Position::new(start * 40));
        tokio::spawn(async move {
            for seq in start * 40 + 1..=900 {
                let event = subscription.next().await.unwrap().unwrap();
                assert_eq!(event.seq().get(), seq);
                assert_eq!(subscription.position(), event.seq().position());
            }
        })
    });
    for task in followers.collect::<Vec<_>>().into_iter().chain(writers) {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_subscriber_that_is_far_behind_reads_its_way_up_to_the_end() {
    let (_dir, ledger) = new_ledger();
    for _ in 0..12 {
        let many = vec![event(1); APPEND_EVENTS_MAX];
        ledger
            .append(append(vec![to("host", ExpectedVersion::Any, many)]))
            .await
            .unwrap();
    }
    let mut subscription = ledger.subscribe(Filter::All, Position::START);
    for seq in 1..=12 * 512 {
        assert_eq!(subscription.next().await.unwrap().unwrap().seq().get(), seq);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_filtered_subscription_gets_its_stream_and_advances_past_the_others() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 2).await;
    fill(&ledger, "host", 5).await;
    fill(&ledger, "session/a", 1).await;
    fill(&ledger, "host", 4).await;
    let filter = Filter::Stream(stream("session/a"));
    let mut subscription = ledger.subscribe(filter.clone(), Position::START);
    let mut seqs = Vec::new();
    for _ in 0..3 {
        seqs.push(subscription.next().await.unwrap().unwrap().seq().get());
    }
    assert_eq!(seqs, [1, 2, 8]);
    assert_eq!(subscription.position(), Position::new(8));

    let next = tokio::spawn(async move {
        let event = subscription.next().await.unwrap().unwrap();
        (event, subscription)
    });
    fill(&ledger, "host", 3).await;
    let appended = ledger.append(one("session/a", 9)).await.unwrap();
    let (event, mut subscription) = next.await.unwrap();
    assert_eq!(event, appended[0]);

    // Nothing more comes, but the position moves over what the filter keeps back.
    fill(&ledger, "host", 2).await;
    ledger.close().await;
    assert!(subscription.next().await.is_none());
    assert_eq!(subscription.position(), ledger.head().position);
}

#[tokio::test]
async fn a_subscription_that_is_taken_up_again_at_its_position_repeats_nothing() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 10).await;
    let mut subscription = ledger.subscribe(Filter::All, Position::START);
    for _ in 0..4 {
        subscription.next().await.unwrap().unwrap();
    }
    let mut again = ledger.subscribe(Filter::All, subscription.position());
    assert_eq!(again.next().await.unwrap().unwrap().seq().get(), 5);
}

#[tokio::test]
async fn a_subscription_ends_when_the_ledger_closes_and_not_before_all_was_seen() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 10).await;
    let mut subscription = ledger.subscribe(Filter::All, Position::START);
    ledger.close().await;
    for seq in 1..=10 {
        assert_eq!(subscription.next().await.unwrap().unwrap().seq().get(), seq);
    }
    assert!(subscription.next().await.is_none());
}
