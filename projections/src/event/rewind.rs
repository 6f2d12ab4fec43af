//! Payloads of the ring of points that can be gone back to.

use serde::Deserialize;
use serde::Serialize;

use crate::event::snapshot::MemoryMode;
use crate::event::snapshot::RevivalRecord;
use crate::event::snapshot::SnapshotRecord;
use crate::ids::SandboxId;
use crate::ids::SnapshotId;

/// What a point is taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trigger {
    /// A command.
    Exec,
    /// The start of a job.
    Job,
    /// A file is written, removed or uploaded.
    File,
    /// A commit or a branch.
    Git,
}

/// `rewind.config`: what holds from here on, all of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindConfigured {
    /// Points are taken.
    pub enabled: bool,
    /// How many are kept.
    pub max_points: u32,
    /// Processes are kept where that is possible.
    pub memory: bool,
    /// What a point is taken before.
    pub triggers: Vec<Trigger>,
    /// Points that were let go of because fewer are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evicted: Vec<String>,
}

/// `rewind.point.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindPointStarted {
    /// What the session will know it by.
    pub tag: String,
    /// What the engine will know it by.
    pub snapshot: SnapshotId,
    /// Whether processes are wanted.
    pub memory: MemoryMode,
    /// What it is taken before.
    pub trigger: Trigger,
    /// The ledger number of the intent that it is taken before, which has the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// What is about to happen, where no intent says so: `write /path`, `commit <message>`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// `rewind.point`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindPointTaken {
    /// The ledger number of the intent.
    pub op: u64,
    /// What the session knows it by.
    pub tag: String,
    /// What was captured.
    pub snapshot: SnapshotRecord,
    /// What it was taken before.
    pub trigger: Trigger,
    /// The ledger number of the intent that it was taken before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Points that were let go of because the ring was full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evicted: Vec<String>,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// `rewind.skipped`: no point was tried, and what it was to be taken before goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindSkipped {
    /// What it was to be taken before.
    pub trigger: Trigger,
    /// The ledger number of that intent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Why, for a person.
    pub reason: String,
}

/// `rewind.capture_failed`: a point could not be taken, and what it was to be taken before goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindCaptureFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// The point.
    pub tag: String,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}

/// `rewind.undo.started` and `rewind.redo.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindMoveStarted {
    /// The point that is gone to.
    pub tag: String,
    /// Its snapshot.
    pub snapshot: SnapshotId,
    /// The sandbox that will be made from it. The session's own stays until the new one answers.
    pub sandbox_id: SandboxId,
    /// The point that keeps the current state, so that the undo can be undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<KeepPlan>,
}

/// How the current state is to be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepPlan {
    /// What the session will know it by.
    pub tag: String,
    /// What the engine will know it by.
    pub snapshot: SnapshotId,
    /// Whether processes are wanted.
    pub memory: MemoryMode,
}

/// `rewind.undo` and `rewind.redo`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindMoved {
    /// The ledger number of the intent.
    pub op: u64,
    /// The point that was gone to.
    pub tag: String,
    /// How many steps away it was.
    pub steps: u64,
    /// Its snapshot.
    pub snapshot: SnapshotId,
    /// The digest of the disk that the new sandbox was checked against, hex.
    pub disk: String,
    /// The session's sandbox from here on.
    pub sandbox_id: SandboxId,
    /// The one that it replaces.
    pub previous_sandbox_id: SandboxId,
    /// The point that keeps the state of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptPoint>,
    /// Why that state could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
    /// What became of what was captured.
    pub revival: RevivalRecord,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// The state before an undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPoint {
    /// What the session knows it by.
    pub tag: String,
    /// What was captured.
    pub snapshot: SnapshotRecord,
}

/// `rewind.pin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindPinned {
    /// The point.
    pub tag: String,
    /// It is kept until it is let go of.
    pub pinned: bool,
}
