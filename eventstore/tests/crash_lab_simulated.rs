//! The ledger on the plain store, on a disk that loses power, fails or fills up.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod crash_lab;
mod support;

use std::path::Path;
use std::sync::Arc;

use crash_lab::explore::Answered;
use crash_lab::explore::explore;
use crash_lab::explore::spread;
use crash_lab::shim::scratch;
use crash_lab::simulated::SimulatedDisk;
use crash_lab::trace::Disk;
use crash_lab::trace::Image;
use crash_lab::trace::Model;
use crash_lab::trace::Op;
use crash_lab::workload;
use crash_lab::*;
use fluxvm_eventstore::*;
use support::*;

const IMAGES: usize = 400;
const APPENDS: u64 = 150;

/// The ledger on the simulated disk. Blobs, key and head file are on the machine's own.
fn open_on(disk: &SimulatedDisk, dir: &Path) -> Result<Ledger, OpenError> {
    let environment = Environment {
        store: StoreKind::Plain(Arc::new(disk.clone())),
        ..Environment::default()
    };
    std::fs::create_dir_all(dir.join("ledger")).unwrap();
    Ledger::open_in(options(dir), Box::new(|_| {}), environment)
}

/// Opens an image beside the blobs and the key of the run. What the head file would say is compared
/// by the lab itself, so each image goes without.
fn open_image(image: &Image, run: &Path) -> Result<(Ledger, tempfile::TempDir), String> {
    let dir = scratch();
    let options = LedgerOptions {
        dir: dir.path().join("ledger"),
        ..options(run)
    };
    std::fs::create_dir_all(&options.dir).unwrap();
    let environment = Environment {
        store: StoreKind::Plain(Arc::new(SimulatedDisk::from_image(image))),
        ..Environment::default()
    };
    let opened = Ledger::open_in(options, Box::new(|_| {}), environment);
    opened
        .map(|ledger| (ledger, dir))
        .map_err(|e| e.to_string())
}

/// A run on `disk` until it is done or the ledger refuses.
fn run_on(disk: &SimulatedDisk, dir: &Path, seed: u64) {
    let Ok(ledger) = open_on(disk, dir) else {
        return;
    };
    let answered = disk.clone();
    let answer = move |facts| answered.answer(facts);
    runtime().block_on(workload::run(&ledger, APPENDS, seed, answer));
}

#[test]
fn no_loss_of_power_takes_an_answered_event_from_the_plain_store() {
    let seed = seed();
    let dir = scratch();
    let disk = SimulatedDisk::default();
    run_on(&disk, dir.path(), seed);
    let ops = disk.ops();
    let points = spread(&ops, 0, images(IMAGES), seed);
    let open = |image: &Image| open_image(image, dir.path());
    let findings = explore("plain store", &ops, &points, seed, open);
    assert_eq!(findings.failures, Vec::<String>::new());
    assert!(findings.images >= images(IMAGES));
}

#[test]
fn a_store_that_does_not_sync_is_caught_by_the_lab() {
    let seed = seed();
    let dir = scratch();
    let disk = SimulatedDisk::default();
    run_on(&disk, dir.path(), seed);
    // The run as a store without any sync behind the founding would have left it.
    let founded = disk
        .ops()
        .iter()
        .position(|op| matches!(op, Op::Answer { .. }))
        .unwrap();
    let without_syncs = |(at, op): (usize, &Op)| {
        (at < founded || !matches!(op, Op::SyncFile { .. })).then(|| op.clone())
    };
    let ops: Vec<Op> = disk
        .ops()
        .iter()
        .enumerate()
        .filter_map(without_syncs)
        .collect();
    let points = spread(&ops, founded, 50, seed);
    let open = |image: &Image| open_image(image, dir.path());
    let findings = explore("no syncs", &ops, &points, seed, open);
    let failed = findings.failures.len();
    assert!(
        failed > 20,
        "only {failed} of 50 were caught: is the lab blind?"
    );
}

/// What the disk holds now, with or without what was never synced.
fn image_of(ops: &[Op], model: Model) -> (Image, Answered) {
    let mut disk = Disk::default();
    let mut answered = Answered::default();
    for op in ops {
        disk.play(op);
        if let Op::Answer { text } = op {
            answered.take(text);
        }
    }
    (disk.image(model, &mut Random::new(1)), answered)
}

/// What was answered for is there under every model, and the ledger goes on.
fn assert_reopens(disk: &SimulatedDisk, dir: &Path, what: &str) -> usize {
    let models = [
        Model::KeepAll,
        Model::DropUnsynced,
        Model::RandomPieces(4096),
    ];
    let mut events = 0;
    for model in models {
        let (image, answered) = image_of(&disk.ops(), model);
        let (ledger, _dir) = open_image(&image, dir).unwrap_or_else(|e| panic!("{what}: {e}"));
        answered
            .check(&ledger, &answered)
            .unwrap_or_else(|e| panic!("{what}, {model:?}: {e}"));
        runtime().block_on(fill(&ledger, "host", 2));
        events = answered.events();
    }
    events
}

#[test]
fn whichever_sync_fails_first_nothing_after_it_is_answered_and_nothing_before_is_lost() {
    let dir = scratch();
    let whole = SimulatedDisk::default();
    run_on(&whole, dir.path(), 7);
    let syncs = whole.syncs();
    assert!(syncs > 40, "{syncs}");
    let step = (syncs / 25).max(1);
    for number in (1..=syncs).step_by(usize::try_from(step).unwrap()) {
        let dir = scratch();
        let disk = SimulatedDisk::default();
        disk.fail_from_sync(number);
        run_on(&disk, dir.path(), 7);
        let ops = disk.ops();
        let last_sync = ops.iter().rposition(|op| matches!(op, Op::SyncFile { .. }));
        let written_after = ops.iter().skip(last_sync.map_or(0, |at| at + 1));
        let written_after = written_after
            .filter(|op| matches!(op, Op::Write { .. }))
            .count();
        assert!(
            written_after <= 1,
            "{written_after} writes after sync {number} had failed"
        );
        assert_reopens(&disk, dir.path(), &format!("sync {number} of {syncs}"));
    }
}

#[test]
fn wherever_the_disk_fills_up_nothing_that_was_answered_is_lost() {
    let dir = scratch();
    let whole = SimulatedDisk::default();
    run_on(&whole, dir.path(), 7);
    let (image, _) = image_of(&whole.ops(), Model::KeepAll);
    let bytes: usize = image.files.values().map(Vec::len).sum();
    let mut answered = Vec::new();
    for part in 1..20 {
        let dir = scratch();
        let disk = SimulatedDisk::default();
        disk.limit_bytes(bytes * part / 20 + part);
        run_on(&disk, dir.path(), 7);
        answered.push(assert_reopens(
            &disk,
            dir.path(),
            &format!("{part}/20 of the disk"),
        ));
    }
    assert!(answered.last() > Some(&100), "{answered:?}");
}
