//! Readers see durable events, all of them, in order, and never beyond the watermark.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use fluxvm_eventstore::*;
use support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_never_sees_past_the_watermark() {
    let (_dir, ledger) = new_ledger();
    let done = Arc::new(AtomicBool::new(false));
    let reader = {
        let (ledger, done) = (ledger.clone(), Arc::clone(&done));
        tokio::task::spawn_blocking(move || {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads < 10 {
                let after = Position::new(ledger.head().position.get().saturating_sub(3));
                let events = ledger.read(after, 1000).unwrap();
                let in_stream = ledger
                    .read_stream(&stream("session/0"), None, 4000)
                    .unwrap();
                // The head only moves forward, so it bounds what was read before it was asked for.
                let head = ledger.head().position;
                for event in events.iter().chain(&in_stream) {
                    assert!(event.seq().position() <= head);
                }
                reads += 1;
            }
        })
    };
    let writers = (0..4).map(|writer| {
        let ledger = ledger.clone();
        tokio::spawn(async move { fill(&ledger, &format!("session/{writer}"), 300).await })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    reader.await.unwrap();
}

#[tokio::test]
async fn reading_gives_the_same_from_memory_and_from_the_store() {
    let (_dir, ledger) = new_ledger();
    for n in 0..12 {
        let mut events: Vec<_> = (0..500).map(event).collect();
        let last = events.pop().unwrap();
        let streams = vec![
            to("session/a", ExpectedVersion::Any, events),
            to(
                &format!("session/b{}", n % 3),
                ExpectedVersion::Any,
                vec![last],
            ),
        ];
        ledger.append(append(streams)).await.unwrap();
    }
    let all = all(&ledger);
    assert_eq!(all.len(), 6000);
    for (at, event) in all.iter().enumerate() {
        assert_eq!(event.seq().get(), at as u64 + 1);
        assert!(event.hash_holds() && event.payload_holds());
    }
    for after in [0, 1, 1903, 1904, 1905, 5999, 6000, 9999] {
        let page = ledger.read(Position::new(after), 5).unwrap();
        let from = usize::try_from(after).unwrap().min(6000);
        assert_eq!(page, all[from..(from + 5).min(6000)], "after {after}");
    }
    let of_b: Vec<_> = all
        .iter()
        .filter(|event| &*event.header.stream == "session/b1")
        .cloned()
        .collect();
    assert_eq!(
        ledger
            .read_stream(&stream("session/b1"), None, 100)
            .unwrap(),
        of_b
    );
    let after = Some(version(2));
    assert_eq!(
        ledger.read_stream(&stream("session/b1"), after, 1).unwrap(),
        of_b[2..3]
    );
    assert_eq!(
        ledger
            .read_stream(&stream("session/none"), None, 9)
            .unwrap(),
        []
    );
    assert_eq!(
        ledger
            .read_stream(&stream("session/b1"), Some(version(99)), 9)
            .unwrap(),
        []
    );
    assert_eq!(ledger.read(Position::START, 0).unwrap(), []);
}

#[tokio::test]
async fn the_observer_sees_each_event_once_and_before_the_writer_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (observer, seen) = recorder();
    let ledger = Ledger::open(options(dir.path()), observer).unwrap();
    for n in 0..50 {
        let events = ledger.append(one("session/a", n)).await.unwrap();
        assert_eq!(seen.lock().unwrap().last(), events.last());
    }
    assert_eq!(*seen.lock().unwrap(), all(&ledger));
    drop(ledger);

    let (observer, seen) = recorder();
    let ledger = Ledger::open(options(dir.path()), observer).unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        all(&ledger),
        "history comes before opening returns"
    );
    let appended = ledger.append(one("session/a", 51)).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 51);
    assert_eq!(seen.lock().unwrap().last(), appended.last());
}

#[tokio::test]
async fn a_closed_ledger_refuses_and_is_free_for_the_next() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 3).await;
    let other_handle = ledger.clone();
    ledger.close().await;
    assert!(matches!(
        other_handle.append(one("host", 1)).await,
        Err(AppendError::Closed)
    ));
    assert!(other_handle.blob(&BlobDigest::of(b"")).is_err());
    let reopened = open(dir.path());
    assert_eq!(reopened.head().position, Position::new(3));
    ledger.close().await;
}
