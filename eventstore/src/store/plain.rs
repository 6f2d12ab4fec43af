//! A store of two hundred lines: a log in plain files and where in it each key's value lies.
//!
//! It is slow to open and holds every key in memory, and it is simple enough to be believed. The
//! ledger runs on it in tests, beside the one on sled and on disks that forget: whatever the two
//! are asked, their answers have to be the same.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;

use bytes::Bytes;

use super::Entries;
use super::Store;
use super::StoreError;
use super::Write;
use super::file_system::FileSystem;
use super::log;
use super::log::Log;
use super::log::Mode;
use super::log::Place;
use crate::OpenError;

/// The open store.
pub(crate) struct PlainStore {
    log: Mutex<Log>,
    index: RwLock<BTreeMap<Vec<u8>, Place>>,
    _lock: Option<File>,
}

impl PlainStore {
    /// Opens the store in `dir`, or creates it.
    pub(crate) fn open(dir: &Path, files: Arc<dyn FileSystem>) -> Result<PlainStore, OpenError> {
        files.create_dir(dir).map_err(OpenError::io(dir))?;
        let lock = files.lock(dir).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => OpenError::Locked {
                dir: dir.to_owned(),
            },
            _ => OpenError::io(dir)(e),
        })?;
        let mut index = BTreeMap::new();
        let log = Log::open(files, dir, Mode::Append, &mut |key, _, place| {
            index.insert(key.to_vec(), place);
            Ok(())
        });
        let log = log.map_err(|StoreError(reason)| OpenError::Store { reason })?;
        Ok(PlainStore {
            log: Mutex::new(log),
            index: RwLock::new(index),
            _lock: lock,
        })
    }

    fn place(&self, key: &[u8]) -> Option<Place> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.get(key).copied()
    }

    fn read(&self, place: Place) -> Result<Bytes, StoreError> {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let file = log.file(place.segment);
        let file = file.ok_or_else(|| StoreError("a file of the log is gone".to_owned()))?;
        let mut value = vec![0; usize::try_from(place.bytes).unwrap_or_default()];
        let read = file.read_exact_at(&mut value, place.offset);
        read.map_err(|e| StoreError(format!("the log cannot be read: {e}")))?;
        Ok(Bytes::from(value))
    }

    /// The first key within the bounds.
    fn next_key(&self, from: Bound<&[u8]>, until: &[u8]) -> Option<(Vec<u8>, Place)> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let mut range = index.range::<[u8], _>((from, Bound::Excluded(until)));
        range.next().map(|(key, place)| (key.clone(), *place))
    }
}

impl Store for PlainStore {
    fn commit(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut body = Vec::new();
        let mut places = Vec::with_capacity(writes.len());
        for (key, value) in writes {
            places.push((
                key.clone(),
                log::push_write(&mut body, key, value),
                value.len(),
            ));
        }
        let frame = log.append(&body)?;
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value_at, bytes) in places {
            let place = Place {
                segment: frame.segment,
                offset: frame.offset + u64::try_from(value_at).unwrap_or(u64::MAX),
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            };
            index.insert(key, place);
        }
        Ok(())
    }

    /// They are gone until the store is opened again: its log only ever grows.
    fn remove(&self, keys: &[Vec<u8>]) -> Result<(), StoreError> {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            index.remove(key);
        }
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.place(key).map(|place| self.read(place)).transpose()
    }

    fn contains(&self, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.place(key).is_some())
    }

    fn range(&self, keys: Range<&[u8]>) -> Entries<'_> {
        let (first, until) = (keys.start.to_vec(), keys.end.to_vec());
        let mut last: Option<Vec<u8>> = None;
        let mut done = false;
        Box::new(std::iter::from_fn(move || {
            if done {
                return None;
            }
            let from = match &last {
                Some(last) => Bound::Excluded(last.as_slice()),
                None => Bound::Included(first.as_slice()),
            };
            let (key, place) = self.next_key(from, &until)?;
            last = Some(key.clone());
            let entry = self.read(place).map(|value| (Bytes::from(key), value));
            done = entry.is_err();
            Some(entry)
        }))
    }

    fn bytes_on_disk(&self) -> u64 {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bytes()
    }
}
