//! Writing the archive anew, so that what was erased is in none of its files.
//!
//! An archive is a log, and a log keeps what was overwritten. After each redaction, and where one
//! is found to be missing, what the ledger holds now is written into a new log beside the old one:
//!
//! ```text
//! <archive>/0000000001.log, …             the log that an archive begins with
//! <archive>/erasure-<n>/0000000001.log    the log after it was written anew n times; the one with
//!                                         the largest number is the archive's
//! <archive>/erasure-<n>.tmp/              one that is not finished
//! ```
//!
//! The new log is durable before one rename makes it the archive's, and the old one is removed
//! after that. At every instant one of the two is complete.

use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_verify::Position;

use super::worker::OpenArchive;
use crate::keys;
use crate::store::StoreError;
use crate::store::file_system::FileSystem;
use crate::store::log;
use crate::store::log::Log;
use crate::store::log::Mode;

const PREFIX: &str = "erasure-";
const UNFINISHED: &str = ".tmp";
const LOG_FILE: &str = ".log";
/// Frames of the new log are about this large.
const FRAME_BYTES: usize = 8 * 1024 * 1024;
/// Behind every key that there is.
const KEYS_END: &[u8] = &[0xff];

/// How often the log of this archive was written anew.
pub(super) fn generation(files: &dyn FileSystem, dir: &Path) -> io::Result<u64> {
    let names = files.list(dir)?;
    let numbers = names.iter().filter_map(|name| number(name));
    Ok(numbers.max().unwrap_or_default())
}

/// The folder that the archive's log lies in.
pub(super) fn folder(dir: &Path, generation: u64) -> PathBuf {
    match generation {
        0 => dir.to_owned(),
        number => dir.join(format!("{PREFIX}{number}")),
    }
}

/// Whether the archive's folder is still where it was, with a log in it if there was one. The files
/// that are open would take every write and every sync after they were removed.
pub(super) fn check_there(
    files: &dyn FileSystem,
    dir: &Path,
    is_filled: bool,
) -> Result<(), StoreError> {
    let names = match files.list(dir) {
        Ok(names) => names,
        Err(e) => return Err(StoreError(format!("its folder cannot be read: {e}"))),
    };
    let mut logs = names.iter();
    let is_log = |name: &String| name.ends_with(LOG_FILE) || number(name).is_some();
    match is_filled && !logs.any(is_log) {
        true => Err(StoreError("its log is gone from its folder".to_owned())),
        false => Ok(()),
    }
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Removes every log but the current one.
pub(super) fn remove_leftovers(files: &dyn FileSystem, dir: &Path, current: u64) -> io::Result<()> {
    let mut removed = false;
    for name in files.list(dir)? {
        let is_unfinished = name.starts_with(PREFIX) && name.ends_with(UNFINISHED);
        let is_older = number(&name).is_some_and(|number| number < current);
        if is_unfinished || is_older {
            files.remove_dir(&dir.join(&name))?;
        } else if current > 0 && name.ends_with(LOG_FILE) {
            files.remove_file(&dir.join(&name))?;
        } else {
            continue;
        }
        removed = true;
    }
    match removed {
        true => files.sync_dir(dir),
        false => Ok(()),
    }
}

impl OpenArchive<'_> {
    /// Goes on with a new log that holds what the ledger holds now, and nothing that was erased.
    pub(super) fn write_anew(&mut self) -> Result<(), StoreError> {
        let worker = self.worker;
        let dir = worker.options.dir.as_path();
        // Counted before anything is copied: what is erased meanwhile may be copied in its old form.
        let redactions = worker.redactions()?;
        let failed = |e: io::Error| StoreError(format!("{}: {e}", dir.display()));
        let next = self.generation + 1;
        let finished = folder(dir, next);
        let building = dir.join(format!("{PREFIX}{next}{UNFINISHED}"));
        self.files.create_dir(&building).map_err(failed)?;
        let files = Arc::clone(&self.files);
        let mut fresh = Log::open(files, &building, Mode::Append, &mut |_, _, _| Ok(()))?;
        let archived = self.copy_ledger(&mut fresh)?;
        drop(fresh);
        self.files.rename(&building, &finished).map_err(failed)?;
        self.files.sync_dir(dir).map_err(failed)?;
        let files = Arc::clone(&self.files);
        self.log = Log::open(files, &finished, Mode::Append, &mut |_, _, _| Ok(()))?;
        self.generation = next;
        self.archived = archived;
        remove_leftovers(&*self.files, dir, next).map_err(failed)?;
        self.remove_blobs()?;
        self.publish();
        self.note_erased(redactions);
        Ok(())
    }

    /// Puts all that is in the ledger's store into the log, up to the watermark.
    fn copy_ledger(&self, log: &mut Log) -> Result<Position, StoreError> {
        let shared = &self.worker.shared;
        let store = shared.store();
        let store = store.ok_or_else(|| StoreError("the ledger is closed".to_owned()))?;
        // Events above the watermark may be in the store and not be durable.
        let until = shared.head().position;
        let mut body = Vec::new();
        for entry in store.range(&[]..KEYS_END) {
            let (key, value) = entry?;
            let is_above = keys::event_seq(&key).is_some_and(|seq| seq.position() > until);
            if is_above || key == keys::UNLINK || keys::is_erased_blob(&key, &value) {
                continue;
            }
            log::push_write(&mut body, &key, &value);
            if body.len() >= FRAME_BYTES {
                log.append(&body)?;
                body.clear();
            }
        }
        if !body.is_empty() {
            log.append(&body)?;
        }
        Ok(until)
    }

    /// Removes the blob files that the ledger no longer has.
    fn remove_blobs(&mut self) -> Result<(), StoreError> {
        let erased = std::mem::take(&mut self.erased_blobs);
        for digest in self.blobs.digests()? {
            if erased.contains(&digest) || !self.worker.shared.blobs.contains(&digest) {
                let removed = self.blobs.remove(&digest);
                removed.map_err(|e| StoreError(format!("blob {digest}: {e}")))?;
            }
        }
        Ok(())
    }
}
