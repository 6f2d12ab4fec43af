//! An append over several streams is durable as a whole or not at all.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_eventstore::ExpectedVersion::*;
use fluxvm_eventstore::*;
use support::*;

#[tokio::test]
async fn one_conflict_keeps_back_the_whole_append() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/b", 2).await;
    let mut refused = append(vec![
        to("session/a", NoStream, vec![event(1), event(2)]),
        to("session/b", NoStream, vec![event(3)]),
    ]);
    refused.streams[0].attachments = vec![bytes(100, 1)];
    assert!(matches!(
        ledger.append(refused).await,
        Err(AppendError::Conflict { .. })
    ));
    assert_eq!(ledger.stream_version(&stream("session/a")), None);
    assert_eq!(ledger.head().position, Position::new(2));
    assert_eq!(ledger.blob(&BlobDigest::of(&bytes(100, 1))).unwrap(), None);
    drop(ledger);
    assert_eq!(open(dir.path()).head().position, Position::new(2));
}

#[tokio::test]
async fn an_append_over_several_streams_is_contiguous_and_in_order() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/b", 2).await;
    let both = append(vec![
        to("session/a", NoStream, vec![event(1), event(2)]),
        to("session/b", Exact(version(2)), vec![event(3)]),
    ]);
    let command_id = both.command_id;
    let events = ledger.append(both).await.unwrap();
    let places: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event.seq().get(),
                &*event.header.stream,
                event.header.version.get(),
            )
        })
        .collect();
    assert_eq!(
        places,
        [
            (3, "session/a", 1),
            (4, "session/a", 2),
            (5, "session/b", 3)
        ]
    );
    for event in &events {
        assert_eq!(event.header.command_id, command_id);
        assert_eq!(event.header.recorded_at, events[0].header.recorded_at);
    }
}

#[tokio::test]
async fn attachments_become_durable_with_their_events() {
    let (dir, ledger) = new_ledger();
    let mut with = one("host", 1);
    with.streams[0].attachments = vec![
        bytes(10, 1),
        bytes(65_537, 2),
        bytes(65_536, 3),
        bytes(0, 0),
    ];
    let attachments = with.streams[0].attachments.clone();
    ledger.append(with.clone()).await.unwrap();
    drop(ledger);
    let ledger = open(dir.path());
    for bytes in &attachments {
        assert_eq!(
            ledger.blob(&BlobDigest::of(bytes)).unwrap().as_ref(),
            Some(bytes)
        );
    }
    // The same bytes again are one blob and no error.
    with.command_id = one("host", 1).command_id;
    ledger.append(with).await.unwrap();
}
