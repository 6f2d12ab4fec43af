//! Ledgers of the past, which every version must read for ever and understand the same way.
//!
//! `golden/ledger-<n>.jsonl` is the export of a ledger that a real daemon wrote in format `n`;
//! `golden/ledger-<n>.digests` has the digest of the state after each of its events. They were made
//! once and are never made again: a change after which this test fails has changed what old ledgers
//! mean, and the change is wrong, not the file. A new format version gets new files:
//!
//! ```text
//! cargo run -p fluxvm-replay-tests --example make_golden -- <n>
//! ```
//!
//! which refuses to write over an old one. What may change a digest rightly is a new field of the
//! state; then the new field gets a default that leaves old states as they were.

use std::collections::BTreeSet;

use fluxvm_replay_tests::digests;
use fluxvm_replay_tests::events_of;
use fluxvm_replay_tests::fold;
use fluxvm_replay_tests::unsigned;
use fluxvm_verify::verify_export;

/// Ledger number one.
const LEDGER_1: &[u8] = include_bytes!("golden/ledger-1.jsonl");

/// The state after each of its events.
const DIGESTS_1: &str = include_str!("golden/ledger-1.digests");

#[test]
fn ledger_one_verifies() {
    let report = verify_export(LEDGER_1, &unsigned());
    assert!(report.is_clean(), "{:#?}", report.faults);
    assert_eq!(report.events, DIGESTS_1.lines().count() as u64);
}

#[test]
fn ledger_one_means_what_it_meant_at_every_event() {
    let events = events_of(LEDGER_1);
    let now = digests(&events);
    for (now, then) in now.lines().zip(DIGESTS_1.lines()) {
        assert_eq!(now, then, "the first event after which the state differs");
    }
    assert_eq!(now, DIGESTS_1);
}

/// Every kind that the version which wrote it could write, but for `exec.refused`, which no rule of
/// that version could bring about. Later kinds are later ledgers' matter.
const KINDS_1: [&str; 20] = [
    "exec",
    "exec.failed",
    "exec.started",
    "host.reconciled",
    "host.started",
    "host.stopped",
    "idempotency.answered",
    "idempotency.claimed",
    "idempotency.released",
    "lifecycle.interrupted",
    "replay",
    "replay.started",
    "sandbox.gone",
    "session.cleanup",
    "session.create",
    "session.create.failed",
    "session.create.started",
    "session.delete",
    "session.delete.started",
    "session.expire",
];

#[test]
fn ledger_one_holds_every_kind_of_event_that_its_version_could_write() {
    let events = events_of(LEDGER_1);
    let held: BTreeSet<&str> = events
        .iter()
        .map(|event| event.header.kind.as_str())
        .collect();
    assert_eq!(held, BTreeSet::from(KINDS_1));
    let unknown = held
        .iter()
        .find(|kind| !fluxvm_projections::Event::KINDS.contains(kind));
    assert_eq!(unknown, None, "no kind is ever forgotten");
}

#[test]
fn ledger_one_in_any_two_parts_folds_to_the_same_state() {
    let events = events_of(LEDGER_1);
    let whole = fold(&events).digest().expect("a digest");
    for cut in 0..=events.len() {
        let mut world = fold(&events[..cut]);
        for event in &events[cut..] {
            world.apply(event).expect("known");
        }
        assert_eq!(world.digest().expect("a digest"), whole, "cut at {cut}");
    }
}

#[test]
fn one_changed_byte_in_any_event_of_ledger_one_is_named() {
    let lines: Vec<&[u8]> = LEDGER_1.split_inclusive(|byte| *byte == b'\n').collect();
    for (index, line) in lines.iter().enumerate() {
        let mut changed = LEDGER_1.to_vec();
        let before: usize = lines[..index].iter().map(|line| line.len()).sum();
        let place = before + line.len() / 2;
        changed[place] ^= 1;
        let report = verify_export(changed.as_slice(), &unsigned());
        let found = report
            .faults
            .iter()
            .any(|fault| fault.line == index as u64 + 1);
        assert!(
            found,
            "byte {place} in line {}: {:?}",
            index + 1,
            report.faults
        );
    }
}
