//! What can be asked for, as the server hands it over: shapes are checked, meaning is not.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::Recording;
use fluxvm_projections::SessionId;
use fluxvm_projections::Trigger;
use futures_util::Stream;

/// A session to be made.
#[derive(Clone, Debug, Default)]
pub struct CreateSession {
    /// A free label for who works in it.
    pub agent: String,
    /// The workspace.
    pub workspace: WorkspaceRequest,
    /// The machine.
    pub runtime: RuntimeRequest,
    /// The policy.
    pub policy: PolicyRequest,
    /// What it may use.
    pub budget: Option<BudgetRecord>,
    /// Seconds until it ends by itself.
    pub ttl_seconds: Option<u64>,
    /// Whether outputs are kept.
    pub record: Recording,
}

/// The workspace of a session to be made.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceRequest {
    /// Absolute path in the guest.
    pub path: Option<String>,
    /// `clone`, `readonly` or `overlay`.
    pub mode: Option<String>,
    /// A repository to clone.
    pub git: Option<String>,
    /// The read-only layer of an overlay.
    pub lower: Option<String>,
    /// The session must not be made when the workspace cannot.
    pub require_ready: bool,
}

/// The machine of a session to be made.
#[derive(Clone, Debug, Default)]
pub struct RuntimeRequest {
    /// A named image.
    pub image: Option<String>,
    /// CPUs.
    pub cpus: Option<u32>,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// The host's GPU.
    pub host_gpu: bool,
    /// How many volumes were asked for.
    pub volumes: usize,
}

/// The policy of a session to be made.
#[derive(Clone, Debug, Default)]
pub struct PolicyRequest {
    /// A named policy.
    pub preset: Option<String>,
    /// What may be reached.
    pub network: NetworkRequest,
    /// Rules about commands.
    pub process: Option<ProcessRequest>,
    /// Rules about files.
    pub filesystem: Option<FilesystemRequest>,
}

/// What happens to rules that cannot be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// They fail the request. A command that rules cannot judge is held.
    #[default]
    Strict,
    /// They are recorded as not enforced. A command that rules cannot judge runs.
    BestEffort,
}

/// What may be reached.
#[derive(Clone, Debug, Default)]
pub struct NetworkRequest {
    /// What is not allowed is refused.
    pub denies: bool,
    /// Hosts that may be reached.
    pub allow: Vec<HostRequest>,
    /// What happens to rules that cannot be enforced.
    pub enforcement: Enforcement,
}

/// A host that may be reached.
#[derive(Clone, Debug, Default)]
pub struct HostRequest {
    /// Its name.
    pub host: String,
    /// Methods that may be used; empty is all.
    pub methods: Vec<String>,
    /// Paths that may be asked for; empty is all.
    pub paths: Vec<String>,
}

/// Rules about commands.
#[derive(Clone, Debug, Default)]
pub struct ProcessRequest {
    /// Patterns of commands that may run; empty is all.
    pub allow: Vec<String>,
    /// Patterns of commands that may not.
    pub deny: Vec<String>,
    /// Patterns of commands that people decide on.
    pub ask: Vec<AskRequest>,
    /// The kernel holds the session to the programs that the patterns name.
    pub enforce: bool,
    /// What happens to commands that rules cannot judge.
    pub enforcement: Enforcement,
}

/// A pattern of commands that people decide on.
#[derive(Clone, Debug)]
pub struct AskRequest {
    /// The pattern.
    pub pattern: String,
    /// How many people have to agree.
    pub approvers: u32,
}

/// Rules about files.
#[derive(Clone, Debug, Default)]
pub struct FilesystemRequest {
    /// Paths that commands may read.
    pub read: Vec<String>,
    /// Paths that commands may write.
    pub write: Vec<String>,
    /// What happens to rules that cannot be enforced.
    pub enforcement: Enforcement,
}

/// A command to be run.
#[derive(Clone, Debug)]
pub struct Exec {
    /// The shell line.
    pub command: String,
    /// Its time limit, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The approval that it comes with.
    pub approval_id: Option<String>,
    /// How long to wait for people to decide, in seconds.
    pub approval_wait_seconds: Option<u64>,
}

impl Exec {
    /// A command without anything that it need not have.
    #[must_use]
    pub fn new(command: String, timeout_ms: Option<u64>) -> Self {
        Self {
            command,
            timeout_ms,
            approval_id: None,
            approval_wait_seconds: None,
        }
    }
}

/// A job to be started.
#[derive(Clone, Debug)]
pub struct StartJob {
    /// The shell line.
    pub command: String,
    /// Its standard input can be written to.
    pub stdin: bool,
    /// What it reads, whole, with `stdin`: it is closed after that. It survives this daemon.
    pub given: Option<Bytes>,
    /// How long nobody may be writing to its standard input before that counts as broken off and the job
    /// is ended, in milliseconds; for ever when `None`.
    pub stdin_lost_ms: Option<u64>,
    /// Bytes of each output stream that are kept.
    pub max_output_bytes: Option<u64>,
    /// Its time limit, in milliseconds; none when `None`.
    pub timeout_ms: Option<u64>,
    /// The approval that it comes with.
    pub approval_id: Option<String>,
    /// How long to wait for people to decide, in seconds.
    pub approval_wait_seconds: Option<u64>,
}

/// Bytes for a job's standard input.
pub struct JobInput {
    /// The bytes.
    pub bytes: InputBytes,
    /// How many were written before them. With it a write may be repeated: what of it was taken before is
    /// not written again.
    pub offset: Option<u64>,
    /// Close it after them.
    pub close: bool,
}

/// The bytes of one write.
pub enum InputBytes {
    /// All of them, and the field of the request that they stand in. A job that does not read takes fewer.
    Whole(&'static str, Bytes),
    /// As they come, for as long as the job lives and they last.
    Stream(StdinSource),
}

/// What a command reads: bytes as they come. An error among them means that they broke off.
pub type StdinSource = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Commands to be run again.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Where; `None` only with `dry_run`.
    pub target: Option<SessionId>,
    /// Only list what would run.
    pub dry_run: bool,
    /// Only what was recorded after this.
    pub since: Option<DateTime<Utc>>,
    /// Only what was recorded before or at this.
    pub until: Option<DateTime<Utc>>,
    /// Only what was done since this checkpoint or point. Where no target is named, a child that starts from
    /// it becomes the target.
    pub checkpoint: Option<String>,
    /// Only what was recorded from this ledger number on.
    pub from: Option<u64>,
    /// Only what was recorded up to this ledger number, itself included.
    pub to: Option<u64>,
    /// Stop at the first exit code that is not zero.
    pub stop_on_failure: bool,
    /// The time limit of each command, in milliseconds; the recorded one when `None`.
    pub timeout_ms: Option<u64>,
}

/// Which of a session's events are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventsQuery {
    /// Only those after this ledger number.
    pub after: Option<u64>,
    /// Only those recorded after this.
    pub since: Option<DateTime<Utc>>,
}

/// An event whose payload is to be erased.
#[derive(Clone, Debug)]
pub struct Redact {
    /// Its ledger number.
    pub seq: u64,
    /// Why.
    pub reason: String,
}

/// A session whose key is to be destroyed.
#[derive(Clone, Debug)]
pub struct ShredSession {
    /// The session.
    pub session: SessionId,
    /// Why.
    pub reason: String,
}

/// What ended sessions said is to be erased.
#[derive(Clone, Debug)]
pub struct Retain {
    /// The size of the signed checkpoint that all of it has to lie before.
    pub before: u64,
    /// Why.
    pub reason: String,
}

/// A hold to be placed.
#[derive(Clone, Debug)]
pub struct PlaceHold {
    /// The session that it covers; `None` is the whole ledger.
    pub session: Option<SessionId>,
    /// Why.
    pub reason: String,
}

/// A checkpoint to be taken.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// What the session will know it by; the next number when `None`.
    pub tag: Option<String>,
    /// Whether processes are kept; `None` is all there is.
    pub memory: Option<bool>,
    /// The revision that the caller saw.
    pub if_match: Option<u64>,
}

/// A checkpoint to be gone back to.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The checkpoint.
    pub tag: String,
    /// The revision that the caller saw.
    pub if_match: Option<u64>,
}

/// Children to be made.
#[derive(Clone, Debug)]
pub struct Fork {
    /// How many.
    pub count: u32,
    /// Who they are.
    pub identity: IdentityMode,
    /// Whether processes are kept; `None` is as far as that goes. Only for the current state.
    pub memory: Option<bool>,
    /// What they start from.
    pub from: ForkFrom,
    /// The revision that the caller saw.
    pub if_match: Option<u64>,
}

/// What children start from.
#[derive(Clone, Debug)]
pub enum ForkFrom {
    /// The session's state now.
    Now,
    /// A checkpoint of the session.
    Checkpoint(String),
    /// A rewind point of the session, or a checkpoint of it.
    Point(String),
}

/// What is to change about a session's ring. `None` leaves it as it is.
#[derive(Clone, Debug, Default)]
pub struct ConfigureRewind {
    /// Whether points are taken.
    pub enabled: Option<bool>,
    /// How many are kept.
    pub max_points: Option<u32>,
    /// Whether processes are kept where that is possible.
    pub memory: Option<bool>,
    /// What a point is taken before.
    pub triggers: Option<Vec<Trigger>>,
}

/// Where an undo or a redo goes.
#[derive(Clone, Debug)]
pub enum RewindTo {
    /// So many steps.
    Steps(u64),
    /// To this point.
    Tag(String),
}
