//! An export as evidence stands alone: verified offline, with the blobs that it refers to.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::time::Instant;

use fluxvm_eventstore::*;
use fluxvm_verify::FaultCode;
use fluxvm_verify::evidence::BLOB_CHUNK_BYTES;
use serde_json::json;
use support::*;

async fn with_blobs(ledger: &Ledger) -> (BlobDigest, BlobDigest) {
    let (small, large) = (bytes(500, 1), bytes(BLOB_CHUNK_BYTES + 9, 2));
    let large_digest = ledger.put_blob(large).await.unwrap();
    let small_digest = BlobDigest::of(&small);
    let payload = json!({
        "stdout": {"blob": small_digest.to_string(), "blake3": "00".repeat(32)},
        "stderr": {"blob": large_digest.to_string()},
    });
    let event = NewEvent::new(EventKind::parse("exec").unwrap(), 1, &payload).unwrap();
    let mut one = append(vec![to("session/a", ExpectedVersion::Any, vec![event])]);
    one.streams[0].attachments = vec![small];
    ledger.append(one).await.unwrap();
    (small_digest, large_digest)
}

#[tokio::test]
async fn evidence_holds_the_blobs_that_events_refer_to_where_it_is_asked_to() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/b", 2).await;
    with_blobs(&ledger).await;
    let scope = || ExportScope::Stream(stream("session/a"));
    let text = evidence(&ledger, scope(), Content::WithBlobs).await;
    let report = verify(&text);
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!((report.events, report.proofs, report.blobs), (1, 1, 2));
    assert_eq!(report.checkpoint.unwrap().size.get(), 3);
    let text = evidence(&ledger, scope(), Content::EventsOnly).await;
    assert_eq!(verify(&text).blobs, 0);
}

#[tokio::test]
async fn a_blob_that_was_tampered_with_is_found() {
    let (_dir, ledger) = new_ledger();
    let (small, large) = with_blobs(&ledger).await;
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::WithBlobs).await;
    let lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    assert_eq!(lines.len(), 6);
    let check = |lines: Vec<String>, expected: &[FaultCode]| {
        let report = verify(&lines.concat());
        let found: Vec<_> = report.faults.iter().map(|fault| fault.code).collect();
        assert_eq!(found, expected);
    };
    let content = lines[2].find("\"content\":\"").unwrap() + 11;
    let mut edited = lines.clone();
    edited[2].replace_range(content..=content, "/");
    check(edited, &[FaultCode::BlobDigest]);

    let mut without_end = lines.clone();
    without_end.remove(3);
    let cut = [FaultCode::BlobForm, FaultCode::BlobMissing];
    check(without_end, &cut);

    let mut without_start = lines.clone();
    without_start.remove(2);
    check(without_start, &cut);

    let mut foreign = lines.clone();
    let other = blake3::hash(b"").to_string();
    assert!(other != small.to_string() && other != large.to_string());
    foreign.insert(
        2,
        format!(
            "{{\"type\":\"blob\",\"digest\":\"{other}\",\"bytes\":0,\"offset\":0,\"content\":\"\"}}\n"
        ),
    );
    check(foreign, &[FaultCode::BlobForeign]);
}

#[tokio::test]
async fn evidence_ends_at_its_checkpoint_though_the_ledger_goes_on() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 5).await;
    let checkpoint = ledger.checkpoint().await.unwrap();
    fill(&ledger, "session/a", 600).await;
    for scope in [
        ExportScope::WholeLedger,
        ExportScope::Stream(stream("session/a")),
    ] {
        let options = EvidenceOptions {
            scope,
            content: Content::EventsOnly,
            required: nothing_required,
        };
        let lines = ledger.evidence(options, checkpoint.clone()).unwrap();
        let report = verify(&lines.collect::<Result<String, _>>().unwrap());
        assert!(report.is_clean(), "{:?}", report.faults);
        assert_eq!(report.events, 5);
    }
}

#[tokio::test]
async fn an_empty_ledger_is_evidence_of_nothing_having_happened() {
    let (_dir, ledger) = new_ledger();
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    let report = verify(&text);
    assert!(report.is_clean(), "{:?}", report.faults);
    let options = EvidenceOptions {
        scope: ExportScope::Stream(stream("session/none")),
        content: Content::EventsOnly,
        required: nothing_required,
    };
    let refused = ledger.evidence(options, ledger.checkpoint().await.unwrap());
    assert!(matches!(refused.err(), Some(ReadError::NoStream { .. })));
}

/// Prints what it measured; the bound is for a release build.
#[tokio::test]
async fn ten_thousand_events_of_a_session_verify_in_less_than_a_second() {
    let (_dir, ledger) = new_ledger();
    for n in 0..100 {
        let events = (0..100).map(|at| event(n * 100 + at)).collect();
        let others = (0..100).map(event).collect();
        let both = vec![
            to("session/a", ExpectedVersion::Any, events),
            to("session/b", ExpectedVersion::Any, others),
        ];
        ledger.append(append(both)).await.unwrap();
    }
    let started = Instant::now();
    let scope = ExportScope::Stream(stream("session/a"));
    let text = evidence(&ledger, scope, Content::EventsOnly).await;
    let (exported, started) = (started.elapsed(), Instant::now());
    let report = verify(&text);
    let verified = started.elapsed();
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!((report.events, report.proofs), (10_000, 10_000));
    eprintln!(
        "{} bytes, exported in {exported:?}, verified in {verified:?}",
        text.len()
    );
    if !cfg!(debug_assertions) {
        assert!(verified.as_secs() < 1, "{verified:?}");
    }
}

/// As the vocabulary above the store would say it: the payload of such an event is a digest.
fn named_blob(event: &RecordedEvent) -> Vec<BlobDigest> {
    let text = event
        .payload_bytes()
        .and_then(|it| std::str::from_utf8(it).ok());
    let digest = text.and_then(|text| text.trim_matches('"').parse().ok());
    digest.into_iter().collect()
}

#[tokio::test]
async fn content_that_an_event_stands_for_and_that_is_missing_breaks_an_export_off() {
    let (dir, ledger) = new_ledger();
    let large = bytes(100_000, 3);
    let digest = ledger.put_blob(large).await.unwrap();
    let kind = EventKind::parse("test.named").unwrap();
    let other = BlobDigest::of(b"of something else");
    let naming = [digest.to_string(), other.to_string()];
    let naming = naming
        .iter()
        .map(|it| NewEvent::new(kind.clone(), 1, it).unwrap());
    let to = to("session/a", ExpectedVersion::Any, naming.collect());
    ledger.append(append(vec![to])).await.unwrap();
    let checkpoint = ledger.checkpoint().await.unwrap();
    let lines = |required| {
        let options = EvidenceOptions {
            scope: ExportScope::WholeLedger,
            content: Content::WithBlobs,
            required,
        };
        let lines = ledger.evidence(options, checkpoint.clone()).unwrap();
        lines.collect::<Result<Vec<String>, _>>()
    };
    let first_only = |event: &RecordedEvent| match event.seq() {
        GlobalSeq::FIRST => named_blob(event),
        _ => Vec::new(),
    };
    lines(first_only).unwrap();
    assert!(ledger.has_blob_of_event(GlobalSeq::FIRST, &digest).unwrap());

    std::fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    assert!(!ledger.has_blob_of_event(GlobalSeq::FIRST, &digest).unwrap());
    let broken = lines(first_only).err().unwrap();
    let ReadError::BlobMissing {
        digest: missing, ..
    } = broken
    else {
        panic!("{broken}");
    };
    assert_eq!(missing, digest);
    lines(nothing_required).unwrap();
}
