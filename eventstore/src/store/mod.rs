//! What the ledger asks of the storage below it.
//!
//! Keys and values, batches that are there as a whole or not at all, and a promise that what was
//! committed survives the loss of power. Nothing above this module knows more, and so two quite
//! different stores can stand below the same ledger: [`strict`] is the one in use, and whatever it
//! answers, the plain one has to answer too.

mod before_open;
mod closed;
pub(crate) mod file_system;
mod founding;
mod generation;
pub(crate) mod log;
mod plain;
mod strict;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;

use before_open::BeforeOpen;
pub(crate) use plain::PlainStore;
pub(crate) use strict::SledStore;

use crate::Environment;
use crate::OpenError;
use crate::environment::StoreKind;
use crate::keys;

/// What the store said when it failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StoreError(pub(crate) String);

/// A key and its value, to be written.
pub(crate) type Write = (Vec<u8>, Vec<u8>);

/// Keys and values in the order of the keys.
pub(crate) type Entries<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), StoreError>> + 'a>;

/// An open store. It is let go of when it is dropped.
pub(crate) trait Store: Send + Sync {
    /// Writes all of `writes` or none of them, and returns once they are durable.
    ///
    /// Of two writes to one key the later one counts. After an error nothing is known about the
    /// store, and it must not be written to again: a second sync after a failed one can succeed
    /// without the bytes being on the disk.
    fn commit(&self, writes: &[Write]) -> Result<(), StoreError>;

    /// Removes what lies under these keys. It is not waited for: after a loss of power it may be
    /// back.
    fn remove(&self, keys: &[Vec<u8>]) -> Result<(), StoreError>;

    /// The value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Whether there is a value under `key`.
    fn contains(&self, key: &[u8]) -> Result<bool, StoreError>;

    /// What lies under the keys from the first one to the one before the second. Ends after an
    /// error.
    fn range(&self, keys: Range<&[u8]>) -> Entries<'_>;

    /// Says that the ledger in it is complete: from now on everything in it counts.
    fn founded(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// Says that nothing more will be written, and everything is as it should be: a store of so
    /// many bytes may take its time to close, so that the next opening need not.
    fn ends_in_order(&self, _from_bytes: u64) {}

    /// The size of its files.
    fn bytes_on_disk(&self) -> u64;
}

/// Opens the store in `dir`, or creates it.
pub(crate) fn open(
    dir: &Path,
    cache_bytes: u64,
    environment: &Environment,
) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match &environment.store {
        StoreKind::Sled => {
            let disk = &environment.disk;
            let lock = before_open::lock(dir, &**disk)?;
            Arc::new(generation::open(dir, cache_bytes, disk, &lock)?)
        }
        StoreKind::Plain(files) => Arc::new(PlainStore::open(dir, Arc::clone(files))?),
    })
}

/// Opens the store in `dir`, or creates it, and has `build` make a ledger of it. Where either is
/// refused, the files of the store are what they were before.
pub(crate) fn open_for<T>(
    dir: &Path,
    cache_bytes: u64,
    environment: &Environment,
    build: impl FnOnce(Arc<dyn Store>) -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    if let StoreKind::Plain(_) = &environment.store {
        return build(open(dir, cache_bytes, environment)?);
    }
    let before = BeforeOpen::keep(dir, &environment.disk)?;
    let opened = generation::open(dir, cache_bytes, &environment.disk, before.lock());
    match opened.and_then(|store| build(Arc::new(store))) {
        Ok(built) => before.forget().map(|()| built),
        Err(refused) => Err(before.refuse(refused)),
    }
}

/// Stores of at least so many bytes close in a way that makes the next opening short.
pub(crate) const LARGE_BYTES: u64 = closed::LARGE_BYTES;

/// Whether there is no sign of a ledger in `dir`, not even of one that is being founded.
pub(crate) fn is_absent(dir: &Path, environment: &Environment) -> bool {
    matches!(environment.store, StoreKind::Sled)
        && founding::is_absent(dir)
        && !dir.join(before_open::FOLDER).exists()
}

impl dyn Store + '_ {
    /// The records behind `after`, in the order of their keys.
    pub(crate) fn records(
        &self,
        after: Position,
    ) -> impl Iterator<Item = Result<(GlobalSeq, Bytes), StoreError>> + '_ {
        let first = keys::event(after.next_seq());
        self.range(first.as_slice()..keys::EVENTS_END).map(|entry| {
            let (key, value) = entry?;
            match keys::event_seq(&key) {
                Some(seq) => Ok((seq, value)),
                None => Err(StoreError(
                    "a key among the events is not one of an event".into(),
                )),
            }
        })
    }
}
