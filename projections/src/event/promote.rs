//! Payloads of promotions: a child's changes are carried to its parent.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SessionId;
use crate::ids::SnapshotId;

/// `promote.started`, in the parent. Its checkpoint of just before is recorded already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromoteStarted {
    /// The session whose changes are carried.
    pub child: SessionId,
    /// The parent's checkpoint of just before.
    pub tag: String,
    /// Its snapshot.
    pub checkpoint: SnapshotId,
    /// A snapshot of the child as it is now, which is there until the promotion ends.
    pub theirs: SnapshotId,
    /// What the child started from.
    pub baseline: SnapshotId,
    /// Only these paths of the workspace; empty is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// `promote`, in the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promoted {
    /// The ledger number of the intent.
    pub op: u64,
    /// The session whose changes were carried.
    pub child: SessionId,
    /// The digest of what was done.
    pub plan_id: String,
    /// The parent's checkpoint of just before.
    pub tag: String,
    /// New paths.
    pub added: Vec<String>,
    /// Paths that are others.
    pub modified: Vec<String>,
    /// Paths that are gone.
    pub deleted: Vec<String>,
    /// Paths that were as the child has them already.
    pub already_applied: Vec<String>,
    /// Paths that were left as they are, because both sides changed them.
    pub conflicts: Vec<ConflictRecord>,
    /// How many paths the child had not changed.
    pub untouched: u64,
    /// The kept set of changes, in order, as it was sent; empty where it is not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<String>,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// `changes.started`: the set of changes of another session's promotion is done again here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesStarted {
    /// The session that was promoted to.
    pub source: SessionId,
    /// The ledger number of its `promote`.
    pub seq: u64,
}

/// `changes`. One that failed is `file.failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesApplied {
    /// The ledger number of the intent.
    pub op: u64,
    /// The session that was promoted to.
    pub source: SessionId,
    /// The ledger number of its `promote`.
    pub seq: u64,
    /// How many paths there are in the set.
    pub paths: u64,
}

/// A path that was left as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictRecord {
    /// In the workspace.
    pub path: String,
    /// Why, for a person.
    pub reason: String,
}

/// `promote.failed`, in the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromoteFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// The session whose changes were to be carried.
    pub child: SessionId,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
    /// The parent's files are as they were. Otherwise its checkpoint of just before has them.
    pub rolled_back: bool,
}

/// `promote.out`, in the child. Durable in the same instant as the parent's `promote`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedOut {
    /// The session that the changes were carried to.
    pub parent: SessionId,
    /// The digest of what was done.
    pub plan_id: String,
    /// How many paths were carried.
    pub carried: u64,
    /// How many were left because both sides changed them.
    pub conflicts: u64,
}
