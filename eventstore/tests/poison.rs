//! After the first failed sync nothing is written any more, whatever the disk says later.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use fluxvm_eventstore::*;
use support::*;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A disk that fails once, with the error that it is told.
#[derive(Default)]
struct FailingDisk {
    next_error: AtomicI32,
    syncs: AtomicU64,
}

impl Disk for FailingDisk {
    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        match self.next_error.swap(0, Ordering::Relaxed) {
            0 => file.sync_data(),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.sync_data(file)
    }
}

fn open_on(disk: &Arc<FailingDisk>, dir: &tempfile::TempDir) -> Ledger {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    let environment = Environment {
        disk,
        ..Environment::default()
    };
    Ledger::open_in(options(dir.path()), Box::new(|_| {}), environment).unwrap()
}

#[tokio::test]
async fn a_failed_sync_poisons_the_ledger_for_good() {
    for (error, said) in [(EIO, "Input/output error"), (ENOSPC, "No space left")] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(FailingDisk::default());
        let ledger = open_on(&disk, &dir);
        let mut poisoned = ledger.poisoned();
        fill(&ledger, "host", 3).await;
        let head = ledger.head();
        assert_eq!(*poisoned.borrow(), None);

        disk.next_error.store(error, Ordering::Relaxed);
        let failed = ledger.append(one("host", 4)).await;
        let Err(AppendError::Poisoned { reason }) = failed else {
            panic!("{failed:?}")
        };
        assert!(reason.contains(said), "{reason}");
        poisoned.wait_for(Option::is_some).await.unwrap();

        // The disk would sync again by now, and nobody must ask it to.
        let syncs = disk.syncs.load(Ordering::Relaxed);
        for n in 0..3 {
            let refused = ledger.append(one("host", n)).await;
            assert!(matches!(refused, Err(AppendError::Poisoned { .. })));
            let refused = ledger.put_blob(bytes(10, 0)).await;
            assert!(matches!(refused, Err(BlobError::Poisoned { .. })));
        }
        assert_eq!(disk.syncs.load(Ordering::Relaxed), syncs);
        assert_eq!(ledger.head(), head, "the watermark moved");
        assert_eq!(all(&ledger).len(), 3, "reading goes on");
    }
}

#[tokio::test]
async fn a_ledger_that_was_poisoned_opens_again_with_all_that_was_answered_for() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FailingDisk::default());
    let ledger = open_on(&disk, &dir);
    fill(&ledger, "host", 3).await;
    let before = all(&ledger);
    disk.next_error.store(EIO, Ordering::Relaxed);
    ledger.append(one("host", 4)).await.unwrap_err();
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(all(&ledger)[..3], before);
    ledger.append(one("host", 5)).await.unwrap();
}

#[tokio::test]
async fn a_blob_that_does_not_sync_poisons_the_ledger_too() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FailingDisk::default());
    let ledger = open_on(&disk, &dir);
    disk.next_error.store(EIO, Ordering::Relaxed);
    let failed = ledger.put_blob(bytes(100_000, 1)).await;
    assert!(matches!(failed, Err(BlobError::Poisoned { .. })));
    let refused = ledger.append(one("host", 1)).await;
    assert!(matches!(refused, Err(AppendError::Poisoned { .. })));
}

#[tokio::test]
async fn an_observer_that_panics_poisons_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let observer: Observer = Box::new(|events| assert!(events[0].seq().get() < 2, "on purpose"));
    let ledger = Ledger::open(options(dir.path()), observer).unwrap();
    fill(&ledger, "host", 1).await;
    let failed = ledger.append(one("host", 2)).await;
    assert!(
        matches!(failed, Err(AppendError::Poisoned { .. })),
        "{failed:?}"
    );
    assert_eq!(ledger.head().position, Position::new(1));
}
