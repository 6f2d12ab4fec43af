//! Checkpoints, forks and the ring of points: bodies of requests and of answers.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

use crate::session::SessionView;
use crate::time;

/// `POST …/checkpoint`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// What the session will know it by.
    #[serde(default)]
    pub tag: Option<String>,
    /// Whether processes are kept.
    #[serde(default)]
    pub memory: Option<bool>,
}

/// `POST …/restore`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// The checkpoint.
    pub tag: String,
}

/// `POST …/fork`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// How many children.
    #[serde(default)]
    pub count: Option<u32>,
    /// Who they are.
    #[serde(default)]
    pub identity: Option<IdentityRequest>,
    /// Whether processes are kept.
    #[serde(default)]
    pub memory: Option<bool>,
    /// The checkpoint that they start from; left out, the current state.
    #[serde(default)]
    pub tag: Option<String>,
}

/// `identity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityRequest {
    /// A machine of its own, as far as that goes.
    BestEffort,
    /// A machine of its own, or none.
    Unique,
    /// The captured one.
    Preserve,
}

/// `POST …/rewind/config`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewindConfigRequest {
    /// Whether points are taken.
    #[serde(default)]
    pub enabled: Option<bool>,
    /// How many are kept.
    #[serde(default)]
    pub max_points: Option<u32>,
    /// Whether processes are kept where that is possible.
    #[serde(default)]
    pub memory: Option<bool>,
    /// What a point is taken before.
    #[serde(default)]
    pub triggers: Option<Vec<TriggerName>>,
}

/// One of `triggers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TriggerName {
    /// A command.
    Exec,
    /// The start of a job.
    Job,
    /// A file is written, removed or uploaded.
    File,
    /// A commit or a branch.
    Git,
}

/// `POST …/rewind/undo` and `…/redo`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewindMoveRequest {
    /// So many steps.
    #[serde(default)]
    pub steps: Option<u64>,
    /// To this point.
    #[serde(default)]
    pub to: Option<String>,
}

/// `POST …/rewind/pin`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// The point.
    pub tag: String,
    /// Whether it is kept; left out, it is.
    #[serde(default)]
    pub pinned: Option<bool>,
}

/// `POST …/rewind/branch`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchRequest {
    /// The point, or a checkpoint.
    pub tag: String,
    /// How many children.
    #[serde(default)]
    pub count: Option<u32>,
    /// Who they are.
    #[serde(default)]
    pub identity: Option<IdentityRequest>,
}

/// What was captured, as records and answers show it.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotView {
    /// The engine knows it by this id.
    pub id: Uuid,
    /// The digest of the captured disk, hex.
    pub disk: String,
    /// `kept`, `nothing_alive`, `not_asked` or `impossible`.
    pub processes: &'static str,
    /// The digest of the memory images, hex.
    pub memory_digest: Option<String>,
    /// Why processes could not be kept.
    pub reason: Option<String>,
    /// Bytes that it had to store.
    pub stored_bytes: u64,
    /// How long the sandbox stood still, in milliseconds.
    pub pause_ms: f64,
}

/// One of `checkpoints`.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointView {
    /// What the session knows it by.
    pub tag: String,
    /// Processes are in it.
    pub memory: bool,
    /// When it was taken.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// What was captured.
    pub snapshot: SnapshotView,
}

/// The answer of `POST …/checkpoint`.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// What was taken.
    #[serde(flatten)]
    pub checkpoint: CheckpointView,
    /// The session's revision since.
    pub revision: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// What became of what was captured.
#[derive(Clone, Debug, Serialize)]
pub struct RevivalView {
    /// Processes live on. Otherwise the machine began anew on the captured disk.
    pub memory: bool,
    /// Processes that live on without the confinement that they had.
    pub unconfined: Vec<String>,
}

/// The answer of `POST …/restore`.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The checkpoint.
    pub tag: String,
    /// The session's revision since.
    pub revision: u64,
    /// Its sandbox since.
    pub sandbox_id: Uuid,
    /// The digest of the disk that the sandbox was checked against, hex.
    pub disk: String,
    /// What became of what was captured.
    #[serde(flatten)]
    pub revival: RevivalView,
    /// Grants that were bound to the new sandbox.
    pub grants_rebound: u64,
    /// No HTTP rule lost its address.
    pub http_policy_bound: bool,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// The answer of `POST …/fork` and `POST …/rewind/branch`.
#[derive(Clone, Debug, Serialize)]
pub struct ForkAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The children.
    pub items: Vec<SessionView>,
    /// What they started from.
    pub snapshot: SnapshotView,
    /// The parent's revision since.
    pub revision: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// Where a session comes from that is a fork.
#[derive(Clone, Debug, Serialize)]
pub struct OriginView {
    /// The parent's checkpoint or point; `null` is its state of then.
    pub tag: Option<String>,
    /// What it started from.
    pub snapshot: SnapshotView,
    /// What became of what was captured.
    #[serde(flatten)]
    pub revival: RevivalView,
    /// Machine id, host name and entropy are its own.
    pub identity_renewed: bool,
    /// Why they are not, where that was asked for.
    pub identity_note: Option<String>,
}

/// `config` of a ring.
#[derive(Clone, Debug, Serialize)]
pub struct RewindConfigView {
    /// Points are taken.
    pub enabled: bool,
    /// How many are kept.
    pub max_points: u32,
    /// Processes are kept where that is possible.
    pub memory: bool,
    /// What a point is taken before.
    pub triggers: Vec<TriggerName>,
}

/// One of `points` or `undone`.
#[derive(Clone, Debug, Serialize)]
pub struct PointView {
    /// What the session knows it by.
    pub tag: String,
    /// What was about to happen; `null` for the state that an undo left.
    pub command: Option<String>,
    /// What it was taken before; `null` for the state that an undo left.
    pub trigger: Option<TriggerName>,
    /// The ledger number of what was about to happen.
    pub before: Option<u64>,
    /// When it was taken.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// Processes are in it.
    pub memory: bool,
    /// It is kept until it is let go of.
    pub pinned: bool,
    /// A picture of its display is there.
    pub screenshot: bool,
    /// What was captured.
    pub snapshot: SnapshotView,
}

/// The answer of `GET …/rewind`.
#[derive(Clone, Debug, Serialize)]
pub struct RewindView {
    /// Whether, when and how points are taken.
    pub config: RewindConfigView,
    /// What can be gone back to, oldest first.
    pub points: Vec<PointView>,
    /// What was undone: the state that the session is in, and then what a redo comes to.
    pub undone: Vec<PointView>,
}

/// The answer of `POST …/rewind/undo` and `…/redo`.
#[derive(Clone, Debug, Serialize)]
pub struct RewindMoveAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The point that the session is at.
    pub tag: String,
    /// How many steps away it was.
    pub steps: u64,
    /// The session's revision since.
    pub revision: u64,
    /// Its sandbox since.
    pub sandbox_id: Uuid,
    /// The digest of the disk that the sandbox was checked against, hex.
    pub disk: String,
    /// What became of what was captured.
    #[serde(flatten)]
    pub revival: RevivalView,
    /// The point that keeps the state of before.
    pub kept: Option<String>,
    /// Why that state could not be kept.
    pub not_kept: Option<String>,
    /// How many steps can be undone from here.
    pub undo_steps: usize,
    /// How many steps can be redone from here.
    pub redo_steps: usize,
    /// Grants that were bound to the new sandbox.
    pub grants_rebound: u64,
    /// No HTTP rule lost its address.
    pub http_policy_bound: bool,
    /// How long it took.
    pub elapsed_ms: u64,
}
