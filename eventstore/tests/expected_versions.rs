//! An append goes through exactly where its stream is what the writer expected.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_eventstore::ExpectedVersion::*;
use fluxvm_eventstore::*;
use support::*;

/// Appends to a stream at version `at` and says whether it went through.
async fn goes_through(at: u64, expected: ExpectedVersion) -> bool {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", at).await;
    let result = ledger
        .append(append(vec![to("session/a", expected, vec![event(9)])]))
        .await;
    match result {
        Ok(events) => {
            assert_eq!(events[0].header.version, version(at + 1));
            assert_eq!(ledger.head().position, Position::new(at + 1));
            true
        }
        Err(AppendError::Conflict {
            stream: conflicting,
            expected: said,
            actual,
        }) => {
            assert_eq!(conflicting, stream("session/a"));
            assert_eq!(said, expected);
            assert_eq!(actual, StreamVersion::new(at));
            assert_eq!(
                ledger.head().position,
                Position::new(at),
                "something was written"
            );
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_stream_that_does_not_exist_takes_no_stream_and_any() {
    assert!(goes_through(0, NoStream).await);
    assert!(goes_through(0, Any).await);
    assert!(!goes_through(0, Exists).await);
    assert!(!goes_through(0, Exact(version(1))).await);
}

#[tokio::test]
async fn a_stream_at_the_expected_version_takes_all_but_no_stream() {
    assert!(goes_through(3, Exact(version(3))).await);
    assert!(goes_through(3, Exists).await);
    assert!(goes_through(3, Any).await);
    assert!(!goes_through(3, NoStream).await);
}

#[tokio::test]
async fn a_stream_behind_or_ahead_of_the_expected_version_takes_nothing() {
    assert!(!goes_through(3, Exact(version(4))).await, "behind");
    assert!(!goes_through(3, Exact(version(2))).await, "ahead");
}

#[tokio::test]
async fn an_append_out_of_bounds_is_refused_and_writes_nothing() {
    let (_dir, ledger) = new_ledger();
    let empty = ledger.append(append(vec![])).await;
    assert!(matches!(empty, Err(AppendError::Empty)));
    let empty = ledger.append(append(vec![to("host", Any, vec![])])).await;
    assert!(matches!(empty, Err(AppendError::Empty)));

    let twice = vec![
        to("host", Any, vec![event(1)]),
        to("host", Any, vec![event(2)]),
    ];
    let twice = ledger.append(append(twice)).await;
    assert!(matches!(twice, Err(AppendError::StreamRepeated { .. })));

    let many = vec![event(1); APPEND_EVENTS_MAX + 1];
    let many = ledger.append(append(vec![to("host", Any, many)])).await;
    assert!(matches!(
        many,
        Err(AppendError::TooLarge { what: "events", .. })
    ));

    let mut attached = one("host", 1);
    attached.streams[0].attachments = vec![vec![0; ATTACHMENT_BYTES_MAX + 1].into()];
    let attached = ledger.append(attached).await;
    assert!(matches!(attached, Err(AppendError::TooLarge { .. })));

    assert_eq!(ledger.head().position, Position::START);
    let most = vec![event(1); APPEND_EVENTS_MAX];
    assert_eq!(
        ledger
            .append(append(vec![to("host", Any, most)]))
            .await
            .unwrap()
            .len(),
        512
    );
}
