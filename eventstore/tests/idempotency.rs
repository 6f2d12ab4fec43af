//! The same command twice writes once and is answered twice.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_eventstore::*;
use support::*;
use tokio::task::JoinSet;

#[tokio::test]
async fn a_repeated_command_gets_the_first_result_and_writes_nothing() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 3).await;
    let twice = append(vec![
        to(
            "session/a",
            ExpectedVersion::Exact(version(3)),
            vec![event(1), event(2)],
        ),
        to("session/b", ExpectedVersion::NoStream, vec![event(3)]),
    ]);
    let first = ledger.append(twice.clone()).await.unwrap();
    fill(&ledger, "session/a", 3).await;
    let head = ledger.head();

    // By now the expected versions no longer hold, which must not matter.
    assert_eq!(ledger.append(twice.clone()).await.unwrap(), first);
    assert_eq!(ledger.head(), head);

    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.append(twice).await.unwrap(), first);
    assert_eq!(ledger.head(), head);
}

#[tokio::test]
async fn a_repeat_is_known_when_the_first_is_no_longer_in_memory() {
    let (_dir, ledger) = new_ledger();
    let first_append = one("session/a", 1);
    let first = ledger.append(first_append.clone()).await.unwrap();
    for _ in 0..20 {
        let many = vec![event(1); APPEND_EVENTS_MAX];
        ledger
            .append(append(vec![to("host", ExpectedVersion::Any, many)]))
            .await
            .unwrap();
    }
    assert_eq!(ledger.append(first_append).await.unwrap(), first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_command_sent_at_once_by_many_is_written_once() {
    let (_dir, ledger) = new_ledger();
    for round in 0..20 {
        let same = append(vec![to(
            "host",
            ExpectedVersion::Any,
            vec![event(1), event(2)],
        )]);
        let mut senders = JoinSet::new();
        for _ in 0..16 {
            let (ledger, same) = (ledger.clone(), same.clone());
            senders.spawn(async move { ledger.append(same).await.unwrap() });
        }
        let results = senders.join_all().await;
        assert!(results.iter().all(|result| *result == results[0]));
        assert_eq!(ledger.head().position, Position::new(2 * (round + 1)));
    }
}
