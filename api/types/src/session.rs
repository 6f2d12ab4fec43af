//! The session record.

use chrono::DateTime;
use chrono::Utc;
use serde::Serialize;
use uuid::Uuid;

use crate::answer::EnforcementView;
use crate::time;
use crate::time_travel::CheckpointView;
use crate::time_travel::OriginView;

/// A session, as one answer, as an item of the list and as the body of 201.
#[derive(Clone, Debug, Serialize)]
pub struct SessionView {
    /// Its id.
    pub id: Uuid,
    /// The label of who works in it.
    pub agent: String,
    /// The tenant that it belongs to.
    pub tenant: Option<String>,
    /// `creating`, `running`, `expired`, `gone`, `failed` or `deleted`.
    pub status: &'static str,
    /// Why it failed or is gone.
    pub status_reason: Option<String>,
    /// Its sandbox.
    pub sandbox_id: Uuid,
    /// The engine of its sandbox.
    pub backend: String,
    /// When it was asked for.
    #[serde(serialize_with = "time::serialize")]
    pub created_at: DateTime<Utc>,
    /// When it ends by itself.
    #[serde(serialize_with = "time::serialize_option")]
    pub expires_at: Option<DateTime<Utc>>,
    /// What `If-Match` is compared with.
    pub revision: u64,
    /// The session that it was forked from.
    pub parent: Option<Uuid>,
    /// What it started from, if it was forked.
    pub origin: Option<OriginView>,
    /// The sessions that were forked from it.
    pub children: Vec<Uuid>,
    /// Its workspace.
    pub workspace: WorkspaceView,
    /// Its machine.
    pub runtime: RuntimeView,
    /// What its policy compiled to.
    pub policy: PolicyView,
    /// What its sandbox can do and what is enforced on it.
    pub capabilities: CapabilitiesView,
    /// Checkpoints that it took.
    pub checkpoints: Vec<CheckpointView>,
    /// Its limits.
    pub budget: Option<BudgetView>,
    /// What it used.
    pub usage: UsageView,
    /// Whether outputs are kept (`full`) or only their digests (`digest`).
    pub record: &'static str,
    /// Its HTTP rules lost their address.
    pub http_unbound: bool,
    /// What runs in it now.
    pub in_flight: Vec<OperationView>,
    /// The last operation that a crash interrupted.
    pub interrupted_op: Option<InterruptedView>,
}

/// `workspace` of a session.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceView {
    /// The repository that was to be cloned into it.
    pub git: Option<String>,
    /// Where it lies in the sandbox.
    pub path: String,
    /// How it was made.
    pub mode: &'static str,
    /// What it is an overlay over.
    pub lower: Option<String>,
    /// Why it is not what was asked for.
    pub note: Option<String>,
    /// What changes are counted from.
    pub baseline: Option<()>,
}

/// `runtime` of a session. `null` is the engine's default.
#[derive(Clone, Debug, Serialize)]
pub struct RuntimeView {
    /// A named image.
    pub image: Option<String>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Whether the host's model server can be reached.
    pub host_gpu: bool,
    /// Attached volumes.
    pub volumes: Vec<()>,
}

/// `policy` of a session: what was compiled, not what was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyView {
    /// The preset that was named.
    pub preset: Option<String>,
    /// The sandbox reaches nothing beyond itself.
    pub offline: bool,
    /// Hosts that may be reached.
    pub allow_hosts: Vec<String>,
    /// Rules on methods and paths.
    pub http_rules: Vec<String>,
    /// Why the rules on hosts are not enforced, where the caller agreed to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_unenforced: Option<String>,
    /// Rules on commands.
    pub process: Option<ProcessView>,
    /// Rules on files.
    pub exec: Option<FilesystemView>,
    /// What the kernel held a trial command to, where the policy confines commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<EnforcementView>,
}

/// `policy.process` of a session.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessView {
    /// Patterns of commands that may run.
    pub allow: Vec<String>,
    /// Patterns of commands that may not.
    pub deny: Vec<String>,
    /// Patterns of commands that people decide on.
    pub ask: Vec<AskView>,
    /// `exec` when the kernel holds the session to the programs that the patterns name.
    pub enforce: Option<&'static str>,
    /// Those programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
    /// `strict` when commands that cannot be judged are held, else `best-effort`.
    pub enforcement: &'static str,
}

/// One entry of `policy.process.ask`: a bare pattern where one person decides.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum AskView {
    /// One person decides.
    One(String),
    /// Several people have to agree.
    Several {
        /// The pattern.
        #[serde(rename = "match")]
        pattern: String,
        /// How many.
        approvers: u32,
    },
}

/// `policy.exec` of a session.
#[derive(Clone, Debug, Serialize)]
pub struct FilesystemView {
    /// Paths that commands may read, beside the system's own.
    pub read: Vec<String>,
    /// Paths that commands may read and write.
    pub write: Vec<String>,
    /// `strict`, or `best-effort` when the caller agreed that they may not be enforced.
    pub enforcement: &'static str,
}

/// `capabilities` of a session or of the host's engine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CapabilitiesView {
    /// A checkpoint can be taken.
    pub snapshot: bool,
    /// A checkpoint can be restored in place.
    pub restore: bool,
    /// Children can be made from the current state.
    pub fork: bool,
    /// Interactive terminals.
    pub pty: bool,
    /// Checkpoints hold memory.
    pub memory_checkpoint: bool,
    /// Why they do not.
    pub memory_checkpoint_reason: Option<String>,
    /// Rules on files are enforced by the kernel.
    pub confinement: bool,
    /// A list of programs is enforced by the kernel.
    pub exec_allowlist: bool,
    /// The version of the kernel's Landlock; 0 is none.
    pub landlock_abi: u32,
    /// Rules on methods and paths are enforced.
    pub http_policy: bool,
    /// A memory limit is enforced.
    pub memory_limit: bool,
    /// A limit on the number of processes is enforced.
    pub process_limit: bool,
    /// A limit on CPU time is enforced.
    pub cpu_limit: bool,
    /// How guest users map to host users.
    pub user_namespace: String,
    /// The guest may change files of the host's root, in its own layer.
    pub host_root_writable: bool,
    /// What the guest can reach.
    pub network: String,
}

/// `budget` of a session: the limits that it has.
#[derive(Clone, Debug, Serialize)]
pub struct BudgetView {
    /// Commands through exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_execs: Option<u64>,
    /// Summed time of commands through exec, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_exec_seconds: Option<u64>,
    /// Jobs started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// Jobs running at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrent_jobs: Option<u64>,
    /// Children made by forking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_children: Option<u64>,
    /// Summed time of commands and jobs, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_compute_seconds: Option<u64>,
    /// Bytes kept of one output stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
    /// Tokens that models read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// Tokens that models wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// What models cost, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<u64>,
    /// Bytes of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<u64>,
    /// `stop` or `refuse-next`.
    pub on_exhaust: &'static str,
}

/// `usage` of a session.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct UsageView {
    /// Commands that were started.
    pub execs: u64,
    /// Their summed time, in milliseconds.
    pub exec_ms: u64,
    /// Jobs that were started.
    pub jobs: u64,
    /// Children that were forked.
    pub children: u64,
    /// What the workspace held when it was last measured.
    pub workspace_bytes: Option<u64>,
    /// Tokens that models read, as they were reported.
    pub input_tokens: u64,
    /// Tokens that models wrote.
    pub output_tokens: u64,
    /// What they cost, in US dollars.
    pub cost_usd: f64,
}

/// An operation whose outcome is not there yet, or never came.
#[derive(Clone, Debug, Serialize)]
pub struct OperationView {
    /// What it is.
    pub op: &'static str,
    /// The ledger number of its intent.
    pub seq: u64,
    /// When it started.
    #[serde(serialize_with = "time::serialize")]
    pub started_at: DateTime<Utc>,
}

/// An operation that a crash interrupted, and what was done about it.
#[derive(Clone, Debug, Serialize)]
pub struct InterruptedView {
    /// The operation.
    #[serde(flatten)]
    pub operation: OperationView,
    /// `rolled_back` when the session is as it was before; `null` when its outcome is not known.
    pub resolution: Option<String>,
}
