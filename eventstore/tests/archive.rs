//! The archive holds what the ledger holds, never delays it, says when it fails, and gives the same
//! ledger again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;

use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

fn archive_dir(dir: &Path) -> PathBuf {
    dir.join("archive")
}

fn archived_options(dir: &Path, on_failure: ArchiveFailure) -> LedgerOptions {
    let archive = ArchiveOptions {
        dir: archive_dir(dir),
        on_failure,
    };
    LedgerOptions {
        archive: Some(archive),
        ..options(dir)
    }
}

fn open_archived(dir: &Path) -> Ledger {
    let options = archived_options(dir, ArchiveFailure::Report);
    Ledger::open(options, Box::new(|_| {})).unwrap()
}

/// Waits until the archive has caught up with the head, or has failed.
async fn settled(ledger: &Ledger) -> ArchiveStatus {
    let head = ledger.head().position;
    let mut status = ledger.archive().unwrap();
    let settled = status.wait_for(|status| status.archived >= head || status.failed.is_some());
    settled.await.unwrap().clone()
}

/// Every kind of thing that a ledger can hold.
async fn fill_with_everything(ledger: &Ledger, seed: u8) -> Vec<BlobDigest> {
    fill(ledger, "host", 20).await;
    let mut with_attachments = one("session/a", 1);
    with_attachments.streams[0].attachments = vec![bytes(2000, seed), bytes(60_000, seed)];
    ledger.append(with_attachments).await.unwrap();
    let kind = EventKind::parse("test.large").unwrap();
    let large = NewEvent::new(kind, 1, &json!("x".repeat(200_000))).unwrap();
    let large = append(vec![to("session/b", ExpectedVersion::Any, vec![large])]);
    ledger.append(large).await.unwrap();
    let put = ledger.put_blob(bytes(300_000, seed)).await.unwrap();
    vec![
        BlobDigest::of(&bytes(2000, seed)),
        BlobDigest::of(&bytes(60_000, seed)),
        put,
    ]
}

/// Rebuilds into a new folder with the same key, opens, and compares everything.
fn assert_rebuilds(dir: &Path, expected: &str, blobs: &[BlobDigest]) {
    let new = tempfile::tempdir().unwrap();
    let mut options = options(new.path());
    options.signing_key_file = support::options(dir).signing_key_file;
    let rebuilt = rebuild_from_archive(&archive_dir(dir), &options).unwrap();
    let ledger = Ledger::open(options, Box::new(|_| {})).unwrap();
    assert_eq!(ledger.head(), rebuilt.head);
    assert!(rebuilt.was_complete);
    assert_eq!(export(&ledger, ExportScope::WholeLedger), expected);
    for digest in blobs {
        assert!(
            ledger.blob(digest).unwrap().is_some(),
            "blob {digest} is lost"
        );
    }
    runtime().block_on(fill(&ledger, "host", 3));
}

#[test]
fn a_ledger_rebuilt_from_its_archive_is_the_same_to_the_last_byte() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    let (blobs, text) = runtime().block_on(async {
        let blobs = fill_with_everything(&ledger, 1).await;
        let text = export(&ledger, ExportScope::WholeLedger);
        ledger.close().await;
        (blobs, text)
    });
    drop(ledger);
    // The original may be as broken as it likes.
    fs::remove_dir_all(dir.path().join("ledger")).unwrap();
    fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    assert_rebuilds(dir.path(), &text, &blobs);
}

#[test]
fn an_archive_that_is_begun_late_or_lost_gets_everything_from_before() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open(dir.path());
    let mut blobs = runtime().block_on(fill_with_everything(&ledger, 1));
    drop(ledger);
    for round in 2..4 {
        let ledger = open_archived(dir.path());
        runtime().block_on(async {
            blobs.extend(fill_with_everything(&ledger, round).await);
            assert_eq!(settled(&ledger).await.failed, None);
            ledger.close().await;
        });
        let text = export_of(dir.path());
        assert_rebuilds(dir.path(), &text, &blobs);
        drop(ledger);
        fs::remove_dir_all(archive_dir(dir.path())).unwrap();
    }
}

#[test]
fn what_was_appended_without_the_archive_is_added_at_the_next_opening_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut blobs = Vec::new();
    for round in 0..4 {
        let ledger = match round % 2 {
            0 => open_archived(dir.path()),
            _ => open(dir.path()),
        };
        blobs.extend(runtime().block_on(fill_with_everything(&ledger, round)));
    }
    drop(open_archived(dir.path()));
    let text = export_of(dir.path());
    assert_rebuilds(dir.path(), &text, &blobs);
}

fn export_of(dir: &Path) -> String {
    // The archive of a ledger that is open elsewhere is not needed for reading.
    export(&open(dir), ExportScope::WholeLedger)
}

#[tokio::test]
async fn a_torn_end_of_the_archive_is_cut_off_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    fill(&ledger, "host", 10).await;
    ledger.close().await;
    drop(ledger);
    let file = archive_dir(dir.path()).join("0000000001.log");
    let whole = fs::read(&file).unwrap();
    for cut in [1, 40, whole.len() / 2, whole.len() - 1, whole.len()] {
        fs::write(&file, &whole[..whole.len() - cut]).unwrap();
        let ledger = open_archived(dir.path());
        assert_eq!(settled(&ledger).await.failed, None);
        ledger.close().await;
        drop(ledger);
        assert_rebuilds_async(dir.path()).await;
    }
}

async fn assert_rebuilds_async(dir: &Path) {
    let dir = dir.to_owned();
    let check = move || assert_rebuilds(&dir, &export_of(&dir), &[]);
    tokio::task::spawn_blocking(check).await.unwrap();
}

#[tokio::test]
async fn damage_in_the_archive_is_reported_and_nothing_is_rebuilt_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    fill(&ledger, "host", 10).await;
    ledger.close().await;
    drop(ledger);
    let file = archive_dir(dir.path()).join("0000000001.log");
    let mut damaged = fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&file, &damaged).unwrap();

    let ledger = open_archived(dir.path());
    let failed = settled(&ledger).await.failed;
    assert!(
        failed
            .as_ref()
            .is_some_and(|reason| reason.contains("damaged")),
        "{failed:?}"
    );
    fill(&ledger, "host", 1).await;
    assert_eq!(
        fs::read(&file).unwrap(),
        damaged,
        "a damaged archive was written to"
    );

    let new = tempfile::tempdir().unwrap();
    let refused = rebuild_from_archive(&archive_dir(dir.path()), &options(new.path()));
    assert!(
        matches!(refused, Err(RebuildError::Archive { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_flipped_bit_in_the_archive_is_an_error_or_changes_nothing_or_is_at_its_end_and_said() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    let whole = runtime().block_on(async {
        fill(&ledger, "host", 30).await;
        let head = ledger.head();
        ledger.close().await;
        head
    });
    let file = archive_dir(dir.path()).join("0000000001.log");
    let good = fs::read(&file).unwrap();
    let mut errors = 0;
    for n in 0..150 {
        let mut bad = good.clone();
        bad[n * good.len() / 150 + n % 7] ^= 1 << (n % 8);
        fs::write(&file, &bad).unwrap();
        let new = tempfile::tempdir().unwrap();
        match rebuild_from_archive(&archive_dir(dir.path()), &options(new.path())) {
            Ok(rebuilt) => assert!(rebuilt.head == whole || !rebuilt.was_complete, "flip {n}"),
            Err(_) => errors += 1,
        }
    }
    assert!(errors > 130, "{errors}");
}

#[tokio::test]
async fn an_archive_of_another_ledger_or_ahead_of_this_one_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    fill(&ledger, "host", 10).await;
    ledger.close().await;
    drop(ledger);
    let file = archive_dir(dir.path()).join("0000000001.log");
    let before = fs::read(&file).unwrap();

    let other = tempfile::tempdir().unwrap();
    let mut options = archived_options(dir.path(), ArchiveFailure::Stop);
    options.dir = other.path().join("ledger");
    options.blobs_dir = other.path().join("blobs");
    options.signing_key_file = other.path().join("key");
    let ledger = Ledger::open(options, Box::new(|_| {})).unwrap();
    let mut poisoned = ledger.poisoned();
    let reason = poisoned
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();
    assert!(reason.contains("another ledger"), "{reason}");
    let refused = ledger.append(one("host", 1)).await;
    assert!(matches!(refused, Err(AppendError::Poisoned { .. })));
    drop(ledger);
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn a_ledger_is_rebuilt_in_an_empty_folder_only() {
    let (dir, ledger) = new_ledger();
    drop(ledger);
    let refused = rebuild_from_archive(&archive_dir(dir.path()), &options(dir.path()));
    assert!(matches!(refused, Err(RebuildError::NotEmpty { .. })));
    let new = tempfile::tempdir().unwrap();
    let refused = rebuild_from_archive(&archive_dir(dir.path()), &options(new.path()));
    assert!(matches!(refused, Err(RebuildError::Archive { .. })));
}

/// The real files, with syncs that wait at a gate or fail.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: bool,
    failing: bool,
}

impl Gate {
    fn set(&self, shut: bool, failing: bool) {
        *self.state.lock().unwrap() = GateState { shut, failing };
        self.changed.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        let state = self.changed.wait_while(state, |state| state.shut).unwrap();
        match state.failing {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

struct GatedFiles(Arc<dyn FileSystem>, Arc<Gate>);
struct GatedFile(Arc<dyn StoreFile>, Arc<Gate>);

impl FileSystem for GatedFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.create_dir(dir)
    }
    fn lock(&self, dir: &Path) -> io::Result<Option<fs::File>> {
        self.0.lock(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        Ok(Arc::new(GatedFile(self.0.open(path)?, Arc::clone(&self.1))))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        Ok(Arc::new(GatedFile(
            self.0.create(path)?,
            Arc::clone(&self.1),
        )))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
}

impl StoreFile for GatedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.0.truncate(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.1.pass()?;
        self.0.sync()
    }
}

fn open_gated(dir: &Path, gate: &Arc<Gate>, on_failure: ArchiveFailure) -> Ledger {
    let files = GatedFiles(Environment::real_files(), Arc::clone(gate));
    let environment = Environment {
        archive_files: Arc::new(files),
        ..Environment::default()
    };
    let options = archived_options(dir, on_failure);
    Ledger::open_in(options, Box::new(|_| {}), environment).unwrap()
}

#[test]
fn no_writer_waits_for_an_archive_that_hangs_and_it_catches_up_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let ledger = open_gated(dir.path(), &gate, ArchiveFailure::Stop);
    let text = runtime().block_on(async {
        fill(&ledger, "host", 2).await;
        settled(&ledger).await;
        gate.set(true, false);
        // More than may wait in memory.
        for n in 0..300 {
            let mut large = one("session/a", n);
            large.streams[0].attachments = (0..4).map(|at| bytes(65_000 + at, n as u8)).collect();
            ledger.append(large).await.unwrap();
        }
        fill(&ledger, "host", 20).await;
        assert!(ledger.archive().unwrap().borrow().archived < ledger.head().position);
        gate.set(false, false);
        let status = settled(&ledger).await;
        assert_eq!(
            (status.archived, status.failed),
            (ledger.head().position, None)
        );
        ledger.close().await;
        export_of(dir.path())
    });
    assert_rebuilds(dir.path(), &text, &[BlobDigest::of(&bytes(65_000, 200))]);
}

#[tokio::test]
async fn an_archive_whose_sync_fails_stops_the_ledger_or_is_reported_as_was_chosen() {
    for on_failure in [ArchiveFailure::Stop, ArchiveFailure::Report] {
        let dir = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate::default());
        // An archive that was ended in order has nothing to catch up with when it is opened.
        let ledger = open_gated(dir.path(), &gate, on_failure);
        ledger.close().await;
        drop(ledger);
        let ledger = open_gated(dir.path(), &gate, on_failure);
        fill(&ledger, "host", 2).await;
        settled(&ledger).await;
        gate.set(false, true);
        // This one was durable in the ledger, and is answered for, before the archive fails.
        fill(&ledger, "host", 1).await;
        let mut status = ledger.archive().unwrap();
        let failed = status
            .wait_for(|status| status.failed.is_some())
            .await
            .unwrap();
        assert!(failed.failed.as_ref().unwrap().contains("Input/output"));
        drop(failed);
        match on_failure {
            ArchiveFailure::Stop => {
                ledger.append(one("host", 9)).await.unwrap_err();
                ledger.poisoned().wait_for(Option::is_some).await.unwrap();
            }
            ArchiveFailure::Report => fill(&ledger, "host", 5).await,
        }
        ledger.close().await;
        drop(ledger);
        gate.set(false, false);
        drop(open_archived(dir.path()));
        assert_rebuilds_async(dir.path()).await;
    }
}
