//! What differs between states, and what is carried from one session to another: bodies of requests and
//! of answers.

use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

use crate::number::Milliseconds;

/// A state, as an answer names it.
#[derive(Clone, Debug, Serialize)]
pub struct StateView {
    /// Whose it is.
    pub session: Uuid,
    /// `now`, `baseline` or a tag.
    pub state: String,
    /// The digest of its disk, hex; `null` for what an image begins with.
    pub disk: Option<String>,
}

/// What lies at a path.
#[derive(Clone, Debug, Serialize)]
pub struct TreeEntryView {
    /// `file`, `dir`, `symlink` or `other`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Permission bits, octal.
    pub mode: String,
    /// The owner inside.
    pub uid: u32,
    /// The group inside.
    pub gid: u32,
    /// The length of a file.
    pub bytes: Option<u64>,
    /// The digest of a file's content, hex.
    pub blake3: Option<String>,
    /// Where a symbolic link points.
    pub target: Option<String>,
}

/// One path that differs.
#[derive(Clone, Debug, Serialize)]
pub struct PathDiffView {
    /// In the workspace.
    pub path: String,
    /// `added`, `modified` or `deleted`.
    pub change: &'static str,
    /// What it was.
    pub before: Option<TreeEntryView>,
    /// What it is.
    pub after: Option<TreeEntryView>,
    /// The lines that differ, as a patch.
    pub diff: Option<String>,
    /// Why there are none although the content differs: `binary`, `file_too_large`, `answer_too_large`.
    pub omitted: Option<&'static str>,
}

/// The answer of `GET …/diff`.
#[derive(Clone, Debug, Serialize)]
pub struct DiffView {
    /// The one side.
    pub from: StateView,
    /// The other.
    pub to: StateView,
    /// Paths that differ, by path.
    pub items: Vec<PathDiffView>,
    /// How many there are.
    pub changed: u64,
    /// How many do not differ.
    pub unchanged: u64,
    /// Not all of them are listed.
    pub truncated: bool,
}

/// `workspace` of `GET …/artifacts`.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceChanges {
    /// New paths.
    pub added: Vec<String>,
    /// Paths that are others.
    pub modified: Vec<String>,
    /// Paths that are gone.
    pub deleted: Vec<String>,
    /// How many are as they were.
    pub unchanged: u64,
    /// How contents are told apart.
    pub mode: &'static str,
    /// The folders that were looked at.
    pub paths: Vec<String>,
    /// The digest of the disk that it is held against, hex; `null` for what the image begins with.
    pub baseline: Option<String>,
    /// When the session began with it.
    pub baseline_taken_at_unix: i64,
    /// Not all paths are listed.
    pub truncated: bool,
}

/// `counters` of `GET …/artifacts`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counters {
    /// Commands that were started.
    pub execs: u64,
    /// Their summed time.
    pub exec_ms: u64,
    /// Checkpoints that there are.
    pub checkpoints: u64,
    /// Children that were made, the deleted ones too.
    pub children: u64,
    /// Points that can be gone back to.
    pub rewind_points: u64,
}

/// The answer of `GET …/artifacts`.
#[derive(Clone, Debug, Serialize)]
pub struct ArtifactsView {
    /// The session.
    pub session: Uuid,
    /// What it made of its workspace.
    pub workspace: WorkspaceChanges,
    /// The tags of its checkpoints.
    pub checkpoints: Vec<String>,
    /// Its children.
    pub children: Vec<Uuid>,
    /// What it used.
    pub counters: Counters,
}

/// `POST …/promote`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromoteRequest {
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// The plan that the caller saw.
    #[serde(default)]
    pub plan_id: Option<String>,
    /// Do what is not in conflict.
    #[serde(default)]
    pub skip_conflicts: Option<bool>,
    /// Only these paths of the workspace, and what lies below them.
    #[serde(default)]
    pub paths: Option<Vec<String>>,
}

/// What a promotion does, by path.
#[derive(Clone, Debug, Serialize)]
pub struct PlanView {
    /// What is done to the parent.
    pub apply: ApplyView,
    /// What the parent has already.
    pub already_applied: Vec<String>,
    /// What is not done.
    pub conflicts: Vec<String>,
    /// Why not, by path.
    pub conflict_reasons: std::collections::BTreeMap<String, String>,
    /// How many paths the child did not change.
    pub untouched: u64,
}

/// `apply` of a plan.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ApplyView {
    /// New paths.
    pub added: Vec<String>,
    /// Paths that become others.
    pub modified: Vec<String>,
    /// Paths that go.
    pub deleted: Vec<String>,
}

/// What a promotion leaves behind.
#[derive(Clone, Debug, Serialize)]
pub struct NotCarriedView {
    /// Memory and processes of the child.
    pub memory_and_processes: bool,
    /// The child's volumes.
    pub volumes: Vec<serde_json::Value>,
    /// What the child changed outside its workspace.
    pub files_outside_the_workspace: bool,
}

/// The answer of `POST …/promote`.
#[derive(Clone, Debug, Serialize)]
pub struct PromoteView {
    /// Nothing was done.
    pub dry_run: bool,
    /// The session that is promoted.
    pub child: Uuid,
    /// The session that it is promoted to.
    pub parent: Uuid,
    /// What is done.
    pub plan: PlanView,
    /// A digest of it: a promotion with it does this or nothing.
    pub plan_id: String,
    /// What stays behind.
    pub not_carried: NotCarriedView,
    /// The ledger number of the parent's `promote`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The parent's checkpoint of just before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// How many paths were added.
    pub added: usize,
    /// How many became others.
    pub modified: usize,
    /// How many went.
    pub deleted: usize,
    /// How many were left because of conflicts.
    pub skipped: usize,
}

/// `POST …/rewind/bisect`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BisectRequest {
    /// A command that ends with 0 where all is well.
    pub test: String,
    /// A state in which it does; left out, the oldest point.
    #[serde(default)]
    pub good: Option<String>,
    /// A state in which it does not; left out, now.
    #[serde(default)]
    pub bad: Option<String>,
    /// The time limit of each test.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
}

/// The answer of `POST …/rewind/bisect`.
#[derive(Clone, Debug, Serialize)]
pub struct BisectView {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The command that broke it.
    pub culprit: CulpritView,
    /// The last kept state in which all was well.
    pub last_good: String,
    /// The first kept state in which it was not.
    pub first_bad: String,
    /// Every state that was looked at, in order.
    pub tested: Vec<VerdictView>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// `culprit` of a search.
#[derive(Clone, Debug, Serialize)]
pub struct CulpritView {
    /// The last kept state before it.
    pub tag: String,
    /// The shell line.
    pub command: String,
    /// The ledger number of its intent.
    pub seq: u64,
}

/// A state that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct VerdictView {
    /// `now`, a tag, or `after <seq>` for a state that was made by running commands again.
    pub state: String,
    /// How the test ended in it.
    pub exit_code: i32,
    /// All was well.
    pub good: bool,
}
