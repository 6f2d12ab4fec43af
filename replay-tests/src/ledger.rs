//! The ledger, read as an auditor reads it: without the daemon that wrote it.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::NewStreams;
use fluxvm_eventstore::SealOptions;
use fluxvm_projections::World;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::Report;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::export::ExportLine;
use fluxvm_verify::export::parse_line;
use fluxvm_verify::verify_export;

/// Memory for the store's cache, in bytes: these ledgers are small.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;

/// Verifies an export, which must have no fault and be signed.
///
/// # Panics
///
/// When it has one.
pub fn verified(export: &[u8]) -> Report {
    let report = verify_export(export, &VerifyOptions::default());
    assert!(report.is_clean(), "{:#?}", report.faults);
    report
}

/// What a ledger of before there were signatures is verified with.
#[must_use]
pub fn unsigned() -> VerifyOptions {
    VerifyOptions {
        allow_unsigned: true,
        ..VerifyOptions::default()
    }
}

/// The events of an export.
///
/// # Panics
///
/// When a line cannot be read.
#[must_use]
pub fn events_of(export: &[u8]) -> Vec<RecordedEvent> {
    let lines = export
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let events = lines.filter_map(
        |line| match parse_line(line).expect("a line of an export") {
            ExportLine::Event(event) => Some(event),
            _ => None,
        },
    );
    events.collect()
}

/// The events of a state folder whose daemon has ended. Opening verifies every one of them.
///
/// # Panics
///
/// When the ledger does not open.
#[must_use]
pub fn open_offline(state: &Path) -> Vec<Arc<RecordedEvent>> {
    let options = LedgerOptions {
        dir: state.join("ledger"),
        blobs_dir: state.join("blobs"),
        signing_key_file: state.join("secrets/ledger-signing-key"),
        origin: String::from("offline"),
        cache_bytes: CACHE_BYTES,
        archive: None,
        snapshots: None,
        seal: Some(SealOptions {
            keys_dir: state.join("secrets/seals"),
            new_streams: NewStreams::Open,
        }),
    };
    let seen: Arc<Mutex<Vec<Arc<RecordedEvent>>>> = Arc::default();
    let into = Arc::clone(&seen);
    let observer = move |page: &[Arc<RecordedEvent>]| {
        into.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(page.iter().cloned());
    };
    let ledger = Ledger::open(options, Box::new(observer)).expect("the ledger opens");
    drop(ledger);
    std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What these events add up to, folded from nothing.
///
/// # Panics
///
/// When one cannot be understood.
#[must_use]
pub fn fold<'a>(events: impl IntoIterator<Item = &'a RecordedEvent>) -> World {
    let mut world = World::default();
    for event in events {
        world
            .apply(event)
            .unwrap_or_else(|error| panic!("event {}: {error}", event.header.seq));
    }
    world
}

/// The digest of the state after each event, in one pass: `seq digest`, a line each.
///
/// # Panics
///
/// When an event cannot be understood.
#[must_use]
pub fn digests<'a>(events: impl IntoIterator<Item = &'a RecordedEvent>) -> String {
    let mut world = World::default();
    let mut lines = String::new();
    for event in events {
        world
            .apply(event)
            .unwrap_or_else(|error| panic!("event {}: {error}", event.header.seq));
        let digest = world.digest().expect("a state has a digest");
        lines.push_str(&format!("{} {digest}\n", event.header.seq));
    }
    lines
}
