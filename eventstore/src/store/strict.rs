//! sled, made strict. No other module names it.
//!
//! What sled 0.34 promises falls short of what a ledger needs in four places, and each is closed
//! here:
//!
//! * `flush` does not reach the disk on Linux: it neither empties the device's cache nor makes a
//!   new file size durable. Each commit therefore ends with a sync of the database file of our own.
//! * `conf`, `blobs/` and the folder itself are never synced: that happens here at each opening.
//! * A page above a quarter of a segment goes into a file that is never synced. A leaf holds up to
//!   16 items and one more before it splits, so the segment size is chosen for no page ever to be
//!   so large.
//!
//! * A snapshot that it was writing when it was killed keeps it from ever opening again. It is
//!   removed before each opening.
//!
//! The background flusher swallows a failed sync and is off. All of it is one tree, since a batch
//! is atomic within one tree only. sled panics on some damage where it should return an error:
//! every call turns a panic into an error.

use std::fs::File;
use std::fs::OpenOptions;
use std::fs::TryLockError;
use std::io;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;

use super::Entries;
use super::Store;
use super::StoreError;
use super::Write;
use super::closed;
use super::founding;
use crate::OpenError;
use crate::append::ATTACHMENT_INLINE_BYTES_MAX;
use crate::environment::Disk;
use crate::files;
use crate::record::RECORD_BYTES_MAX;

/// The size of sled's segments in bytes. Fixed when a ledger is created.
pub(super) const SEGMENT_BYTES: usize = 8 * 1024 * 1024;

/// How many items a leaf can hold at the instant before it splits.
const LEAF_ITEMS_MAX: usize = 17;

/// How often it is looked whether sled has let go of its file: five seconds in all.
const CLOSE_TRIES_MAX: u32 = 2500;
const CLOSE_TRY_INTERVAL: Duration = Duration::from_millis(2);

const _: () = assert!(LEAF_ITEMS_MAX * RECORD_BYTES_MAX <= SEGMENT_BYTES / 4);
const _: () = assert!(LEAF_ITEMS_MAX * ATTACHMENT_INLINE_BYTES_MAX <= SEGMENT_BYTES / 4);

/// The open store. The fields are dropped in their order: the files go last.
pub(crate) struct SledStore {
    db: Db,
    files: Files,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    cache_bytes: u64,
    /// From what size on it is settled when it is closed.
    settled_from_bytes: AtomicU64,
}

impl Drop for SledStore {
    fn drop(&mut self) {
        let from = self.settled_from_bytes.load(Ordering::Relaxed);
        if self.db_bytes() < from {
            return;
        }
        self.db.close();
        self.files.wait();
        if let Err(StoreError(reason)) = self.settle() {
            tracing::warn!(
                reason,
                "the store was closed, and its next opening will take longer"
            );
        }
    }
}

/// sled's handle. Present until it is dropped.
struct Db(Option<sled::Db>);

impl Db {
    fn get(&self) -> sled::Result<&sled::Db> {
        let closed = || sled::Error::Unsupported("the store is closed".to_owned());
        self.0.as_ref().ok_or_else(closed)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        self.close();
    }
}

impl Db {
    /// sled syncs once more when its last handle goes, and panics where that fails. Everything that
    /// was answered for is on the disk by then, so the failure is reported and nothing else.
    fn close(&mut self) {
        let db = self.0.take();
        let dropped = guarded(|| {
            drop(db);
            Ok(())
        });
        if let Err(error) = dropped {
            tracing::error!(%error, "the store did not close as it should");
        }
    }
}

/// The files beside sled's own handles.
struct Files {
    /// A second handle on the database file, for syncing it.
    db: File,
    /// Locked for as long as the store is open.
    _lock: Arc<File>,
}

impl Drop for Files {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Files {
    /// Waits until sled has let go of its file, which its own threads do a little after the last
    /// handle is dropped: whoever opens the store next must find it free.
    fn wait(&self) {
        for _ in 0..CLOSE_TRIES_MAX {
            if !matches!(self.db.try_lock(), Err(TryLockError::WouldBlock)) {
                // What was locked here only to look is free again.
                let _ = self.db.unlock();
                return;
            }
            std::thread::sleep(CLOSE_TRY_INTERVAL);
        }
        tracing::warn!("the store's file is still in use after it was closed");
    }
}

impl SledStore {
    /// Opens the store in `dir`, or creates it. `lock` keeps others out for as long as it is open.
    pub(crate) fn open(
        dir: &Path,
        cache_bytes: u64,
        disk: Arc<dyn Disk>,
        lock: &Arc<File>,
    ) -> Result<SledStore, OpenError> {
        files::create_private_dir(dir, &*disk).map_err(OpenError::io(dir))?;
        founding::begin(dir, &*disk)?;
        remove_unfinished_snapshots(dir).map_err(OpenError::io(dir))?;
        let config = config(dir, cache_bytes);
        let db =
            guarded(|| config.open())
                .map(|db| Db(Some(db)))
                .map_err(|StoreError(reason)| {
                    if reason.contains("could not acquire lock") {
                        OpenError::Locked {
                            dir: dir.to_owned(),
                        }
                    } else {
                        StoreError(reason).into()
                    }
                })?;
        let db_path = dir.join("db");
        let db_file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&db_path)
            .map_err(OpenError::io(db_path))?;
        let files = Files {
            db: db_file,
            _lock: Arc::clone(lock),
        };
        let store = SledStore {
            db,
            files,
            disk,
            dir: dir.to_owned(),
            cache_bytes,
            settled_from_bytes: AtomicU64::new(u64::MAX),
        };
        store.sync_everything()?;
        Ok(store)
    }

    fn db_bytes(&self) -> u64 {
        self.files
            .db
            .metadata()
            .map_or(0, |metadata| metadata.len())
    }

    /// Has sled write its snapshot, which it does at an opening, and notes what the files are then.
    fn settle(&self) -> Result<(), StoreError> {
        let config = config(&self.dir, self.cache_bytes);
        let mut db = Db(Some(guarded(|| config.open())?));
        db.close();
        self.files.wait();
        let failed = |e: io::Error| StoreError(e.to_string());
        for name in ["conf", "db", ""] {
            files::sync_path(&self.dir.join(name), &*self.disk).map_err(failed)?;
        }
        let parent = files::parent_of(&self.dir);
        let dir = match self.dir.join(files::LOCK).exists() {
            true => &self.dir,
            false => &parent,
        };
        closed::note(dir, &self.dir, &*self.disk).map_err(failed)
    }

    /// Syncs what sled never does. At each opening, because the last one may have ended half way.
    fn sync_everything(&self) -> Result<(), OpenError> {
        guarded(|| self.db.get()?.flush())?;
        for name in ["conf", "db", "blobs", ""] {
            let path = self.dir.join(name);
            files::sync_path(&path, &*self.disk).map_err(OpenError::io(path))?;
        }
        let parent = files::parent_of(&self.dir);
        files::sync_path(&parent, &*self.disk).map_err(OpenError::io(parent))
    }
}

impl Store for SledStore {
    fn commit(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for (key, value) in writes {
            batch.insert(key.as_slice(), value.as_slice());
        }
        guarded(|| self.db.get()?.apply_batch(batch))?;
        guarded(|| self.db.get()?.flush())?;
        self.disk
            .sync_data(&self.files.db)
            .map_err(|e| StoreError(format!("the database file does not sync: {e}")))
    }

    fn remove(&self, keys: &[Vec<u8>]) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        keys.iter().for_each(|key| batch.remove(key.as_slice()));
        guarded(|| self.db.get()?.apply_batch(batch))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(guarded(|| self.db.get()?.get(key))?.map(Bytes::from_owner))
    }

    fn contains(&self, key: &[u8]) -> Result<bool, StoreError> {
        guarded(|| self.db.get()?.contains_key(key))
    }

    fn range(&self, keys: Range<&[u8]>) -> Entries<'_> {
        match self.db.get() {
            Ok(db) => {
                let inner = Some(db.range(keys));
                Box::new(SledEntries { inner })
            }
            Err(e) => Box::new(std::iter::once(Err(StoreError(e.to_string())))),
        }
    }

    fn founded(&self) -> Result<(), OpenError> {
        founding::finish(&self.dir, &*self.disk)
    }

    fn ends_in_order(&self, from_bytes: u64) {
        self.settled_from_bytes.store(from_bytes, Ordering::Relaxed);
    }

    fn bytes_on_disk(&self) -> u64 {
        files::bytes_under(&self.dir)
    }
}

fn config(dir: &Path, cache_bytes: u64) -> sled::Config {
    sled::Config::new()
        .path(dir)
        .mode(sled::Mode::HighThroughput)
        .cache_capacity(cache_bytes)
        .flush_every_ms(None)
        .use_compression(false)
        .segment_size(SEGMENT_BYTES)
}

/// The entries of a range.
struct SledEntries {
    inner: Option<sled::Iter>,
}

impl Iterator for SledEntries {
    type Item = Result<(Bytes, Bytes), StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let inner = self.inner.as_mut()?;
        match guarded(|| inner.next().transpose()) {
            Ok(Some((key, value))) => Some(Ok((Bytes::from_owner(key), Bytes::from_owner(value)))),
            Ok(None) => None,
            Err(e) => {
                // What sled's iterator does after an error is not laid down.
                self.inner = None;
                Some(Err(e))
            }
        }
    }
}

/// Removes the snapshots that an earlier opening did not finish writing.
///
/// sled takes the one with the last name, finished or not, and never opens again after a kill at
/// that moment. A snapshot only spares it reading its whole log: the one before, or none, does as
/// well.
fn remove_unfinished_snapshots(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("snap.") && name.ends_with(".generating") {
            tracing::warn!(file = %name, "an unfinished snapshot of the store is removed");
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Runs a call into sled and turns both its error and its panic into one.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(StoreError(e.to_string())),
        Err(panic) => {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(StoreError(format!(
                "the store panicked: {}",
                said.unwrap_or("without a word")
            )))
        }
    }
}
