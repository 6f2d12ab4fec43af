//! Payloads of a session's birth.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::event::budget::BudgetRecord;
use crate::event::exec::EnforcementRecord;
use crate::event::fork::Origin;
use crate::ids::SandboxId;

/// `session.create.started`: everything that was asked for, as it was understood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionCreateStarted {
    /// A free label for who works in the session.
    pub agent: String,
    /// The tenant that the session belongs to, if the caller had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The sandbox that will be made. Known before it exists, so that a crash leaves a name to look for.
    pub sandbox_id: SandboxId,
    /// The engine that will make it.
    pub backend: String,
    /// The workspace.
    pub workspace: WorkspaceRecord,
    /// The machine.
    pub runtime: RuntimeRecord,
    /// The compiled policy.
    pub policy: PolicyRecord,
    /// Whether outputs are kept or only their digests.
    pub record: Recording,
    /// When the session ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetRecord>,
}

/// `session.create`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionCreated {
    /// The ledger number of the intent.
    pub op: u64,
    /// The label, once more, so that this entry can be read alone.
    pub agent: String,
    /// The sandbox that was made.
    pub sandbox_id: SandboxId,
    /// The engine that made it.
    pub backend: String,
    /// What this sandbox can do and what is enforced on it.
    pub capabilities: Capabilities,
    /// What the kernel held a trial command to, if the policy confines commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<EnforcementRecord>>,
    /// Why the workspace is not what was asked for, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_note: Option<String>,
    /// From the request to the sandbox's first answer, in milliseconds.
    pub duration_ms: u64,
    /// What the session is, where no intent in its own stream said so: the session is a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Box<ForkedSession>>,
}

/// What a forked session is and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForkedSession {
    /// As if it had been asked for like this.
    pub asked: SessionCreateStarted,
    /// Where it comes from.
    pub origin: Origin,
}

/// `policy.http_unenforced`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpUnenforced {
    /// What is missing.
    pub reason: String,
}

/// `session.create.failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionCreateFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}

/// Where the agent's files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceRecord {
    /// Absolute path in the guest.
    pub path: String,
    /// How the workspace is provided.
    pub mode: WorkspaceMode,
    /// The repository that was to be cloned into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<String>,
}

/// How a workspace is provided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceMode {
    /// A folder of the session's own that the agent may write.
    #[default]
    Clone,
    /// A folder that commands may read and not write.
    Readonly,
}

/// The machine that was asked for. `None` is the engine's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeRecord {
    /// A named image; `None` is the host's own root, filtered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// CPUs that the sandbox may use at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// Memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
}

/// What the policy compiled to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// The preset that was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// The sandbox has no network beyond loopback.
    pub offline: bool,
    /// Hosts that may be reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_hosts: Vec<String>,
    /// Rules on methods and paths, as the network edge reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_rules: Vec<String>,
    /// Why the network part is recorded and not enforced, where the caller agreed to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_unenforced: Option<String>,
    /// Rules about commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRecord>,
    /// Rules about files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<FilesystemRecord>,
}

/// Rules about commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    /// Patterns of commands that may run. Without any, all may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Patterns of commands that may not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Patterns of commands that people decide on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ask: Vec<AskRecord>,
    /// What no rule can be held against is held for approval.
    pub strict: bool,
    /// The programs that the kernel lets start, as they were named. Empty is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
}

impl ProcessRecord {
    /// There is a pattern to hold commands against.
    #[must_use]
    pub fn has_patterns(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty() && self.ask.is_empty())
    }
}

/// A pattern of commands that people decide on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRecord {
    /// The pattern.
    pub pattern: String,
    /// How many different people have to agree.
    pub approvers: u32,
}

/// Rules about files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemRecord {
    /// Paths that commands may read, beside the system's own.
    pub read: Vec<String>,
    /// Paths that commands may read and write.
    pub write: Vec<String>,
    /// The rules are recorded and not enforced where the kernel cannot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
}

/// Whether outputs are kept or only their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recording {
    /// Outputs are kept, so that a replay can show where it differs.
    #[default]
    Full,
    /// Only lengths and digests are kept.
    Digest,
}

/// What a sandbox can do and what is enforced on it. Nothing is claimed that does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
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
    /// File system rules are enforced by the kernel on what the agent starts.
    pub confinement: bool,
    /// A list of programs can be enforced by the kernel.
    pub exec_allowlist: bool,
    /// The version of the kernel's Landlock; 0 is none. Left out where it is, so that older states keep
    /// their digests.
    #[serde(default, skip_serializing_if = "is_none")]
    pub landlock_abi: u32,
    /// HTTP rules are enforced.
    pub http_policy: bool,
    /// A memory limit is enforced.
    #[serde(default)]
    pub memory_limit: bool,
    /// A limit on the number of processes is enforced.
    #[serde(default)]
    pub process_limit: bool,
    /// A limit on CPU time is enforced.
    #[serde(default)]
    pub cpu_limit: bool,
    /// How guest users map to host users.
    #[serde(default)]
    pub user_namespace: String,
    /// The guest's root may change files that the host's root owns, in its own layer.
    #[serde(default)]
    pub host_root_writable: bool,
    /// What the guest can reach.
    #[serde(default)]
    pub network: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_none(version: &u32) -> bool {
    *version == 0
}
