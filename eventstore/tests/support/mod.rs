//! A ledger in a folder of its own, and short words for what the tests do with it.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "each test file uses its part of this, and a test may fail loudly"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fluxvm_eventstore::*;
use fluxvm_verify::Report;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::verify_export;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

pub fn options(dir: &Path) -> LedgerOptions {
    LedgerOptions {
        dir: dir.join("ledger"),
        blobs_dir: dir.join("blobs"),
        signing_key_file: dir.join("secrets/ledger-signing-key"),
        origin: "flux.example/ledger".to_owned(),
        cache_bytes: 16 * 1024 * 1024,
        archive: None,
        snapshots: None,
        seal: None,
    }
}

pub fn open(dir: &Path) -> Ledger {
    try_open(dir).unwrap()
}

pub fn try_open(dir: &Path) -> Result<Ledger, OpenError> {
    Ledger::open(options(dir), Box::new(|_| {}))
}

pub fn new_ledger() -> (TempDir, Ledger) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    (dir, ledger)
}

pub fn stream(name: &str) -> StreamName {
    StreamName::parse(name).unwrap()
}

pub fn event(n: u64) -> NewEvent {
    NewEvent::new(
        EventKind::parse("test.done").unwrap(),
        1,
        &json!({ "n": n }),
    )
    .unwrap()
}

pub fn to(name: &str, expected: ExpectedVersion, events: Vec<NewEvent>) -> StreamAppend {
    StreamAppend {
        stream: stream(name),
        expected,
        events,
        attachments: Vec::new(),
        kept: Vec::new(),
        sealed_for: None,
    }
}

pub fn append(streams: Vec<StreamAppend>) -> Append {
    Append {
        command_id: CommandId::new(Uuid::new_v4()),
        correlation_id: CorrelationId::new(Uuid::new_v4()),
        actor: Actor::parse("test:writer").unwrap(),
        streams,
    }
}

pub fn one(name: &str, n: u64) -> Append {
    append(vec![to(name, ExpectedVersion::Any, vec![event(n)])])
}

/// The order by which events are erased, as the daemon records it.
pub fn order(seqs: &[u64]) -> Append {
    let kind = EventKind::parse("ledger.redacted").unwrap();
    let payload = json!({"blobs": 0, "reason": "r", "seqs": seqs});
    let event = NewEvent::new(kind, 1, &payload).unwrap();
    append(vec![to("ledger", ExpectedVersion::Any, vec![event])])
}

pub async fn fill(ledger: &Ledger, name: &str, events: u64) {
    for n in 0..events {
        ledger.append(one(name, n)).await.unwrap();
    }
}

pub fn version(version: u64) -> StreamVersion {
    StreamVersion::new(version).unwrap()
}

pub fn export(ledger: &Ledger, scope: ExportScope) -> String {
    ledger
        .export(scope)
        .unwrap()
        .collect::<Result<String, _>>()
        .unwrap()
}

/// The export as evidence, up to the head of this instant.
pub async fn evidence(ledger: &Ledger, scope: ExportScope, content: Content) -> String {
    let checkpoint = ledger.checkpoint().await.unwrap();
    let options = EvidenceOptions {
        scope,
        content,
        required: nothing_required,
    };
    let lines = ledger.evidence(options, checkpoint).unwrap();
    lines.collect::<Result<String, _>>().unwrap()
}

/// An export of either format: most of these tests are of the chain, for which nobody need sign.
pub fn verify(export: &str) -> Report {
    let options = VerifyOptions {
        allow_unsigned: true,
        ..VerifyOptions::default()
    };
    verify_export(export.as_bytes(), &options)
}

/// All events, read page by page.
pub fn all(ledger: &Ledger) -> Vec<Arc<RecordedEvent>> {
    let mut events: Vec<Arc<RecordedEvent>> = Vec::new();
    loop {
        let after = events
            .last()
            .map_or(Position::START, |event| event.seq().position());
        let page = ledger.read(after, 100).unwrap();
        if page.is_empty() {
            return events;
        }
        events.extend(page);
    }
}

/// An observer and what it saw.
pub fn recorder() -> (Observer, Arc<Mutex<Vec<Arc<RecordedEvent>>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&seen);
    (
        Box::new(move |events| into.lock().unwrap().extend_from_slice(events)),
        seen,
    )
}

pub fn bytes(n: usize, seed: u8) -> Bytes {
    (0..n)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect::<Vec<_>>()
        .into()
}

/// Time that goes on by a fixed step and randomness that anyone could guess: two ledgers that are
/// asked the same under this are the same, byte for byte.
#[derive(Default)]
pub struct Repeatable(AtomicU64);

impl Clock for Repeatable {
    fn now(&self) -> RecordedAt {
        let step = self.0.fetch_add(1, Ordering::Relaxed);
        RecordedAt::from_unix_ns(1_796_119_200_123_456_789 + step * 1_000_001)
    }
}

impl Entropy for Repeatable {
    fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        for byte in bytes {
            *byte = (self.0.fetch_add(7, Ordering::Relaxed) >> 2) as u8;
        }
        Ok(())
    }
}

/// Everything repeatable, on the store that is named.
pub fn repeatable(store: StoreKind) -> Environment {
    Environment {
        clock: Arc::new(Repeatable::default()),
        entropy: Arc::new(Repeatable::default()),
        store,
        ..Environment::default()
    }
}

/// A current-thread runtime, for tests that are not async themselves.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}
