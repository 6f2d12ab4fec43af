//! The format of release 1, as fixed bytes. If this test fails, the format was changed: that needs
//! a new format number, and the file here stays as it is.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use fluxvm_eventstore::ExpectedVersion::*;
use fluxvm_eventstore::*;
use fluxvm_verify::export::ExportLine;
use fluxvm_verify::export::parse_line;
use serde_json::json;
use support::*;
use uuid::Uuid;

const GOLDEN: &str = include_str!("golden/format-1.jsonl");
const GOLDEN_WHOLE: &str = include_str!("golden/format-2-whole.jsonl");
const GOLDEN_STREAM: &str = include_str!("golden/format-2-stream.jsonl");

/// A private key for tests only.
const KEY: &str =
    "PRIVATE+KEY+flux.example/ledger+669cf786+AQcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";

/// Time that goes on by a fixed step, and randomness that anyone could guess.
#[derive(Default)]
struct Fixed(AtomicU64);

impl Clock for Fixed {
    fn now(&self) -> RecordedAt {
        let step = self.0.fetch_add(1, Ordering::Relaxed);
        RecordedAt::from_unix_ns(1_796_119_200_123_456_789 + step * 1_000_001)
    }
}

impl Entropy for Fixed {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        for byte in bytes {
            *byte = self.0.fetch_add(7, Ordering::Relaxed) as u8;
        }
        Ok(())
    }
}

fn fixed(n: u128, streams: Vec<StreamAppend>) -> Append {
    Append {
        command_id: CommandId::new(Uuid::from_u128(0x0c << 120 | n)),
        correlation_id: CorrelationId::new(Uuid::from_u128(0x0d << 120 | n)),
        actor: Actor::parse("token:Jörg \"dev\"").unwrap(),
        streams,
    }
}

fn new_event(kind: &str, schema: u16, payload: serde_json::Value) -> NewEvent {
    NewEvent::new(EventKind::parse(kind).unwrap(), schema, &payload).unwrap()
}

async fn golden_ledger(dir: &std::path::Path) -> Ledger {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::create_dir(dir.join("secrets")).unwrap();
    // As a founding that was cut off behind the key.
    std::fs::create_dir(dir.join("ledger")).unwrap();
    std::fs::write(dir.join("ledger/founding"), b"").unwrap();
    let mut key = std::fs::OpenOptions::new();
    let key = key.write(true).create_new(true).mode(0o600);
    let key = key.open(options(dir).signing_key_file).unwrap();
    io::Write::write_all(&mut &key, KEY.as_bytes()).unwrap();
    let environment = Environment {
        clock: Arc::new(Fixed::default()),
        entropy: Arc::new(Fixed::default()),
        ..Environment::default()
    };
    let ledger = Ledger::open_in(options(dir), Box::new(|_| {}), environment).unwrap();

    let intent = new_event(
        "exec.started",
        1,
        json!({ "command": "printf 'é\n'", "cpus": 2 }),
    );
    let first = to(
        "session/0a",
        NoStream,
        vec![new_event("session.create", 1, json!({})), intent],
    );
    let events = ledger.append(fixed(1, vec![first])).await.unwrap();
    let outcome = new_event(
        "exec",
        3,
        json!({ "op": 2, "exit_code": -1, "b": [null, true, "\u{1}"] }),
    );
    let outcome = outcome.caused_by(events[1].header.event_id);
    let both = vec![
        to("session/0a", Exact(version(2)), vec![outcome]),
        to(
            "host",
            Any,
            vec![new_event("host.reconciled", 1, json!("\u{10000}\u{ffff}"))],
        ),
    ];
    ledger.append(fixed(2, both)).await.unwrap();
    ledger
}

#[tokio::test]
async fn the_same_appends_give_the_same_bytes_as_in_release_1() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = golden_ledger(dir.path()).await;
    assert_eq!(export(&ledger, ExportScope::WholeLedger), GOLDEN);
}

#[test]
fn the_export_of_release_1_verifies() {
    let report = verify(GOLDEN);
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!((report.events, report.streams), (4, 2));
}

#[test]
fn the_export_of_release_1_says_what_it_said_then() {
    let lines: Vec<_> = GOLDEN
        .lines()
        .map(|line| parse_line(line.as_bytes()).unwrap())
        .collect();
    let ExportLine::Header(header) = &lines[0] else {
        panic!("no header")
    };
    assert_eq!(
        header.genesis_hash.to_string(),
        "b9088b027ec5af524ab4d8a6824c3f81ea0934994c14c865b6746b2e82c34831"
    );
    let ExportLine::Event(event) = &lines[3] else {
        panic!("no event")
    };
    let header = &event.header;
    assert_eq!(
        (header.seq.get(), header.version.get(), header.schema),
        (3, 3, 3)
    );
    assert_eq!((&*header.stream, &*header.kind), ("session/0a", "exec"));
    assert_eq!(&*header.actor, "token:Jörg \"dev\"");
    assert_eq!(header.recorded_at.unix_ns(), 1_796_119_200_125_456_791);
    assert_eq!(
        header.event_id.to_string(),
        "01a2310c-017d-70f7-be05-0c131a21282f"
    );
    let ExportLine::Event(cause) = &lines[2] else {
        panic!("no event")
    };
    assert_eq!(header.causation_id, Some(cause.header.event_id));
    let payload = "{\"b\":[null,true,\"\\u0001\"],\"exit_code\":-1,\"op\":2}";
    assert_eq!(event.payload_bytes(), Some(payload.as_bytes()));
    assert_eq!(
        event.hash.to_string(),
        "ff9647e7e4f7db282f3730c3a73d6a0957cc2298b937d78a85e144424fa46121"
    );
    let ExportLine::End(end) = &lines[5] else {
        panic!("no end")
    };
    assert_eq!((end.events, end.head_seq), (4, GlobalSeq::new(4)));
}

/// The same ledger and more of it: a blob, and a key that is handed on.
async fn golden_evidence(dir: &std::path::Path) -> [String; 2] {
    let ledger = golden_ledger(dir).await;
    let blob = bytes(40, 3);
    let payload = json!({ "blob": BlobDigest::of(&blob).to_string() });
    let with_blob = vec![new_event("exec", 1, payload)];
    let mut third = fixed(3, vec![to("session/0a", Any, with_blob)]);
    third.streams[0].attachments = vec![blob];
    ledger.append(third).await.unwrap();
    let rotation = KeyRotation {
        command_id: CommandId::new(Uuid::from_u128(0x0c << 120 | 4)),
        correlation_id: CorrelationId::new(Uuid::from_u128(0x0d << 120 | 4)),
        actor: Actor::parse("admin:ops").unwrap(),
    };
    ledger.rotate_key(rotation).await.unwrap();
    let last = vec![new_event("session.delete", 1, json!({}))];
    let last = fixed(5, vec![to("session/0a", Any, last)]);
    ledger.append(last).await.unwrap();
    let stream = ExportScope::Stream(stream("session/0a"));
    [
        evidence(&ledger, ExportScope::WholeLedger, Content::WithBlobs).await,
        evidence(&ledger, stream, Content::WithBlobs).await,
    ]
}

#[tokio::test]
async fn the_same_appends_give_the_same_evidence_as_in_release_2() {
    let dir = tempfile::tempdir().unwrap();
    // That content came along was not said then.
    let said = ",\"content\":true}\n";
    let found = golden_evidence(dir.path()).await;
    assert!(found.iter().all(|text| text.contains(said)));
    let found = found.map(|text| text.replacen(said, "}\n", 1));
    assert_eq!(found, [GOLDEN_WHOLE, GOLDEN_STREAM]);
}

#[test]
fn the_evidence_of_release_2_verifies() {
    for (golden, proofs) in [(GOLDEN_WHOLE, 0), (GOLDEN_STREAM, 6)] {
        let report = verify(golden);
        assert!(report.is_clean(), "{:?}", report.faults);
        assert_eq!(
            (report.proofs, report.blobs, report.keys.len()),
            (proofs, 1, 2)
        );
        assert_eq!(report.checkpoint.unwrap().size.get(), 7);
    }
}
