//! A payload too large for a record lies in a file of its own, and nobody who reads it has to know.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

fn large(n: usize) -> NewEvent {
    let kind = EventKind::parse("test.large").unwrap();
    NewEvent::new(kind, 1, &json!({ "text": "x".repeat(n) })).unwrap()
}

fn files_under(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_under(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[tokio::test]
async fn payloads_of_every_size_read_back() {
    let (dir, ledger) = new_ledger();
    let sizes = [
        0,
        60_000,
        64_500,
        64_501,
        64_502,
        65_536,
        200_000,
        4 * 1024 * 1024 - 100,
    ];
    let mut appended = Vec::new();
    for size in sizes {
        let streams = vec![to(
            "session/a",
            ExpectedVersion::Any,
            vec![large(size), event(1)],
        )];
        appended.extend(ledger.append(append(streams)).await.unwrap());
    }
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(all(&ledger), appended);
    assert!(verify(&export(&ledger, ExportScope::WholeLedger)).is_clean());
    assert_eq!(
        files_under(&dir.path().join("ledger/blobs")),
        [] as [PathBuf; 0]
    );
    assert_eq!(files_under(&dir.path().join("blobs")).len(), 4);
}

#[tokio::test]
async fn a_payload_file_that_was_changed_or_removed_is_named_at_opening() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 2).await;
    let streams = vec![to("host", ExpectedVersion::Any, vec![large(100_000)])];
    ledger.append(append(streams)).await.unwrap();
    drop(ledger);
    let file = files_under(&dir.path().join("blobs")).pop().unwrap();
    let good = fs::read(&file).unwrap();
    let mut bad = good.clone();
    bad[50_000] ^= 1;
    fs::write(&file, bad).unwrap();
    let damaged = |result| matches!(result, Err(OpenError::Damaged { seq, .. }) if seq.get() == 3);
    assert!(damaged(try_open(dir.path())));
    fs::remove_file(&file).unwrap();
    assert!(damaged(try_open(dir.path())));
    fs::write(&file, good).unwrap();
    assert_eq!(open(dir.path()).head().position, Position::new(3));
}

#[tokio::test]
async fn a_blob_that_was_put_reads_back_after_reopening() {
    let (dir, ledger) = new_ledger();
    let digest = ledger.put_blob(bytes(1_000_000, 7)).await.unwrap();
    assert_eq!(ledger.put_blob(bytes(1_000_000, 7)).await.unwrap(), digest);
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.blob(&digest).unwrap().unwrap(), bytes(1_000_000, 7));
    assert_eq!(ledger.blob(&BlobDigest::of(b"never put")).unwrap(), None);
}
