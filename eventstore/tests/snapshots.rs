//! A start from a snapshot is the same as one from zero; and whatever is wrong with a snapshot, it
//! is a start from zero and never a wrong one.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;

use fluxvm_eventstore::*;
use proptest::prelude::*;
use support::*;

/// A fold that every event changes: the hash of everything so far, and how many events were shown
/// to this one.
#[derive(Clone, Default)]
struct Sum {
    state: Arc<Mutex<(Vec<u8>, usize)>>,
    version: u8,
}

impl Sum {
    fn shown(&self) -> usize {
        self.state.lock().unwrap().1
    }

    fn hash(&self) -> Vec<u8> {
        self.state.lock().unwrap().0.clone()
    }
}

impl Follower for Sum {
    fn follow(&mut self, events: &[Arc<RecordedEvent>]) {
        let mut state = self.state.lock().unwrap();
        for event in events {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&state.0).update(event.hash.as_bytes());
            hasher.update(event.payload_bytes().unwrap_or_default());
            *state = (hasher.finalize().as_bytes().to_vec(), state.1 + 1);
        }
    }

    fn version(&self) -> Option<[u8; 32]> {
        Some([self.version; 32])
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.hash())
    }

    fn restore(&mut self, saved: &[u8]) -> bool {
        self.state.lock().unwrap().0 = saved.to_vec();
        true
    }

    fn reset(&mut self) {
        *self.state.lock().unwrap() = Default::default();
    }

    fn fresh(&self) -> Option<Box<dyn Follower>> {
        Some(Box::new(Sum {
            version: self.version,
            ..Sum::default()
        }))
    }
}

fn snapshot_options(dir: &Path, every_events: u64) -> LedgerOptions {
    LedgerOptions {
        snapshots: Some(SnapshotOptions {
            every_events,
            checks_behind: false,
        }),
        ..options(dir)
    }
}

fn open_with(options: LedgerOptions, version: u8) -> (Ledger, Sum) {
    let sum = Sum {
        version,
        ..Sum::default()
    };
    let opened = Ledger::open_following(options, Box::new(sum.clone()), Environment::default());
    (opened.unwrap(), sum)
}

fn open_summed(dir: &Path) -> (Ledger, Sum) {
    open_with(snapshot_options(dir, u64::MAX), 0)
}

/// The fold of all of it, read from zero and checked.
fn from_zero(dir: &Path) -> Vec<u8> {
    let (ledger, sum) = open_with(options(dir), 0);
    drop(ledger);
    sum.hash()
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir.join("ledger/snapshots")) else {
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_dir(&path, &name),
            false => drop(fs::copy(&path, name).unwrap()),
        }
    }
}

/// A closed ledger of 40 events and a snapshot of all of them.
async fn closed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open_summed(dir.path());
    fill(&ledger, "session/a", 25).await;
    fill(&ledger, "host", 15).await;
    ledger.close().await;
    drop(ledger);
    assert_eq!(snapshots(dir.path()).len(), 1);
    dir
}

#[tokio::test]
async fn a_start_behind_an_orderly_end_reads_nothing_again_and_knows_everything() {
    let dir = closed().await;
    let (ledger, sum) = open_summed(dir.path());
    assert_eq!(ledger.restored(), Position::new(40));
    assert_eq!(sum.shown(), 0);
    assert_eq!(
        ledger.stream_version(&stream("session/a")),
        Some(version(25))
    );
    assert_eq!(all(&ledger).len(), 40);
    let text = export(&ledger, ExportScope::WholeLedger);
    assert!(verify(&text).is_clean());
    let session = ExportScope::Stream(stream("session/a"));
    let proven = evidence(&ledger, session, Content::EventsOnly).await;
    assert!(verify(&proven).is_clean());
    // The stream goes on where it was, and only there.
    let wrong = to("host", ExpectedVersion::Exact(version(14)), vec![event(0)]);
    let refused = ledger.append(append(vec![wrong])).await;
    assert!(matches!(refused, Err(AppendError::Conflict { .. })));
    let right = to("host", ExpectedVersion::Exact(version(15)), vec![event(0)]);
    ledger.append(append(vec![right])).await.unwrap();
    assert_eq!(sum.shown(), 1);
    let live = sum.hash();
    ledger.close().await;
    drop(ledger);
    assert_eq!(live, from_zero(dir.path()));
}

#[tokio::test]
async fn a_command_from_before_the_snapshot_is_still_answered_with_what_it_did() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open_summed(dir.path());
    let command = one("host", 7);
    let first = ledger.append(command.clone()).await.unwrap();
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    drop(ledger);
    let (ledger, _) = open_summed(dir.path());
    assert_eq!(ledger.restored(), Position::new(6));
    assert_eq!(ledger.append(command).await.unwrap(), first);
    assert_eq!(ledger.head().position, Position::new(6));
}

#[tokio::test]
async fn a_key_that_was_handed_on_before_the_snapshot_still_speaks() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open_summed(dir.path());
    fill(&ledger, "host", 3).await;
    let rotation = KeyRotation {
        command_id: CommandId::from_bytes([1; 16]),
        correlation_id: CorrelationId::from_bytes([2; 16]),
        actor: Actor::parse("test").unwrap(),
    };
    ledger.rotate_key(rotation).await.unwrap();
    fill(&ledger, "host", 3).await;
    let keys = ledger.keys();
    ledger.close().await;
    drop(ledger);
    let (ledger, sum) = open_summed(dir.path());
    assert_eq!((ledger.restored(), sum.shown()), (Position::new(7), 0));
    assert_eq!(ledger.keys(), keys);
    let text = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    assert!(verify(&text).is_clean());
}

/// From a snapshot at every event, with what follows it read behind it, to the same end.
#[tokio::test]
async fn from_a_snapshot_at_any_event_the_end_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let events = 12;
    let mut taken = BTreeMap::new();
    for n in 0..events {
        let (ledger, _) = open_summed(dir.path());
        fill(&ledger, ["host", "session/a", "session/b"][n % 3], 1).await;
        ledger.close().await;
        drop(ledger);
        let newest = snapshots(dir.path()).pop().unwrap();
        taken.insert(n + 1, (newest.clone(), fs::read(newest).unwrap()));
    }
    let whole = from_zero(dir.path());
    for (at, (path, bytes)) in taken {
        fs::create_dir_all(dir.path().join("ledger/snapshots")).unwrap();
        snapshots(dir.path())
            .iter()
            .for_each(|path| fs::remove_file(path).unwrap());
        fs::write(path, bytes).unwrap();
        let (ledger, sum) = open_summed(dir.path());
        assert_eq!(ledger.restored().get(), at as u64);
        assert_eq!(sum.shown(), events - at);
        assert_eq!(sum.hash(), whole, "from {at}");
        assert!(verify(&export(&ledger, ExportScope::WholeLedger)).is_clean());
    }
}

#[tokio::test]
async fn whatever_is_wrong_with_a_snapshot_it_is_a_start_from_zero() {
    let dir = closed().await;
    let path = snapshots(dir.path()).pop().unwrap();
    let good = fs::read(&path).unwrap();
    let whole = from_zero(dir.path());
    let mut spoilt: Vec<(String, Vec<u8>)> = Vec::new();
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        spoilt.push((format!("byte {at} flipped"), flipped));
        spoilt.push((format!("cut at {at}"), good[..at].to_vec()));
    }
    spoilt.push(("longer".to_owned(), [&good[..], &[0]].concat()));
    for (what, bytes) in spoilt {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let (ledger, sum) = open_summed(dir.path());
        assert_eq!(ledger.restored(), Position::START, "{what}");
        assert_eq!((sum.shown(), sum.hash()), (40, whole.clone()), "{what}");
        assert!(!path.exists(), "{what}");
    }
}

#[tokio::test]
async fn a_snapshot_of_another_fold_or_key_or_ledger_is_left_out() {
    let dir = closed().await;
    let options = snapshot_options(dir.path(), u64::MAX);
    let (ledger, sum) = open_with(options.clone(), 1);
    assert_eq!((ledger.restored(), sum.shown()), (Position::START, 40));
    drop(ledger);

    // The same bytes under the key of another ledger.
    let other = closed().await;
    let (from, to) = (snapshots(dir.path()), snapshots(other.path()));
    fs::copy(&from[0], &to[0]).unwrap();
    let (ledger, sum) = open_summed(other.path());
    assert_eq!((ledger.restored(), sum.shown()), (Position::START, 40));
    drop(ledger);
    let (ledger, _) = open_with(options, 1);
    assert_eq!(ledger.restored(), Position::new(40));
}

#[tokio::test]
async fn a_snapshot_of_events_that_the_ledger_has_lost_does_not_hide_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, _) = open_summed(dir.path());
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    drop(ledger);
    let old = tempfile::tempdir().unwrap();
    copy_dir(&dir.path().join("ledger"), old.path());
    let (ledger, _) = open_summed(dir.path());
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    drop(ledger);
    let kept = snapshots(dir.path());
    let head = fs::read(dir.path().join("ledger/head")).unwrap();
    let bytes: Vec<_> = kept.iter().map(|path| fs::read(path).unwrap()).collect();
    fs::remove_dir_all(dir.path().join("ledger")).unwrap();
    copy_dir(old.path(), &dir.path().join("ledger"));
    fs::write(dir.path().join("ledger/head"), head).unwrap();
    for (path, bytes) in kept.iter().zip(bytes) {
        fs::write(path, bytes).unwrap();
    }
    let options = snapshot_options(dir.path(), u64::MAX);
    let lost = Ledger::open_following(options, Box::new(Sum::default()), Environment::default());
    assert!(matches!(lost.err(), Some(OpenError::TailMissing { .. })));
}

#[tokio::test]
async fn snapshots_are_taken_while_the_ledger_is_in_use_and_two_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, sum) = open_with(snapshot_options(dir.path(), 10), 0);
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..400 {
        ledger.append(one("host", n)).await.unwrap();
        seen.extend(snapshots(dir.path()));
    }
    let live = sum.hash();
    // As a crash leaves it: whatever is on the disk now.
    let crashed = tempfile::tempdir().unwrap();
    copy_dir(dir.path(), crashed.path());
    ledger.close().await;
    drop(ledger);
    assert!(seen.len() > 2, "{seen:?}");
    let finished = |paths: Vec<PathBuf>| {
        paths
            .iter()
            .filter(|it| it.extension().unwrap() == "snapshot")
            .count()
    };
    assert_eq!(finished(snapshots(dir.path())), 2);
    let (ledger, sum) = open_summed(crashed.path());
    assert!(ledger.restored() > Position::START);
    assert_eq!(sum.hash(), live);
}

#[tokio::test]
async fn what_is_erased_is_in_no_snapshot_and_none_from_before_is_used() {
    let dir = closed().await;
    let before = snapshots(dir.path()).pop().unwrap();
    let bytes = fs::read(&before).unwrap();
    let (ledger, _) = open_summed(dir.path());
    let redaction = Redaction {
        seqs: vec![GlobalSeq::FIRST],
        blobs: Vec::new(),
        looked_until: ledger.head().position,
        append: one("ledger", 0),
    };
    ledger.redact(redaction).await.unwrap();
    assert_eq!(snapshots(dir.path()), Vec::<PathBuf>::new());
    ledger.close().await;
    drop(ledger);
    // One that somebody put back is not used, and does not stay.
    snapshots(dir.path())
        .iter()
        .for_each(|path| fs::remove_file(path).unwrap());
    fs::write(&before, bytes).unwrap();
    let (ledger, sum) = open_summed(dir.path());
    assert_eq!((ledger.restored(), sum.shown()), (Position::START, 41));
    assert!(!before.exists());
}

#[tokio::test]
async fn damage_that_a_start_skipped_is_found_behind_it_and_the_next_start_says_so() {
    let dir = closed().await;
    let store = dir.path().join("ledger/db");
    // The payload of an old event, as the store has it on the disk.
    let bytes = fs::read(&store).unwrap();
    let needle = b"{\"n\":3}";
    let places = bytes.windows(needle.len()).enumerate();
    let places: Vec<usize> = places
        .filter(|(_, it)| it == needle)
        .map(|(at, _)| at)
        .collect();
    let file = fs::OpenOptions::new().write(true).open(&store).unwrap();
    for at in places {
        file.write_all_at(b"4", (at + 5) as u64).unwrap();
    }
    let mut options = snapshot_options(dir.path(), u64::MAX);
    options.snapshots.as_mut().unwrap().checks_behind = true;
    let opened = Ledger::open_following(options, Box::new(Sum::default()), Environment::default());
    // The store's own checksums may find it first.
    if let Ok(ledger) = opened {
        let mut poisoned = ledger.poisoned();
        poisoned.wait_for(Option::is_some).await.unwrap();
        drop(ledger);
        assert_eq!(snapshots(dir.path()), Vec::<PathBuf>::new());
    }
    assert!(try_open(dir.path()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Any appends, with ends in between where they may, and the state that every start comes to.
    #[test]
    fn any_history_with_any_ends_in_it_comes_to_the_same_from_snapshots_as_from_zero(
        runs in prop::collection::vec(prop::collection::vec((0_usize..4, 1_u64..4), 0..6), 1..5),
        every in 1_u64..8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = runtime();
        let mut last = Vec::new();
        for run in runs {
            let (ledger, sum) = open_with(snapshot_options(dir.path(), every), 0);
            prop_assert_eq!(&sum.hash(), &last);
            runtime.block_on(async {
                for (which, events) in run {
                    fill(&ledger, ["host", "session/a", "session/b", "ledger"][which], events).await;
                }
            });
            last = sum.hash();
            drop(ledger);
        }
        prop_assert_eq!(from_zero(dir.path()), last);
    }
}
