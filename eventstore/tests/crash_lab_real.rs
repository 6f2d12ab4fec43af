//! The ledger as it is in use, recorded call by call, and opened on what a disk may hold after the
//! power went.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod crash_lab;
mod support;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crash_lab::explore::Answered;
use crash_lab::explore::every;
use crash_lab::explore::explore;
use crash_lab::explore::spread;
use crash_lab::shim;
use crash_lab::shim::scratch;
use crash_lab::trace::Image;
use crash_lab::trace::Op;
use crash_lab::workload;
use crash_lab::*;
use fluxvm_eventstore::*;
use support::*;

const IMAGES: usize = 200;
const APPENDS: u64 = 120;
const CHILD: &str = "child_that_is_recorded";

/// Not a test by itself: the child that runs below the shim. It opens the ledger twice, since the
/// second opening writes too.
#[test]
fn child_that_is_recorded() {
    let Ok(root) = std::env::var(shim::ROOT) else {
        return;
    };
    let root = Path::new(&root);
    let mut options = OpenOptions::new();
    let answers = options
        .create_new(true)
        .append(true)
        .open(root.join(shim::ANSWERS))
        .unwrap();
    let answer = |facts: String| (&answers).write_all(facts.as_bytes()).unwrap();
    for round in 0..2 {
        let Ok(ledger) = try_open(root) else { return };
        runtime().block_on(workload::run(
            &ledger,
            APPENDS / 2,
            seed() + 50 * round,
            answer,
        ));
        runtime().block_on(ledger.close());
    }
}

/// Not a test by itself: the same with many openings and little in between. Each time something is
/// erased, so that the next opening writes the store anew.
#[test]
fn child_that_is_recorded_opening() {
    let Ok(root) = std::env::var(shim::ROOT) else {
        return;
    };
    let root = Path::new(&root);
    let mut options = OpenOptions::new();
    let answers = options
        .create_new(true)
        .append(true)
        .open(root.join(shim::ANSWERS))
        .unwrap();
    let answer = |facts: String| (&answers).write_all(facts.as_bytes()).unwrap();
    for round in 0..4 {
        let ledger = open(root);
        runtime().block_on(workload::run(&ledger, 6, seed() + 50 * round, answer));
        runtime().block_on(workload::erase(&ledger, 1 + round, answer));
        runtime().block_on(ledger.close());
    }
}

/// Not a test by itself: the same with an archive. A writer goes on when its events are archived.
#[test]
fn child_that_is_recorded_with_an_archive() {
    let Ok(root) = std::env::var(shim::ROOT) else {
        return;
    };
    let root = Path::new(&root);
    let mut options = OpenOptions::new();
    let answers = options
        .create_new(true)
        .append(true)
        .open(root.join(shim::ANSWERS))
        .unwrap();
    for round in 0..2 {
        let ledger = Ledger::open(archived_options(root), Box::new(|_| {})).unwrap();
        let status = ledger.archive().unwrap();
        let answer = |facts: String| {
            let seq = facts.lines().filter_map(|line| line.strip_prefix("event "));
            let seq = seq
                .filter_map(|fact| fact.split(' ').next()?.parse().ok())
                .next_back();
            // A blob that was put by itself follows at some time; nothing says when.
            let Some(seq) = seq else { return };
            while status.borrow().archived < Position::new(seq) {
                assert_eq!(status.borrow().failed, None);
                std::thread::yield_now();
            }
            (&answers).write_all(facts.as_bytes()).unwrap();
        };
        runtime().block_on(workload::run(
            &ledger,
            APPENDS / 2,
            seed() + 50 * round,
            answer,
        ));
        runtime().block_on(workload::erase(&ledger, 1 + round, answer));
        runtime().block_on(ledger.close());
    }
}

fn archived_options(root: &Path) -> LedgerOptions {
    let archive = ArchiveOptions {
        dir: root.join("archive"),
        on_failure: ArchiveFailure::Stop,
    };
    LedgerOptions {
        archive: Some(archive),
        ..options(root)
    }
}

/// The ledger that is rebuilt from the archive of an image, after which ledger and archive are
/// opened together and have to find each other in order.
fn rebuild_image(image: &Image) -> Result<(Ledger, tempfile::TempDir), String> {
    let dir = scratch();
    shim::write_image(image, dir.path());
    let rebuilt = LedgerOptions {
        dir: dir.path().join("rebuilt/ledger"),
        blobs_dir: dir.path().join("rebuilt/blobs"),
        ..options(dir.path())
    };
    let archive = dir.path().join("archive");
    rebuild_from_archive(&archive, &rebuilt).map_err(|e| e.to_string())?;
    let ledger = Ledger::open(archived_options(dir.path()), Box::new(|_| {}));
    let ledger = ledger.map_err(|e| e.to_string())?;
    let status = ledger.archive().unwrap();
    runtime().block_on(ledger.close());
    let (status, head) = (status.borrow().clone(), ledger.head().position);
    drop(ledger);
    if status.failed.is_some() || status.archived != head {
        return Err(format!(
            "the archive beside a ledger of {head} events: {status:?}"
        ));
    }
    let ledger = Ledger::open(rebuilt, Box::new(|_| {})).map_err(|e| e.to_string())?;
    Ok((ledger, dir))
}

fn open_image(image: &Image) -> Result<(Ledger, tempfile::TempDir), String> {
    let dir = scratch();
    shim::write_image(image, dir.path());
    let opened = try_open(dir.path());
    opened
        .map(|ledger| (ledger, dir))
        .map_err(|e| e.to_string())
}

/// The folder of the run, and the shim in it; none, and a word about it, without a C compiler.
fn shim_in(dir: &Path) -> Option<std::path::PathBuf> {
    let shim = shim::compile(dir);
    if shim.is_none() {
        println!("crash lab: there is no C compiler, the real store is not recorded");
    }
    shim
}

#[test]
fn no_loss_of_power_takes_an_answered_event_from_the_real_store() {
    let seed = seed();
    let dir = scratch();
    let Some(shim) = shim_in(dir.path()) else {
        return;
    };
    let ops = shim::record(&shim, CHILD, &dir.path().join("run"), None);
    let count = |wanted: fn(&Op) -> bool| ops.iter().filter(|op| wanted(op)).count();
    assert!(
        count(|op| matches!(op, Op::Answer { .. })) > 100,
        "too few answers were seen"
    );
    assert!(
        count(|op| matches!(op, Op::SyncFile { .. })) > 50,
        "too few syncs were seen"
    );
    let points = spread(&ops, 0, images(IMAGES), seed);
    let findings = explore("real store", &ops, &points, seed, open_image);
    assert_eq!(findings.failures, Vec::<String>::new());
    assert!(findings.images >= images(IMAGES));
}

/// Opening and closing are where the store writes what it never writes in between, and they are too
/// short to be met often among all the rest.
#[test]
fn no_loss_of_power_while_the_real_store_is_founded_opened_or_closed_keeps_it_shut() {
    let seed = seed();
    let dir = scratch();
    let Some(shim) = shim_in(dir.path()) else {
        return;
    };
    let child = "child_that_is_recorded_opening";
    let ops = shim::record(&shim, child, &dir.path().join("run"), None);
    // In the long run that is every point there is.
    let step = ops.len().div_ceil(images(IMAGES) / 5);
    let points: Vec<usize> = every(&ops).into_iter().step_by(step).collect();
    let findings = explore(
        "real store, opened and closed",
        &ops,
        &points,
        seed,
        open_image,
    );
    assert_eq!(findings.failures, Vec::<String>::new());
}

fn first_answer(ops: &[Op]) -> usize {
    ops.iter()
        .position(|op| matches!(op, Op::Answer { .. }))
        .unwrap()
}

#[test]
fn no_loss_of_power_takes_an_archived_event_from_the_archive() {
    let seed = seed();
    let dir = scratch();
    let Some(shim) = shim_in(dir.path()) else {
        return;
    };
    let child = "child_that_is_recorded_with_an_archive";
    let ops = shim::record(&shim, child, &dir.path().join("run"), None);
    let points = spread(&ops, first_answer(&ops), images(IMAGES) / 5, seed);
    let findings = explore("archive", &ops, &points, seed, rebuild_image);
    assert_eq!(findings.failures, Vec::<String>::new());
}

#[test]
fn a_real_store_without_our_own_syncs_is_caught_by_the_lab() {
    let seed = seed();
    let dir = scratch();
    let Some(shim) = shim_in(dir.path()) else {
        return;
    };
    let ops = shim::record(&shim, CHILD, &dir.path().join("run"), None);
    let founded = first_answer(&ops);
    let is_db = |op: &&Op| matches!(op, Op::Create { path, .. } if path == "ledger/db");
    let Some(Op::Create { inode: db, .. }) = ops.iter().find(is_db) else {
        panic!("the store's file was never made")
    };
    // What sled by itself would have left: it syncs nothing when it flushes.
    let without_ours = |(at, op): (usize, &Op)| {
        let ours = at >= founded && matches!(op, Op::SyncFile { inode } if inode == db);
        (!ours).then(|| op.clone())
    };
    let ops: Vec<Op> = ops.iter().enumerate().filter_map(without_ours).collect();
    let points = spread(&ops, founded, 50, seed);
    let findings = explore(
        "real store without our syncs",
        &ops,
        &points,
        seed,
        open_image,
    );
    let failed = findings.failures.len();
    assert!(
        failed > 20,
        "only {failed} of 50 were caught: is the lab blind?"
    );
}

#[test]
fn whichever_sync_of_the_real_store_fails_first_nothing_after_it_is_answered() {
    let dir = scratch();
    let Some(shim) = shim_in(dir.path()) else {
        return;
    };
    let whole = shim::record(&shim, CHILD, &dir.path().join("whole"), None);
    let is_sync = |op: &&Op| matches!(op, Op::SyncFile { .. } | Op::SyncDir { .. });
    let syncs = whole.iter().filter(is_sync).count();
    let tries = images(IMAGES) / 30;
    for at in 1..=tries {
        let number = syncs * at / (tries + 1) + 1;
        let root = dir.path().join(format!("fails-{at}"));
        let ops = shim::record(&shim, CHILD, &root, Some(number as u64));
        let mut answered = Answered::default();
        let last_sync = ops.iter().rposition(|op| is_sync(&op)).unwrap_or_default();
        let mut answers_behind = 0;
        for (at, op) in ops.iter().enumerate() {
            if let Op::Answer { text } = op {
                answered.take(text);
                answers_behind += usize::from(at > last_sync);
            }
        }
        // The group that the last good sync made durable, and nothing more: one append a writer.
        assert!(
            answers_behind <= 3,
            "{answers_behind} answers behind sync {number}"
        );
        let ledger = open(&root);
        answered.check(&ledger, &answered).unwrap();
        runtime().block_on(fill(&ledger, "host", 2));
    }
}
