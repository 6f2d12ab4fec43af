//! Snapshots: what an engine keeps of a sandbox, so that the same state can be gone back to or be
//! started a second time.
//!
//! A snapshot never changes. Going back to one is making another sandbox from it
//! ([`Backend::revive`](crate::Backend::revive)): the caller lets go of the old one when the new one
//! answers, so a failure half-way has cost nothing. Forking is the same, more than once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::backend::Sandbox;
use crate::error::SpecError;
use crate::spec::GuestPath;
use crate::spec::ImageRef;

/// The name of one snapshot. It is also a folder name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(Uuid);

impl SnapshotId {
    /// Takes an id that the caller made.
    pub const fn new(id: Uuid) -> Self {
        Self(id)
    }

    /// Makes a fresh random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as a UUID.
    pub const fn uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for SnapshotId {
    type Err = SpecError;

    /// Only the lower-case hyphenated form: one snapshot has exactly one folder name.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let refused = || SpecError::SnapshotId(text.to_owned());
        let this = Self(Uuid::parse_str(text).map_err(|_| refused())?);
        (this.to_string() == text)
            .then_some(this)
            .ok_or_else(refused)
    }
}

/// A blake3 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// Takes a digest's bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentDigest {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut bytes = [0_u8; 32];
        hex::decode_to_slice(text, &mut bytes)
            .map_err(|_| SpecError::ContentDigest(text.to_owned()))?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for ContentDigest {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<ContentDigest> for String {
    fn from(digest: ContentDigest) -> Self {
        digest.to_string()
    }
}

/// A snapshot as asked for.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotSpec {
    /// The caller's name for it. Taking the same id twice is refused.
    pub id: SnapshotId,
    /// Whether processes are kept too.
    pub memory: MemoryWanted,
}

/// Whether a snapshot is to keep processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryWanted {
    /// The disk only.
    Never,
    /// Processes too where this engine can; the disk only where it cannot, and the snapshot says why.
    BestEffort,
    /// Processes too, or no snapshot. Where nothing but the guest daemon is alive there is nothing to
    /// keep, and that is no failure.
    Required,
}

/// What was captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub id: SnapshotId,
    /// Whether processes are in it.
    pub memory: MemoryKept,
    /// The digest of the captured disk: over every path that differs from the image, with its kind,
    /// mode, owner, size, content and time of modification. Equal digests are equal disks.
    pub disk: ContentDigest,
    /// Paths that this snapshot had to store, because they changed since the one before.
    pub stored_paths: u64,
    /// Bytes that this snapshot had to store, memory included.
    pub stored_bytes: u64,
    /// Layers on which it stands, its own included.
    pub layers: u32,
    /// How long the sandbox stood still for it.
    pub pause: Duration,
}

/// What became of the processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MemoryKept {
    /// They are in the snapshot.
    Kept {
        /// Bytes of memory images.
        bytes: u64,
        /// The digest of the memory images.
        digest: ContentDigest,
    },
    /// Nothing but the guest daemon was alive: a fresh one is the same.
    NothingAlive,
    /// Nobody asked for them.
    NotAsked,
    /// They could not be kept.
    Impossible {
        /// Why, for a person.
        reason: String,
    },
}

/// Who a revived sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The one it had: it takes the place of the sandbox that was captured. Its token is new all the
    /// same, and its clock and entropy are right.
    Keep,
    /// A new machine id, host name and entropy as far as that goes; the report says how far.
    RenewBestEffort,
    /// A new machine id, host name and entropy, or no sandbox.
    Renew,
}

/// A sandbox that was made from a snapshot.
#[derive(Debug)]
pub struct Revived {
    /// The sandbox, bootstrapped, with a token of its own.
    pub sandbox: Arc<dyn Sandbox>,
    /// What is to be known of it.
    pub report: RevivalReport,
}

/// What became of a snapshot's content in a revived sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevivalReport {
    /// Its processes live on. Otherwise the guest daemon is a fresh one and knows of no command.
    pub memory: bool,
    /// Machine id, host name and entropy are its own.
    pub identity_renewed: bool,
    /// Why they are not, where that was asked for.
    pub identity_note: Option<String>,
    /// Processes that live on without the confinement that they had, by name.
    pub unconfined: Vec<String>,
}

/// One path of a captured disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Relative to the folder that was asked for; bytes that are not UTF-8 are escaped as `\xNN`, and
    /// a backslash as `\\`. Empty for the folder itself.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Permission bits, set-user-id, set-group-id and sticky included.
    pub mode: u32,
    /// The owner inside.
    pub uid: u32,
    /// The group inside.
    pub gid: u32,
    /// Time of modification, nanoseconds since 1970.
    pub modified_ns: i64,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Its length.
        bytes: u64,
        /// The digest of its content.
        digest: ContentDigest,
    },
    /// A folder.
    Folder,
    /// A symbolic link.
    Link {
        /// Where it points, escaped like a path.
        target: String,
    },
    /// A device, pipe or socket.
    Special,
}

/// A disk that can be read without a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    /// What was captured.
    Snapshot(SnapshotId),
    /// What a sandbox of this image begins with. Of the host's own root: as it is now.
    Image(ImageRef),
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot {id}"),
            Self::Image(image) => write!(f, "image {image}"),
        }
    }
}

impl From<SnapshotId> for Disk {
    fn from(id: SnapshotId) -> Self {
        Self::Snapshot(id)
    }
}

/// Where to read a disk.
#[derive(Clone, Debug)]
pub struct ManifestQuery {
    /// The disk.
    pub disk: Disk,
    /// The folder below which paths are listed.
    pub folder: GuestPath,
    /// How many paths there may be; more is an error.
    pub entries_max: usize,
}
