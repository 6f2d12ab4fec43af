//! Bytes that are too large for a record, each in a file named after its digest.
//!
//! ```text
//! <blobs>/ab/cd/abcd…64 digits     the bytes, whose plain BLAKE3 is the name
//! <blobs>/tmp/…                    half-written files; removed at each opening
//! ```
//!
//! A blob is durable when `put` returns: written aside, synced, renamed, its folder synced. Two
//! puts of the same bytes are one blob. Nothing read from here is trusted before its digest is
//! checked.

use std::fmt;
use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fluxvm_verify::EventHash;
use fluxvm_verify::HashParseError;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use serde::Serializer;
use serde::de::Error as _;

use crate::OpenError;
use crate::environment::Disk;
use crate::files;
use crate::seal::Seals;
use crate::store::StoreError;

/// The largest blob in bytes: it is in memory as a whole when it is put and when it is read.
pub const BLOB_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The name of a blob: the plain BLAKE3 hash of its bytes, the same that events give for contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobDigest([u8; 32]);

impl BlobDigest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> BlobDigest {
        BlobDigest(*blake3::hash(bytes).as_bytes())
    }

    /// The digest that consists of these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> BlobDigest {
        BlobDigest(bytes)
    }

    /// The thirty-two bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for BlobDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobDigest({self})")
    }
}

impl FromStr for BlobDigest {
    type Err = HashParseError;

    fn from_str(text: &str) -> Result<BlobDigest, HashParseError> {
        // The two have the same one text form.
        text.parse()
            .map(|hash: EventHash| BlobDigest(*hash.as_bytes()))
    }
}

impl Serialize for BlobDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BlobDigest, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// Why a blob was not stored or cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BlobError {
    /// It is above the limit.
    #[error("a blob of {bytes} bytes is above the limit of {BLOB_BYTES_MAX}")]
    TooLarge {
        /// How long it is.
        bytes: u64,
    },
    /// What is stored under this name is not what was put.
    #[error("blob {digest} is damaged")]
    Damaged {
        /// The blob.
        digest: BlobDigest,
    },
    /// The operating system or the store refused something.
    #[error("the blob store failed: {reason}")]
    Io {
        /// What it said.
        reason: Arc<str>,
    },
    /// The ledger took harm and takes nothing more.
    #[error("the ledger is poisoned: {reason}")]
    Poisoned {
        /// The first error.
        reason: String,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> BlobError {
        BlobError::Io {
            reason: error.to_string().into(),
        }
    }
}

/// How a put failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    /// Before anything was synced: nothing happened, and it may be tried again.
    #[error("{0}")]
    Write(io::Error),
    /// A sync failed: nothing is known of the disk any more.
    #[error("a blob does not sync: {0}")]
    Sync(io::Error),
}

/// The folder of the files that are not finished.
const UNFINISHED: &str = "tmp";

/// The folder of the blobs.
pub(crate) struct BlobStore {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    next_unfinished: AtomicU64,
    seals: Option<Arc<Seals>>,
}

impl BlobStore {
    /// Opens the folder, or makes it, and removes what an earlier run left half-written.
    ///
    /// Only whoever holds the ledger's lock may call this.
    pub(crate) fn open(dir: &Path, disk: Arc<dyn Disk>) -> Result<BlobStore, OpenError> {
        let unfinished = dir.join(UNFINISHED);
        files::create_private_dir(&unfinished, &*disk).map_err(OpenError::io(&unfinished))?;
        let entries = fs::read_dir(&unfinished).map_err(OpenError::io(&unfinished))?;
        for entry in entries {
            let path = entry.map_err(OpenError::io(&unfinished))?.path();
            fs::remove_file(&path).map_err(OpenError::io(path))?;
        }
        Ok(BlobStore {
            dir: dir.to_owned(),
            disk,
            next_unfinished: AtomicU64::new(0),
            seals: None,
        })
    }

    /// The folder as it is, for reading only.
    pub(crate) fn read_only(dir: &Path, disk: Arc<dyn Disk>) -> BlobStore {
        BlobStore {
            dir: dir.to_owned(),
            disk,
            next_unfinished: AtomicU64::new(0),
            seals: None,
        }
    }

    /// The same with the keys that some of what lies here is sealed with.
    pub(crate) fn with_seals(self, seals: Arc<Seals>) -> BlobStore {
        BlobStore {
            seals: Some(seals),
            ..self
        }
    }

    /// The keys that some of what lies here is sealed with.
    pub(crate) fn seals(&self) -> Option<&Arc<Seals>> {
        self.seals.as_ref()
    }

    /// Whether there is a file of this name. What is in it is not looked at.
    pub(crate) fn contains(&self, digest: &BlobDigest) -> bool {
        self.path(digest).is_file()
    }

    /// The names of all blobs.
    pub(crate) fn digests(&self) -> Result<Vec<BlobDigest>, StoreError> {
        let mut digests = Vec::new();
        let failed = |e: io::Error| StoreError(format!("{}: {e}", self.dir.display()));
        for first in fs::read_dir(&self.dir).map_err(failed)? {
            let first = first.map_err(failed)?;
            if first.file_name() == UNFINISHED || !first.path().is_dir() {
                continue;
            }
            for second in fs::read_dir(first.path()).map_err(failed)? {
                for file in fs::read_dir(second.map_err(failed)?.path()).map_err(failed)? {
                    let name = file.map_err(failed)?.file_name();
                    let digest = name
                        .to_str()
                        .and_then(|name| name.parse::<BlobDigest>().ok());
                    digests.extend(digest);
                }
            }
        }
        Ok(digests)
    }

    /// Stores the bytes under their digest and returns once they are durable.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<BlobDigest, PutError> {
        let digest = BlobDigest::of(bytes);
        let path = self.path(&digest);
        let folder = files::parent_of(&path);
        fs::create_dir_all(&folder).map_err(PutError::Write)?;
        // An earlier put may have been cut short before its folder was durable.
        let is_kept = self.holds(&path, bytes)
            && match files::sync_path(&path, &*self.disk) {
                // Erased since it was looked at: it is written again.
                Err(e) if e.kind() == io::ErrorKind::NotFound => false,
                synced => synced.map(|()| true).map_err(PutError::Sync)?,
            };
        if !is_kept {
            let unfinished = self.write_aside(bytes)?;
            fs::rename(&unfinished, &path).map_err(PutError::Write)?;
        }
        // The folders above may be as new as the file; a folder without changes syncs at once.
        for folder in [&folder, &files::parent_of(&folder), &self.dir] {
            files::sync_path(folder, &*self.disk).map_err(PutError::Sync)?;
        }
        Ok(digest)
    }

    /// Unlinks the blob, durably. One that is not there is fine.
    pub(crate) fn remove(&self, digest: &BlobDigest) -> io::Result<()> {
        let path = self.path(digest);
        match fs::remove_file(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(()) => files::sync_path(&files::parent_of(&path), &*self.disk),
        }
    }

    /// The bytes with this digest, checked; `None` where there are none.
    pub(crate) fn get(&self, digest: &BlobDigest) -> Result<Option<Bytes>, BlobError> {
        let mut file = match File::open(self.path(digest)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        let capacity = usize::try_from(length)
            .ok()
            .filter(|length| *length <= BLOB_BYTES_MAX);
        let capacity = capacity.ok_or(BlobError::TooLarge { bytes: length })?;
        let mut bytes = Vec::with_capacity(capacity);
        file.read_to_end(&mut bytes)?;
        match BlobDigest::of(&bytes) == *digest {
            true => Ok(Some(Bytes::from(bytes))),
            false => Err(BlobError::Damaged { digest: *digest }),
        }
    }

    fn path(&self, digest: &BlobDigest) -> PathBuf {
        let name = digest.to_string();
        let first = name.get(0..2).unwrap_or_default();
        let second = name.get(2..4).unwrap_or_default();
        self.dir.join(first).join(second).join(&name)
    }

    fn holds(&self, path: &Path, bytes: &[u8]) -> bool {
        let same_length = fs::metadata(path)
            .is_ok_and(|metadata| usize::try_from(metadata.len()) == Ok(bytes.len()));
        same_length && fs::read(path).is_ok_and(|found| found == bytes)
    }

    fn write_aside(&self, bytes: &[u8]) -> Result<PathBuf, PutError> {
        let number = self.next_unfinished.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(UNFINISHED).join(number.to_string());
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(PutError::Write)?;
        let written = file
            .write_all(bytes)
            .map_err(PutError::Write)
            .and_then(|()| self.disk.sync_all(&file).map_err(PutError::Sync));
        if written.is_err() {
            // The next opening removes it if this does not.
            let _ = fs::remove_file(&path);
        }
        written.map(|()| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    fn open(dir: &Path) -> BlobStore {
        BlobStore::open(dir, Environment::default().disk).unwrap()
    }

    #[test]
    fn a_blob_reads_back_under_its_digest_however_often_it_was_put() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path());
        let digest = blobs.put(b"bytes").unwrap();
        assert_eq!(blobs.put(b"bytes").unwrap(), digest);
        assert_eq!(digest, BlobDigest::of(b"bytes"));
        assert_eq!(blobs.get(&digest).unwrap().unwrap(), b"bytes".as_slice());
        assert_eq!(blobs.get(&BlobDigest::of(b"others")).unwrap(), None);
    }

    #[test]
    fn a_damaged_blob_is_an_error_and_a_new_put_mends_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path());
        let digest = blobs.put(b"bytes").unwrap();
        fs::write(blobs.path(&digest), b"bytez").unwrap();
        assert!(matches!(blobs.get(&digest), Err(BlobError::Damaged { .. })));
        blobs.put(b"bytes").unwrap();
        assert_eq!(blobs.get(&digest).unwrap().unwrap(), b"bytes".as_slice());
    }

    #[test]
    fn half_written_files_are_removed_at_opening() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()));
        let stale = dir.path().join("tmp/0");
        fs::write(&stale, b"half").unwrap();
        let blobs = open(dir.path());
        assert!(!stale.exists());
        blobs.put(b"bytes").unwrap();
    }
}
