//! Payloads of forks: children from the session's state, or from a state of its past.

use serde::Deserialize;
use serde::Serialize;

use crate::event::snapshot::IdentityMode;
use crate::event::snapshot::MemoryMode;
use crate::event::snapshot::RevivalRecord;
use crate::event::snapshot::SnapshotRecord;
use crate::ids::SandboxId;
use crate::ids::SessionId;
use crate::ids::SnapshotId;

/// `fork.started` and `session.branch_child.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkStarted {
    /// The checkpoint or rewind point that the children start from; `None` is the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Its snapshot, or the one that is taken of the current state.
    pub snapshot: SnapshotId,
    /// Whether processes are wanted, where one is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryMode>,
    /// Who the children are.
    pub identity: IdentityMode,
    /// The children, known before they exist.
    pub children: Vec<ChildPlan>,
}

/// One child that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildPlan {
    /// Its session.
    pub session: SessionId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
}

/// `fork` and `session.branch_child`. Durable in the same instant as each child's `session.create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The ledger number of the intent.
    pub op: u64,
    /// The checkpoint or rewind point that the children started from; `None` is the state of then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// What they started from.
    pub snapshot: SnapshotRecord,
    /// How many.
    pub count: u64,
    /// The children.
    pub children: Vec<SessionId>,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// Where a session comes from that was not made from an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The session that it was forked from.
    pub parent: SessionId,
    /// The checkpoint or rewind point of the parent that it started from; `None` is its state of then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// What it started from: its baseline, which its changes are counted from.
    pub snapshot: SnapshotRecord,
    /// What became of what was captured.
    pub revival: RevivalRecord,
    /// The name of the machine, where it kept the parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
}
