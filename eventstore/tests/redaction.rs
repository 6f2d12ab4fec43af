//! Erasing what events say: what goes, what stays, and that it is one act.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::path::Path;

use bytes::Bytes;
use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

const SECRET: &str = "hunter2-and-nobody-else-says-so";

fn secret_event(pad: usize) -> NewEvent {
    let payload = json!({ "said": SECRET, "pad": "x".repeat(pad) });
    NewEvent::new(EventKind::parse("test.said").unwrap(), 1, &payload).unwrap()
}

fn redaction(seqs: &[u64], blobs: &[BlobDigest]) -> Redaction {
    Redaction {
        seqs: seqs
            .iter()
            .map(|seq| GlobalSeq::new(*seq).unwrap())
            .collect(),
        blobs: blobs.to_vec(),
        looked_until: Position::START,
        append: order(seqs),
    }
}

/// A ledger whose events 2 (in its record) and 3 (in a file) say the secret, as do two blobs.
async fn with_secrets(ledger: &Ledger) -> [BlobDigest; 2] {
    fill(ledger, "a", 1).await;
    let small = Bytes::from(format!("small {SECRET}"));
    let large = Bytes::from(format!("{}{SECRET}", "y".repeat(100_000)));
    let mut inline = append(vec![to("a", ExpectedVersion::Any, vec![secret_event(0)])]);
    inline.streams[0].attachments = vec![small.clone(), Bytes::from_static(b"stays")];
    ledger.append(inline).await.unwrap();
    let in_file = append(vec![to(
        "a",
        ExpectedVersion::Any,
        vec![secret_event(80_000)],
    )]);
    ledger.append(in_file).await.unwrap();
    ledger.put_blob(large.clone()).await.unwrap();
    fill(ledger, "b", 3).await;
    [BlobDigest::of(&small), BlobDigest::of(&large)]
}

/// The files below `dir` in which the secret can be read.
fn files_with_secret(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with_secret(&path));
        } else if std::fs::read(&path)
            .unwrap()
            .windows(SECRET.len())
            .any(|window| window == SECRET.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

fn hashes(ledger: &Ledger) -> Vec<EventHash> {
    all(ledger).iter().map(|event| event.hash).collect()
}

#[tokio::test]
async fn what_is_erased_is_gone_for_every_reader_and_every_hash_is_what_it_was() {
    let (dir, ledger) = new_ledger();
    let blobs = with_secrets(&ledger).await;
    let before = hashes(&ledger);
    let recorded = ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].seq().get(), 7);
    check_erased(&ledger, &blobs, &before);
    ledger.close().await;
    drop(ledger);
    check_erased(&open(dir.path()), &blobs, &before);
}

/// Events 2 and 3 and the blobs are erased, and nothing else is different.
fn check_erased(ledger: &Ledger, blobs: &[BlobDigest], before: &[EventHash]) {
    for event in all(ledger) {
        let erased = [2, 3].contains(&event.seq().get());
        assert_eq!(
            event.payload == Payload::Redacted,
            erased,
            "{}",
            event.seq()
        );
    }
    assert_eq!(hashes(ledger).get(..6), Some(before));
    for digest in blobs {
        assert_eq!(ledger.blob(digest).unwrap(), None);
    }
    let stays = BlobDigest::of(b"stays");
    assert_eq!(ledger.blob(&stays).unwrap().unwrap(), b"stays".as_slice());
    let export = export(ledger, ExportScope::WholeLedger);
    assert!(!export.contains(SECRET));
    let report = verify(&export);
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    assert_eq!(report.redacted, 2);
}

#[tokio::test]
async fn after_the_next_opening_no_file_holds_what_was_erased() {
    let (dir, ledger) = new_ledger();
    let blobs = with_secrets(&ledger).await;
    let before = hashes(&ledger);
    assert!(!files_with_secret(dir.path()).is_empty());
    ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    assert!(ledger.info().erasure_pending());
    let blob_files = files_with_secret(&dir.path().join("blobs"));
    assert_eq!(blob_files, Vec::<String>::new(), "unlinked at once");
    ledger.close().await;
    drop(ledger);

    let ledger = open(dir.path());
    assert!(!ledger.info().erasure_pending());
    assert_eq!(files_with_secret(dir.path()), Vec::<String>::new());
    check_erased(&ledger, &blobs, &before);
    // And once more, from the store that was written anew.
    ledger.redact(redaction(&[4], &[])).await.unwrap();
    fill(&ledger, "a", 5).await;
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.head().position.get(), 13);
    assert!(!dir.path().join("ledger/store-1").exists());
}

#[tokio::test]
async fn a_crash_at_any_point_of_writing_the_store_anew_loses_nothing() {
    let (dir, ledger) = new_ledger();
    let blobs = with_secrets(&ledger).await;
    let before = hashes(&ledger);
    ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    ledger.close().await;
    drop(ledger);
    let store = dir.path().join("ledger");
    let old = dir.path().join("old");
    copy_dir(&store, &old);

    // Before the rename: a part of the new store is there, or something that is no store at all.
    copy_dir(&store, &store.join("store-1.tmp"));
    std::fs::write(store.join("store-1.tmp/db"), b"torn").unwrap();
    check_erased(&open(dir.path()), &blobs, &before);
    assert_eq!(files_with_secret(&store), Vec::<String>::new());

    // After the rename: the old store is there as well, whole or in part.
    for missing in ["", "conf", "db"] {
        copy_dir(&old, &store);
        let _ = std::fs::remove_file(store.join(missing));
        check_erased(&open(dir.path()), &blobs, &before);
        assert_eq!(files_with_secret(&store), Vec::<String>::new());
    }

    // It never came to it: the next opening does it all.
    std::fs::remove_dir_all(&store).unwrap();
    copy_dir(&old, &store);
    check_erased(&open(dir.path()), &blobs, &before);
    assert_eq!(files_with_secret(&store), Vec::<String>::new());
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true if path.starts_with(to) || to.starts_with(&path) => {}
            true => copy_dir(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}

#[tokio::test]
async fn the_same_command_erases_once_and_an_erased_event_can_be_erased_again() {
    let (_dir, ledger) = new_ledger();
    let blobs = with_secrets(&ledger).await;
    let redaction = redaction(&[2], &blobs);
    let first = ledger.redact(redaction.clone()).await.unwrap();
    let second = ledger.redact(redaction.clone()).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(ledger.head().position.get(), 7);
    let again = Redaction {
        append: one("ledger", 1),
        ..redaction
    };
    assert_eq!(ledger.redact(again).await.unwrap()[0].seq().get(), 8);
}

#[tokio::test]
async fn nothing_is_erased_for_an_event_that_is_not_there_or_an_append_that_is_refused() {
    let (_dir, ledger) = new_ledger();
    with_secrets(&ledger).await;
    let refused = ledger.redact(redaction(&[2, 99], &[])).await;
    assert!(
        matches!(refused, Err(RedactError::UnknownSeq { seq, .. }) if seq.get() == 99),
        "{refused:?}"
    );
    let conflict = Redaction {
        append: append(vec![to("a", ExpectedVersion::NoStream, vec![event(1)])]),
        ..redaction(&[2], &[])
    };
    let refused = ledger.redact(conflict).await;
    assert!(
        matches!(
            refused,
            Err(RedactError::Append(AppendError::Conflict { .. }))
        ),
        "{refused:?}"
    );
    let event = &all(&ledger)[1];
    assert!(event.payload_bytes().is_some());
    assert_eq!(ledger.head().position.get(), 6);
}

#[tokio::test]
async fn what_was_erased_can_be_stored_again_by_someone_who_means_it() {
    let (dir, ledger) = new_ledger();
    let blobs = with_secrets(&ledger).await;
    ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    let small = Bytes::from(format!("small {SECRET}"));
    let mut again = append(vec![to(
        "a",
        ExpectedVersion::Any,
        vec![secret_event(80_000)],
    )]);
    again.streams[0].attachments = vec![small.clone()];
    ledger.append(again).await.unwrap();
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.blob(&blobs[0]).unwrap(), Some(small));
    assert!(all(&ledger)[7].payload_bytes().is_some());
}

#[tokio::test]
async fn a_blob_that_a_later_event_names_stays() {
    let (_dir, ledger) = new_ledger();
    let [small, large] = with_secrets(&ledger).await;
    let naming = NewEvent::new(
        EventKind::parse("test.said").unwrap(),
        1,
        &json!({ "output": large.to_string() }),
    );
    let naming = append(vec![to("b", ExpectedVersion::Any, vec![naming.unwrap()])]);
    ledger.append(naming).await.unwrap();
    ledger
        .redact(redaction(&[2], &[small, large]))
        .await
        .unwrap();
    assert_eq!(ledger.blob(&small).unwrap(), None);
    assert!(ledger.blob(&large).unwrap().is_some());
}

fn archived(dir: &Path) -> LedgerOptions {
    LedgerOptions {
        archive: Some(ArchiveOptions {
            dir: dir.join("archive"),
            on_failure: ArchiveFailure::Report,
        }),
        ..options(dir)
    }
}

#[tokio::test]
async fn the_archive_loses_what_was_erased_and_the_ledger_can_still_be_made_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    let ledger = Ledger::open(archived(dir.path()), Box::new(|_| {})).unwrap();
    let blobs = with_secrets(&ledger).await;
    let before = hashes(&ledger);
    ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    fill(&ledger, "a", 3).await;
    ledger.close().await;
    let status = ledger.archive().unwrap().borrow().clone();
    assert_eq!((status.archived.get(), status.failed), (10, None));
    drop(ledger);
    assert_eq!(files_with_secret(&archive), Vec::<String>::new());

    let made = dir.path().join("made");
    rebuild_from_archive(&archive, &options(&made)).unwrap();
    std::fs::create_dir_all(made.join("secrets")).unwrap();
    let key = |dir: &Path| options(dir).signing_key_file;
    std::fs::copy(key(dir.path()), key(&made)).unwrap();
    check_erased(&open(&made), &blobs, &before);
}

#[tokio::test]
async fn an_archive_that_missed_a_redaction_loses_it_at_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("archive");
    let ledger = Ledger::open(archived(dir.path()), Box::new(|_| {})).unwrap();
    let blobs = with_secrets(&ledger).await;
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    ledger.redact(redaction(&[2, 3], &blobs)).await.unwrap();
    ledger.close().await;
    drop(ledger);
    assert!(!files_with_secret(&archive).is_empty());
    for _ in 0..2 {
        let ledger = Ledger::open(archived(dir.path()), Box::new(|_| {})).unwrap();
        ledger.close().await;
        drop(ledger);
        assert_eq!(files_with_secret(&archive), Vec::<String>::new());
    }
    assert!(archive.join("erasure-1").is_dir());
    assert!(!archive.join("erasure-2").exists(), "once is enough");
}

#[tokio::test]
async fn a_file_that_holds_the_payload_of_another_event_stays() {
    let (dir, ledger) = new_ledger();
    with_secrets(&ledger).await;
    let same = append(vec![to(
        "c",
        ExpectedVersion::Any,
        vec![secret_event(80_000)],
    )]);
    ledger.append(same).await.unwrap();
    let payload = secret_event(80_000).payload().clone();
    let file = BlobDigest::of(&payload);
    ledger.redact(redaction(&[3], &[file])).await.unwrap();
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(all(&ledger)[6].payload_bytes(), Some(payload.as_ref()));
    ledger.redact(redaction(&[7], &[])).await.unwrap();
    assert_eq!(ledger.blob(&file).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_erasure_that_races_an_append_of_the_same_large_bytes_never_takes_them_from_it() {
    let (dir, ledger) = new_ledger();
    for round in 0..40_u64 {
        let large = Bytes::from(format!("{round}{}{SECRET}", "z".repeat(90_000)));
        let digest = BlobDigest::of(&large);
        let named = |n: u64| {
            let payload = json!({ "n": n, "blob": digest.to_string() });
            let event = NewEvent::new(EventKind::parse("test.said").unwrap(), 1, &payload);
            let mut append = append(vec![to("a", ExpectedVersion::Any, vec![event.unwrap()])]);
            append.streams[0].attachments = vec![large.clone()];
            append
        };
        let first = ledger.append(named(1)).await.unwrap()[0].seq();
        let erasing = Redaction {
            seqs: vec![first],
            blobs: vec![digest],
            looked_until: ledger.head().position,
            append: one("ledger", round),
        };
        let (other, eraser) = (ledger.clone(), ledger.clone());
        let second = named(2);
        let appended = tokio::spawn(async move { other.append(second).await });
        let erased = tokio::spawn(async move { eraser.redact(erasing).await });
        appended.await.unwrap().unwrap();
        erased.await.unwrap().unwrap();
        assert_eq!(ledger.blob(&digest).unwrap(), Some(large), "round {round}");
        // And when the other one goes as well, so do the bytes.
        let events = all(&ledger);
        let second = events
            .iter()
            .rev()
            .find(|it| it.header.kind.as_str() == "test.said");
        let erasing = Redaction {
            seqs: vec![second.unwrap().seq()],
            blobs: vec![digest],
            looked_until: ledger.head().position,
            append: one("ledger", round),
        };
        ledger.redact(erasing).await.unwrap();
        assert_eq!(ledger.blob(&digest).unwrap(), None, "round {round}");
    }
    ledger.close().await;
    drop(ledger);
    drop(open(dir.path()));
    assert_eq!(
        files_with_secret(&dir.path().join("blobs")),
        Vec::<String>::new()
    );
}
