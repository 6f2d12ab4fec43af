//! A sealed stream: readable through the ledger for as long as its key is there, and erased in every
//! copy when the key is destroyed.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::fs;
use std::path::Path;

use bytes::Bytes;
use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

const SECRET: &str = "hunter2-and-nobody-else-says-so";

fn sealed_options(dir: &Path, new_streams: NewStreams) -> LedgerOptions {
    LedgerOptions {
        seal: Some(SealOptions {
            keys_dir: dir.join("secrets/seals"),
            new_streams,
        }),
        archive: Some(ArchiveOptions {
            dir: dir.join("archive"),
            on_failure: ArchiveFailure::Stop,
        }),
        ..options(dir)
    }
}

fn try_open_sealed(dir: &Path) -> Result<Ledger, OpenError> {
    let options = sealed_options(dir, NewStreams::Sealed);
    Ledger::open(options, Box::new(|_| {}))
}

fn said(pad: usize) -> NewEvent {
    let payload = json!({ "said": SECRET, "pad": "x".repeat(pad) });
    NewEvent::new(EventKind::parse("test.said").unwrap(), 1, &payload).unwrap()
}

fn sealed(name: &str, event: NewEvent, attachments: Vec<Bytes>) -> Append {
    append(vec![sealed_part(name, event, attachments)])
}

fn sealed_part(name: &str, event: NewEvent, attachments: Vec<Bytes>) -> StreamAppend {
    StreamAppend {
        attachments,
        sealed_for: Some(stream(name)),
        ..to(name, ExpectedVersion::Any, vec![event])
    }
}

fn blobs() -> [Bytes; 2] {
    [60, 200_000].map(|length| Bytes::from(format!("{}{SECRET}", "y".repeat(length))))
}

/// Event 1 is open; 2 and 3 of a sealed stream say the secret, one of them in a file, as do two blobs,
/// one of them in a file; 4 is another sealed stream's; 5 says it open.
async fn with_secrets(ledger: &Ledger) {
    fill(ledger, "open", 1).await;
    let small = sealed("session/a", said(0), blobs().to_vec());
    ledger.append(small).await.unwrap();
    let large = sealed("session/a", said(80_000), Vec::new());
    ledger.append(large).await.unwrap();
    let other = sealed("session/b", event(4), blobs().to_vec());
    ledger.append(other).await.unwrap();
    fill(ledger, "open", 1).await;
}

fn shred(name: &str) -> Shred {
    Shred {
        stream: stream(name),
        append: shredded(name.trim_start_matches("session/")),
    }
}

/// The order by which a session is erased, as the daemon records it.
fn shredded(session: &str) -> Append {
    let kind = EventKind::parse("ledger.shredded").unwrap();
    let payload = json!({"reason": "r", "session": session});
    let event = NewEvent::new(kind, 1, &payload).unwrap();
    append(vec![to("ledger", ExpectedVersion::Any, vec![event])])
}

fn files_with(dir: &Path, what: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, what));
        } else if fs::read(&path)
            .unwrap()
            .windows(what.len())
            .any(|window| window == what)
        {
            found.push(path.display().to_string());
        }
    }
    found
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

fn check_readable(ledger: &Ledger, name: &str) {
    for blob in blobs() {
        let digest = BlobDigest::of(&blob);
        assert_eq!(ledger.blob_of(&stream(name), &digest).unwrap(), Some(blob));
        assert_eq!(
            ledger.blob(&digest).unwrap(),
            None,
            "not without its stream"
        );
    }
}

fn check_shredded(ledger: &Ledger, hashes: &[EventHash]) {
    let events = all(ledger);
    for event in &events {
        let erased = [2, 3].contains(&event.seq().get());
        assert_eq!(
            event.payload == Payload::Redacted,
            erased,
            "{}",
            event.seq()
        );
    }
    let now: Vec<EventHash> = events
        .iter()
        .map(|event| event.hash)
        .take(hashes.len())
        .collect();
    assert_eq!(now, hashes);
    for blob in blobs() {
        let digest = BlobDigest::of(&blob);
        assert_eq!(ledger.blob_of(&stream("session/a"), &digest).unwrap(), None);
    }
    check_readable(ledger, "session/b");
    assert!(!ledger.is_sealed(&stream("session/a")) && ledger.is_sealed(&stream("session/b")));
}

#[tokio::test]
async fn what_is_sealed_is_in_no_file_and_chain_and_export_are_those_of_an_open_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    with_secrets(&ledger).await;
    check_readable(&ledger, "session/a");
    check_readable(&ledger, "session/b");
    let before = export(&ledger, ExportScope::WholeLedger);
    assert!(before.contains(SECRET), "an export holds what was said");
    let report = verify(&before);
    assert!(
        report.faults.is_empty() && report.redacted == 0,
        "{report:?}"
    );
    let with_blobs = evidence(
        &ledger,
        ExportScope::Stream(stream("session/a")),
        Content::WithBlobs,
    )
    .await;
    assert!(verify(&with_blobs).faults.is_empty());
    ledger.close().await;
    drop(ledger);
    let found = files_with(dir.path(), SECRET.as_bytes());
    assert_eq!(found, Vec::<String>::new());

    let ledger = try_open_sealed(dir.path()).unwrap();
    assert_eq!(export(&ledger, ExportScope::WholeLedger), before);
    check_readable(&ledger, "session/a");
}

#[tokio::test]
async fn a_destroyed_key_erases_the_stream_everywhere_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    with_secrets(&ledger).await;
    let hashes: Vec<EventHash> = all(&ledger).iter().map(|event| event.hash).collect();
    let root = ledger.checkpoint().await.unwrap();
    let recorded = ledger.shred(shred("session/a")).await.unwrap();
    assert_eq!(recorded.len(), 1);
    check_shredded(&ledger, &hashes);
    let again = ledger.shred(shred("session/a")).await.unwrap_err();
    assert!(matches!(again, ShredError::NoKey { .. }), "{again}");
    let refused = ledger
        .append(sealed("session/a", event(9), Vec::new()))
        .await;
    assert!(matches!(refused, Err(AppendError::KeyDestroyed { .. })));
    let export = export(&ledger, ExportScope::WholeLedger);
    let report = verify(&export);
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    assert_eq!(report.redacted, 2);
    let proof = ledger.consistency_proof(root.size(), &ledger.checkpoint().await.unwrap());
    proof.unwrap();
    ledger.close().await;
    drop(ledger);

    check_shredded(&try_open_sealed(dir.path()).unwrap(), &hashes);
    let rebuilt = tempfile::tempdir().unwrap();
    let mut anew = sealed_options(dir.path(), NewStreams::Open);
    anew.dir = rebuilt.path().join("ledger");
    anew.blobs_dir = rebuilt.path().join("blobs");
    anew.archive = None;
    rebuild_from_archive(&dir.path().join("archive"), &anew).unwrap();
    check_shredded(&Ledger::open(anew, Box::new(|_| {})).unwrap(), &hashes);
}

#[tokio::test]
async fn a_copy_from_before_is_erased_with_the_key_too() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    with_secrets(&ledger).await;
    let hashes: Vec<EventHash> = all(&ledger).iter().map(|event| event.hash).collect();
    ledger.close().await;
    drop(ledger);
    let copy = dir.path().join("copy");
    for folder in ["ledger", "blobs"] {
        copy_dir(&dir.path().join(folder), &copy.join(folder));
    }
    let ledger = try_open_sealed(dir.path()).unwrap();
    ledger.shred(shred("session/a")).await.unwrap();
    ledger.close().await;
    drop(ledger);
    let mut older = sealed_options(dir.path(), NewStreams::Sealed);
    (older.dir, older.blobs_dir) = (copy.join("ledger"), copy.join("blobs"));
    older.archive = None;
    check_shredded(&Ledger::open(older, Box::new(|_| {})).unwrap(), &hashes);
}

#[tokio::test]
async fn a_key_that_is_missing_or_another_one_is_an_error_that_names_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    ledger
        .append(sealed("session/a", event(1), Vec::new()))
        .await
        .unwrap();
    ledger.close().await;
    drop(ledger);
    let keys: Vec<_> = fs::read_dir(dir.path().join("secrets/seals"))
        .unwrap()
        .collect();
    assert_eq!(keys.len(), 1);
    let key = keys[0].as_ref().unwrap().path();
    let line = fs::read_to_string(&key).unwrap();
    let check = |what: &str| match try_open_sealed(dir.path()) {
        Err(OpenError::SealKey { stream, .. }) => assert_eq!(stream.as_str(), "session/a"),
        Err(e) => panic!("{what}: {e}"),
        Ok(_) => panic!("{what}: it opened"),
    };
    let other = format!("SEAL+KEY+session/a+{}\n", "a".repeat(64));
    for (what, bad) in [("empty", ""), ("another key", other.as_str())] {
        fs::write(&key, bad).unwrap();
        check(what);
    }
    fs::remove_file(&key).unwrap();
    check("missing");
    let refused = Ledger::open(options(dir.path()), Box::new(|_| {}));
    assert!(
        matches!(refused, Err(OpenError::SealKey { .. })),
        "no folder was named"
    );
    fs::write(&key, line).unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(all(&try_open_sealed(dir.path()).unwrap()).len(), 1);
}

#[tokio::test]
async fn a_crash_before_the_key_was_destroyed_is_finished_at_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    with_secrets(&ledger).await;
    let hashes: Vec<EventHash> = all(&ledger).iter().map(|event| event.hash).collect();
    let keys = dir.path().join("secrets/seals");
    let kept = dir.path().join("kept");
    copy_dir(&keys, &kept);
    ledger.shred(shred("session/a")).await.unwrap();
    ledger.close().await;
    drop(ledger);
    // As if the power had gone after the batch.
    copy_dir(&kept, &keys);
    check_shredded(&try_open_sealed(dir.path()).unwrap(), &hashes);
    let left = fs::read_dir(&keys).unwrap().map(|entry| {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        text.starts_with("SEAL+DESTROYED+session/a")
    });
    assert_eq!(left.filter(|destroyed| *destroyed).count(), 1);
}

#[tokio::test]
async fn a_stream_is_sealed_from_its_beginning_or_never() {
    let dir = tempfile::tempdir().unwrap();
    let open = sealed_options(dir.path(), NewStreams::Open);
    let ledger = Ledger::open(open.clone(), Box::new(|_| {})).unwrap();
    ledger
        .append(sealed("session/old", event(1), Vec::new()))
        .await
        .unwrap();
    assert!(!ledger.is_sealed(&stream("session/old")));
    ledger.close().await;
    drop(ledger);
    let ledger = try_open_sealed(dir.path()).unwrap();
    ledger
        .append(sealed("session/old", event(2), Vec::new()))
        .await
        .unwrap();
    ledger
        .append(sealed("session/new", event(1), Vec::new()))
        .await
        .unwrap();
    assert!(!ledger.is_sealed(&stream("session/old")));
    let refused = ledger.shred(shred("session/old")).await.unwrap_err();
    assert!(matches!(refused, ShredError::NoKey { .. }));
    ledger.close().await;
    drop(ledger);
    // Turned off again, what is sealed stays so.
    let ledger = Ledger::open(open, Box::new(|_| {})).unwrap();
    ledger
        .append(sealed("session/new", said(0), Vec::new()))
        .await
        .unwrap();
    ledger.close().await;
    drop(ledger);
    assert_eq!(
        files_with(&dir.path().join("ledger"), SECRET.as_bytes()),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn two_streams_of_one_append_are_sealed_and_erased_apart() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    let parts = ["session/a", "session/b"];
    let parts = parts.map(|name| sealed_part(name, said(0), blobs().to_vec()));
    ledger.append(append(parts.to_vec())).await.unwrap();
    check_readable(&ledger, "session/a");
    check_readable(&ledger, "session/b");
    ledger.shred(shred("session/a")).await.unwrap();
    ledger.close().await;
    drop(ledger);
    assert_eq!(
        files_with(dir.path(), SECRET.as_bytes()),
        Vec::<String>::new()
    );
    let ledger = try_open_sealed(dir.path()).unwrap();
    let is_erased: Vec<bool> = all(&ledger)
        .iter()
        .map(|event| event.payload == Payload::Redacted)
        .collect();
    assert_eq!(is_erased, [true, false, false]);
    for blob in blobs() {
        let digest = BlobDigest::of(&blob);
        assert_eq!(ledger.blob_of(&stream("session/a"), &digest).unwrap(), None);
    }
    check_readable(&ledger, "session/b");
}

async fn kept(ledger: &Ledger, name: &str) -> Vec<KeptBlob> {
    let mut kept = Vec::new();
    for blob in blobs() {
        let stream = Some(stream(name));
        kept.push(ledger.keep_blob(stream, blob).await.unwrap());
    }
    kept
}

fn taking_up(name: &str, kept: Vec<KeptBlob>) -> Append {
    let part = sealed_part(name, event(7), Vec::new());
    append(vec![StreamAppend { kept, ..part }])
}

#[tokio::test]
async fn what_was_kept_for_a_stream_is_sealed_with_its_key_and_found_once_it_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    fill(&ledger, "session/open", 1).await;
    for name in ["session/a", "session/b"] {
        let first = sealed(name, event(1), Vec::new());
        ledger.append(first).await.unwrap();
    }
    let of_a = kept(&ledger, "session/a").await;
    let digests: Vec<BlobDigest> = of_a.iter().map(KeptBlob::digest).collect();
    assert_eq!(digests, blobs().map(|blob| BlobDigest::of(&blob)));
    assert!(!format!("{of_a:?}").contains(SECRET));
    let found = |name: &str| ledger.blob_of(&stream(name), &digests[1]).unwrap();
    assert_eq!(found("session/a"), None, "nothing leads to it yet");
    for other in ["session/b", "session/open"] {
        let refused = ledger.append(taking_up(other, of_a.clone())).await;
        let refused = refused.unwrap_err();
        assert!(matches!(refused, AppendError::Blob { .. }), "{refused}");
    }
    ledger.append(taking_up("session/a", of_a)).await.unwrap();
    let of_b = kept(&ledger, "session/b").await;
    ledger.append(taking_up("session/b", of_b)).await.unwrap();
    check_readable(&ledger, "session/a");
    check_readable(&ledger, "session/b");
    assert_eq!(
        files_with(dir.path(), SECRET.as_bytes()),
        Vec::<String>::new()
    );

    let late = kept(&ledger, "session/a").await;
    ledger.shred(shred("session/a")).await.unwrap();
    assert_eq!(found("session/a"), None);
    let refused = ledger.append(taking_up("session/a", late)).await;
    assert!(matches!(refused, Err(AppendError::KeyDestroyed { .. })));
    check_readable(&ledger, "session/b");

    let of_open = kept(&ledger, "session/open").await;
    ledger
        .append(taking_up("session/open", of_open))
        .await
        .unwrap();
    assert_eq!(found("session/open"), Some(blobs()[1].clone()));
}

#[tokio::test]
async fn what_was_kept_and_erased_before_anything_named_it_is_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    let first = sealed("session/a", said(0), blobs().to_vec());
    ledger.append(first).await.unwrap();
    let again = kept(&ledger, "session/a").await;
    let redaction = Redaction {
        seqs: vec![GlobalSeq::new(1).unwrap()],
        blobs: again.iter().map(KeptBlob::digest).collect(),
        looked_until: ledger.head().position,
        append: one("ledger", 0),
    };
    ledger.redact(redaction).await.unwrap();
    let refused = ledger.append(taking_up("session/a", again)).await;
    assert!(matches!(refused, Err(AppendError::Blob { .. })));
    let anew = kept(&ledger, "session/a").await;
    ledger.append(taking_up("session/a", anew)).await.unwrap();
    check_readable(&ledger, "session/a");
}

#[tokio::test]
async fn one_event_of_a_sealed_stream_can_be_redacted_with_its_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = try_open_sealed(dir.path()).unwrap();
    with_secrets(&ledger).await;
    let redaction = Redaction {
        seqs: vec![GlobalSeq::new(2).unwrap(), GlobalSeq::new(3).unwrap()],
        blobs: blobs().iter().map(|blob| BlobDigest::of(blob)).collect(),
        looked_until: ledger.head().position,
        append: one("ledger", 0),
    };
    ledger.redact(redaction).await.unwrap();
    for blob in blobs() {
        let digest = BlobDigest::of(&blob);
        assert_eq!(ledger.blob_of(&stream("session/a"), &digest).unwrap(), None);
    }
    check_readable(&ledger, "session/b");
    ledger.close().await;
    drop(ledger);
    let ledger = try_open_sealed(dir.path()).unwrap();
    check_readable(&ledger, "session/b");
    assert_eq!(
        verify(&export(&ledger, ExportScope::WholeLedger)).redacted,
        2
    );
}
