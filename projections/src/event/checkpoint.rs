//! Payloads of checkpoints and of going back to them.

use serde::Deserialize;
use serde::Serialize;

use crate::event::snapshot::MemoryMode;
use crate::event::snapshot::RevivalRecord;
use crate::event::snapshot::SnapshotRecord;
use crate::ids::SandboxId;
use crate::ids::SnapshotId;

/// `checkpoint.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStarted {
    /// What the session will know it by.
    pub tag: String,
    /// What the engine will know it by.
    pub snapshot: SnapshotId,
    /// Whether processes are wanted.
    pub memory: MemoryMode,
}

/// `checkpoint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointTaken {
    /// The ledger number of the intent.
    pub op: u64,
    /// What the session knows it by.
    pub tag: String,
    /// What was captured, with the digests that a restore is held to.
    pub snapshot: SnapshotRecord,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// `checkpoint.delete`: the session lets go of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointDeleted {
    /// What the session knew it by.
    pub tag: String,
    /// What the engine knew it by.
    pub snapshot: SnapshotId,
}

/// `restore.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreStarted {
    /// The checkpoint.
    pub tag: String,
    /// Its snapshot.
    pub snapshot: SnapshotId,
    /// The sandbox that will be made from it. The session's own stays until the new one answers.
    pub sandbox_id: SandboxId,
}

/// `restore`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The ledger number of the intent.
    pub op: u64,
    /// The checkpoint.
    pub tag: String,
    /// Its snapshot.
    pub snapshot: SnapshotId,
    /// The digest of the disk that the new sandbox was checked against, hex.
    pub disk: String,
    /// The session's sandbox from here on.
    pub sandbox_id: SandboxId,
    /// The one that it replaces.
    pub previous_sandbox_id: SandboxId,
    /// What became of what was captured.
    pub revival: RevivalRecord,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// An operation on snapshots that came to nothing: `checkpoint.failed`, `restore.failed`,
/// `fork.failed`, `session.branch_child.failed`, `rewind.undo.failed`, `rewind.redo.failed`. The session
/// is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOperationFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// The tag that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}
