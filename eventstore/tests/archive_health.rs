//! What is said of an archive that does not do what it is there for: it still holds what was erased,
//! or it is gone.
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

use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

const SECRET: &str = "a-password-that-was-printed";

fn archive_dir(dir: &Path) -> PathBuf {
    dir.join("archive")
}

fn archived(dir: &Path) -> LedgerOptions {
    let archive = ArchiveOptions {
        dir: archive_dir(dir),
        on_failure: ArchiveFailure::Report,
    };
    LedgerOptions {
        archive: Some(archive),
        ..options(dir)
    }
}

fn open_archived(dir: &Path) -> Ledger {
    Ledger::open(archived(dir), Box::new(|_| {})).unwrap()
}

/// Waits until the archive has all that the ledger has, or has failed.
async fn settled(ledger: &Ledger) -> ArchiveInfo {
    let mut status = ledger.archive().unwrap();
    loop {
        let info = ledger.info().archive.unwrap();
        let is_done = info.archived >= ledger.head().position && !info.erasure_pending;
        if is_done || info.failed.is_some() {
            return info;
        }
        status.changed().await.unwrap();
    }
}

/// A ledger that says the secret in its first event, closed in order.
async fn with_secret(dir: &Path) {
    let ledger = open_archived(dir);
    let kind = EventKind::parse("test.secret").unwrap();
    let secret = NewEvent::new(kind, 1, &json!(SECRET)).unwrap();
    let secret = append(vec![to("a", ExpectedVersion::Any, vec![secret])]);
    ledger.append(secret).await.unwrap();
    fill(&ledger, "a", 10).await;
    ledger.close().await;
}

fn redaction() -> Redaction {
    Redaction {
        seqs: vec![GlobalSeq::FIRST],
        blobs: Vec::new(),
        looked_until: Position::START,
        append: one("ledger", 0),
    }
}

fn holds_secret(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds_secret(&path);
        }
        let bytes = fs::read(&path).unwrap();
        let mut windows = bytes.windows(SECRET.len());
        windows.any(|window| window == SECRET.as_bytes())
    })
}

#[tokio::test]
async fn an_erasure_is_pending_until_an_archive_that_failed_was_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    with_secret(dir.path()).await;
    let log = archive_dir(dir.path()).join("0000000001.log");
    let mut damaged = fs::read(&log).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&log, damaged).unwrap();

    let ledger = open_archived(dir.path());
    let found = settled(&ledger).await;
    assert!(found.failed.is_some_and(|why| why.contains("damaged")));
    assert!(!ledger.info().erasure_pending(), "nothing was erased yet");
    ledger.redact(redaction()).await.unwrap();
    assert!(ledger.info().erasure_pending());
    ledger.close().await;
    drop(ledger);
    assert!(holds_secret(&archive_dir(dir.path())));

    // The store is rid of it by now, and the archive is not.
    let ledger = open_archived(dir.path());
    settled(&ledger).await;
    let info = ledger.info();
    assert!(!info.erasure_pending_in_store && info.erasure_pending());
    ledger.close().await;
    drop(ledger);

    fs::remove_dir_all(archive_dir(dir.path())).unwrap();
    let ledger = open_archived(dir.path());
    assert_eq!(settled(&ledger).await.failed, None);
    assert!(!ledger.info().erasure_pending());
    ledger.close().await;
    assert!(!holds_secret(&archive_dir(dir.path())));
}

/// Files that cannot make the folder that the log is written anew in.
struct NoNewFolder(Arc<dyn FileSystem>);

impl FileSystem for NoNewFolder {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match dir.ends_with("erasure-1.tmp") {
            true => Err(io::Error::other("no")),
            false => self.0.create_dir(dir),
        }
    }
    fn lock(&self, dir: &Path) -> io::Result<Option<fs::File>> {
        self.0.lock(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        self.0.open(path)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        self.0.create(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }
}

#[tokio::test]
async fn an_archive_that_was_told_of_an_erasure_and_cut_off_is_written_anew_by_the_next_opening() {
    let dir = tempfile::tempdir().unwrap();
    with_secret(dir.path()).await;
    let environment = Environment {
        archive_files: Arc::new(NoNewFolder(Environment::real_files())),
        ..Environment::default()
    };
    let ledger = Ledger::open_in(archived(dir.path()), Box::new(|_| {}), environment).unwrap();
    ledger.redact(redaction()).await.unwrap();
    let found = settled(&ledger).await;
    assert!(found.failed.is_some() && found.erasure_pending);
    ledger.close().await;
    drop(ledger);
    assert!(holds_secret(&archive_dir(dir.path())));

    let ledger = open_archived(dir.path());
    assert_eq!(settled(&ledger).await.failed, None);
    ledger.close().await;
    drop(ledger);
    assert!(!holds_secret(&archive_dir(dir.path())));

    // What was written anew is not written anew once more.
    let ledger = open_archived(dir.path());
    settled(&ledger).await;
    ledger.close().await;
    assert!(archive_dir(dir.path()).join("erasure-1").is_dir());
}

#[tokio::test]
async fn an_archive_whose_folder_is_removed_meanwhile_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = open_archived(dir.path());
    fill(&ledger, "a", 3).await;
    assert_eq!(settled(&ledger).await.failed, None);
    fs::remove_dir_all(archive_dir(dir.path())).unwrap();
    // Whoever asks is told at once, and the worker says it too.
    assert!(ledger.info().archive.unwrap().failed.is_some());
    let mut status = ledger.archive().unwrap();
    let failed = status.wait_for(|status| status.failed.is_some());
    failed.await.unwrap();
    ledger.append(one("a", 1)).await.unwrap();
    ledger.close().await;
    assert!(!archive_dir(dir.path()).exists(), "nothing is made there");
}

#[tokio::test]
async fn a_store_that_was_written_anew_is_there_without_its_head_file() {
    let dir = tempfile::tempdir().unwrap();
    with_secret(dir.path()).await;
    let ledger = open_archived(dir.path());
    ledger.redact(redaction()).await.unwrap();
    let before = ledger.head();
    ledger.close().await;
    drop(ledger);
    // The next opening writes the store anew, into a folder of its own.
    let ledger = open_archived(dir.path());
    ledger.close().await;
    drop(ledger);
    fs::remove_file(dir.path().join("ledger/head")).unwrap();
    let ledger = open_archived(dir.path());
    assert_eq!(ledger.head(), before);
    ledger.close().await;
}
