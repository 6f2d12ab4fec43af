//! What a snapshot is and what became of it, as the payloads of several kinds have it.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SnapshotId;

/// A snapshot, with everything that it takes to go back to it and to prove what was gone back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The engine knows it by this id.
    pub id: SnapshotId,
    /// What became of the processes.
    pub memory: MemoryRecord,
    /// The digest of the captured disk, hex. Equal digests are equal disks.
    pub disk: String,
    /// Paths that it had to store.
    pub stored_paths: u64,
    /// Bytes that it had to store, memory included.
    pub stored_bytes: u64,
    /// Layers on which it stands.
    pub layers: u32,
    /// How long the sandbox stood still for it, in microseconds.
    pub pause_us: u64,
}

/// What became of the processes of a captured sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MemoryRecord {
    /// They are in the snapshot.
    Kept {
        /// Bytes of memory images.
        bytes: u64,
        /// The digest of the memory images, hex.
        digest: String,
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

/// Whether processes were to be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMode {
    /// The disk only.
    Never,
    /// Where that is possible.
    BestEffort,
    /// Or nothing is captured.
    Required,
}

/// Who a sandbox is that was made from a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityMode {
    /// A machine of its own, as far as that goes.
    BestEffort,
    /// A machine of its own, or none at all.
    Unique,
    /// The captured one.
    Preserve,
}

/// What became of a snapshot's content in a new sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevivalRecord {
    /// Its processes live on.
    pub memory: bool,
    /// Machine id, host name and entropy are its own.
    pub identity_renewed: bool,
    /// Why they are not, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity_note: Option<String>,
    /// Processes that live on without the confinement that they had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unconfined: Vec<String>,
}
