//! Writing the store anew, so that what was erased is in none of its files.
//!
//! sled keeps the old value of a key in its log for as long as it likes. Where something was erased
//! since the store was last written anew, opening copies what is there into a fresh store and goes
//! on with that:
//!
//! ```text
//! <dir>/conf, db, …            the store that a ledger begins with
//! <dir>/store-<n>/conf, db, …  the store as it was written anew after n redactions; the one with
//!                              the largest number is the ledger's
//! <dir>/store-<n>.tmp/         one that is not finished
//! ```
//!
//! The new store is complete and durable before one rename makes it the ledger's, and the old one
//! is removed after that. A crash before the rename leaves a part that the next opening removes and
//! begins anew; a crash after it leaves an old store that the next opening removes. A store that
//! cannot be written anew, for want of space perhaps, is reported and used as it is: what was
//! erased stays unreadable through the ledger, and the next opening tries again.

use std::fs;
use std::fs::File;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::SledStore;
use super::Store;
use super::StoreError;
use super::Write;
use crate::OpenError;
use crate::environment::Disk;
use crate::files;
use crate::keys;
use crate::redact;

/// How many bytes go into the new store at a time.
const BATCH_BYTES: usize = 1024 * 1024;
/// Behind every key that there is.
const KEYS_END: &[u8] = &[0xff];
/// What the folder of a store that was written anew is called, before its number.
const PREFIX: &str = "store-";
/// What the folder of one is called that is not finished.
const UNFINISHED: &str = ".tmp";
/// What sled has in its folder, apart from its snapshots.
const STORE_FILES: [&str; 3] = ["conf", "db", "blobs"];
/// How the names of sled's snapshots begin.
pub(super) const SNAPSHOT: &str = "snap.";

/// Opens the ledger's store, or creates it, and writes it anew first where something was erased.
/// Whoever has `lock` has the ledger's folder for himself.
pub(super) fn open(
    dir: &Path,
    cache_bytes: u64,
    disk: &Arc<dyn Disk>,
    lock: &Arc<File>,
) -> Result<SledStore, OpenError> {
    let current = newest(dir).map_err(OpenError::io(dir))?;
    let open = |folder: &Path| SledStore::open(folder, cache_bytes, Arc::clone(disk), lock);
    let store = open(&folder(dir, current))?;
    if let Err(e) = remove_leftovers(dir, current, &**disk) {
        tracing::error!(error = %e, "files of a store that was replaced cannot be removed");
    }
    let pending = redact::is_pending(&store);
    if !pending.map_err(OpenError::from)? {
        return Ok(store);
    }
    match rewrite(&store, dir, disk, open) {
        Err(e) => {
            tracing::error!(error = %e, "the store still holds bytes that were erased");
            Ok(store)
        }
        Ok(next) => {
            drop(store);
            let store = open(&folder(dir, next))?;
            if let Err(e) = remove_leftovers(dir, next, &**disk) {
                tracing::error!(error = %e, "the store that was replaced cannot be removed");
            }
            Ok(store)
        }
    }
}

/// Copies what is in the store into a fresh one, and returns that one's number.
fn rewrite(
    store: &SledStore,
    dir: &Path,
    disk: &Arc<dyn Disk>,
    open: impl Fn(&Path) -> Result<SledStore, OpenError>,
) -> Result<u64, StoreError> {
    let redactions = redact::count(store, keys::REDACTIONS)?;
    let finished = folder(dir, redactions);
    let building = unfinished(dir, redactions);
    let failed = |e: io::Error| StoreError(format!("{}: {e}", building.display()));
    let fresh = open(&building).map_err(|e| StoreError(e.to_string()))?;
    copy(store, &fresh)?;
    let rewritten = redactions.to_be_bytes().to_vec();
    fresh.commit(&[(keys::REWRITTEN.to_vec(), rewritten)])?;
    fresh.founded().map_err(|e| StoreError(e.to_string()))?;
    // It lets go of its files before they are called something else.
    drop(fresh);
    fs::rename(&building, &finished).map_err(failed)?;
    files::sync_path(dir, &**disk).map_err(failed)?;
    Ok(redactions)
}

fn copy(from: &SledStore, to: &SledStore) -> Result<(), StoreError> {
    let mut batch: Vec<Write> = Vec::new();
    let mut bytes = 0;
    for entry in from.range(&[]..KEYS_END) {
        let (key, value) = entry?;
        if keys::is_erased_blob(&key, &value) {
            continue;
        }
        bytes += value.len();
        batch.push((key.to_vec(), value.to_vec()));
        if bytes >= BATCH_BYTES {
            bytes = 0;
            to.commit(&std::mem::take(&mut batch))?;
        }
    }
    to.commit(&batch)
}

/// Where the store with this number lies.
pub(super) fn folder(dir: &Path, number: u64) -> PathBuf {
    match number {
        0 => dir.to_owned(),
        number => dir.join(format!("{PREFIX}{number}")),
    }
}

fn unfinished(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{PREFIX}{number}{UNFINISHED}"))
}

/// The number of the ledger's store; zero for the one that it began with.
pub(super) fn newest(dir: &Path) -> io::Result<u64> {
    let numbers = names(dir)?;
    Ok(numbers
        .iter()
        .filter_map(|name| number(name))
        .max()
        .unwrap_or_default())
}

/// The number in the name of a store that was written anew.
pub(super) fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// What lies in the folder; nothing where it is missing.
pub(super) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Removes every store but the current one.
fn remove_leftovers(dir: &Path, current: u64, disk: &dyn Disk) -> io::Result<()> {
    let mut removed = false;
    for name in names(dir)? {
        let is_unfinished = name.starts_with(PREFIX) && name.ends_with(UNFINISHED);
        let is_older = number(&name).is_some_and(|number| number < current);
        let is_first = STORE_FILES.contains(&name.as_str()) || name.starts_with(SNAPSHOT);
        if is_unfinished || is_older || (current > 0 && is_first) {
            let path = dir.join(&name);
            match path.is_dir() {
                true => fs::remove_dir_all(&path)?,
                false => fs::remove_file(&path)?,
            }
            removed = true;
        }
    }
    match removed {
        true => files::sync_path(dir, disk),
        false => Ok(()),
    }
}
