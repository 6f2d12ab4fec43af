//! Making a ledger again out of its archive.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fluxvm_verify::Genesis;

use super::END_KEY;
use super::erase;
use super::unfinished::Unfinished;
use super::worker::BLOBS;
use crate::Environment;
use crate::Head;
use crate::LedgerOptions;
use crate::OpenError;
use crate::append::ATTACHMENT_INLINE_BYTES_MAX;
use crate::blobs::BlobStore;
use crate::files;
use crate::head_file::HeadFile;
use crate::keys;
use crate::rebuild::Expected;
use crate::rebuild::Walk;
use crate::record::RECORD_BYTES_MAX;
use crate::seal::Seals;
use crate::state::State;
use crate::store;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;
use crate::store::log::Log;
use crate::store::log::Mode;
use crate::tree;

/// How many bytes go into the new store at a time.
const BATCH_BYTES: usize = 1024 * 1024;

const _: () = assert!(ATTACHMENT_INLINE_BYTES_MAX <= RECORD_BYTES_MAX);

/// What came out of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuiltLedger {
    /// The end of the ledger that was made.
    pub head: Head,
    /// How many blob files it has.
    pub blobs: u64,
    /// Whether the archive says that it was complete when the ledger was closed. Where it does not,
    /// the ledger may have been some groups further.
    pub was_complete: bool,
}

/// Why no ledger could be made.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// There is something where the ledger is to be.
    #[error("{dir} is not empty: a ledger is rebuilt in a new folder only")]
    NotEmpty {
        /// The folder.
        dir: PathBuf,
    },
    /// The archive cannot be read, or is damaged.
    #[error("the archive in {archive}: {reason}")]
    Archive {
        /// Its folder.
        archive: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The new ledger could not be written, or its chain does not hold.
    #[error("the rebuilt ledger: {0}")]
    Ledger(#[from] OpenError),
}

/// Makes the ledger that was archived in `archive` again, in the folders that `options` name, and
/// checks its whole chain. Not a byte of the archive is changed.
///
/// The signing key is not in the archive and is not needed here; to open the ledger it is. The
/// folders must be empty, so that nothing is ever replaced. Everything is made in folders beside
/// them and has its names only once it is whole: what an error or a kill leaves is no ledger, is not
/// [opened][crate::OpenError::RebuildUnfinished] as one, and is cleared by the next call.
pub fn rebuild_from_archive(
    archive: &Path,
    options: &LedgerOptions,
) -> Result<RebuiltLedger, RebuildError> {
    let environment = Environment::default();
    let disk = &*environment.disk;
    let unfinished = Unfinished::of(options);
    unfinished.clear().map_err(OpenError::io(&options.dir))?;
    for dir in [&options.dir, &options.blobs_dir] {
        let is_empty = std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
        if !is_empty {
            return Err(RebuildError::NotEmpty { dir: dir.clone() });
        }
    }
    unfinished
        .begin(disk)
        .map_err(OpenError::io(&options.dir))?;
    let made = make(archive, options, &unfinished, &environment);
    let rebuilt = match made {
        Ok(rebuilt) => rebuilt,
        Err(error) => {
            if let Err(error) = unfinished.clear() {
                tracing::warn!(%error, "what was made of the ledger stays");
            }
            return Err(error);
        }
    };
    unfinished
        .finish(disk)
        .map_err(OpenError::io(&options.dir))?;
    Ok(rebuilt)
}

/// Makes the ledger in the unfinished folders.
fn make(
    archive: &Path,
    options: &LedgerOptions,
    unfinished: &Unfinished,
    environment: &Environment,
) -> Result<RebuiltLedger, RebuildError> {
    let unreadable = |reason: String| RebuildError::Archive {
        archive: archive.to_owned(),
        reason,
    };
    if !archive.is_dir() {
        return Err(unreadable("there is no such folder".to_owned()));
    }
    let dir = unfinished.dir.as_path();
    let store = store::open(dir, options.cache_bytes, environment)?;
    let end = copy_log(archive, &*store, environment).map_err(|e| unreadable(e.to_string()))?;
    let genesis = store
        .get(keys::GENESIS)
        .map_err(|e| unreadable(e.to_string()))?;
    let genesis = genesis.ok_or_else(|| unreadable("there is no ledger in it".to_owned()))?;
    let genesis = Genesis::decode(&genesis).map_err(|e| unreadable(e.to_string()))?;

    let disk = Arc::clone(&environment.disk);
    let blobs = BlobStore::open(&unfinished.blobs_dir, Arc::clone(&disk))?;
    let copied = copy_blobs(&archive.join(BLOBS), &blobs, environment);
    let copied = copied.map_err(|e| unreadable(e.to_string()))?;
    let seals = Seals::open(options.seal.clone(), &genesis, &*store, environment)?;
    let blobs = blobs.with_seals(Arc::new(seals));
    let never = AtomicBool::new(false);
    let walk = Walk::everything(&*store, &blobs, &never);
    let start = State::at_genesis(&genesis)?;
    let rebuilt = walk.run(start, Expected::default(), &mut |_| {})?;
    let kept = tree::forget_beyond(&*store, rebuilt.head.position);
    kept.map_err(|e| unreadable(e.to_string()))?;
    HeadFile::create(dir, rebuilt.head, &*disk)?;
    store.founded()?;
    files::sync_path(dir, &*disk).map_err(OpenError::io(dir))?;
    Ok(RebuiltLedger {
        head: rebuilt.head,
        blobs: copied,
        was_complete: end == Some(rebuilt.head.position.get().to_be_bytes().to_vec()),
    })
}

/// Brings every write of the archive into the store, in their order, and returns the note of an
/// orderly end if nothing follows it.
fn copy_log(
    archive: &Path,
    store: &dyn Store,
    environment: &Environment,
) -> Result<Option<Vec<u8>>, StoreError> {
    let mut batch: Vec<Write> = Vec::new();
    let mut end = None;
    let mut batch_bytes = 0;
    let files = Arc::clone(&environment.archive_files);
    let generation = erase::generation(&*files, archive);
    let generation = generation.map_err(|e| StoreError(e.to_string()))?;
    let log = erase::folder(archive, generation);
    Log::open(files, &log, Mode::ReadOnly, &mut |key, value, _| {
        end = (key == END_KEY).then(|| value.to_vec());
        if end.is_some() {
            return Ok(());
        }
        if value.len() > RECORD_BYTES_MAX {
            let bytes = value.len();
            return Err(StoreError(format!(
                "a value of {bytes} bytes is no ledger's"
            )));
        }
        batch.push((key.to_vec(), value.to_vec()));
        batch_bytes += value.len();
        if batch_bytes >= BATCH_BYTES {
            batch_bytes = 0;
            store.commit(&std::mem::take(&mut batch))?;
        }
        Ok(())
    })?;
    store.commit(&batch)?;
    Ok(end)
}

/// Copies the blob files, each checked against its name.
fn copy_blobs(from: &Path, to: &BlobStore, environment: &Environment) -> Result<u64, StoreError> {
    if !from.is_dir() {
        return Ok(0);
    }
    let from = BlobStore::read_only(from, Arc::clone(&environment.disk));
    let digests = from.digests()?;
    for digest in &digests {
        let bytes = from.get(digest).map_err(|e| StoreError(e.to_string()))?;
        let bytes = bytes.ok_or_else(|| StoreError(format!("blob {digest} is gone")))?;
        let put = to.put(&bytes);
        put.map_err(|e| StoreError(format!("blob {digest}: {e}")))?;
    }
    Ok(u64::try_from(digests.len()).unwrap_or(u64::MAX))
}
