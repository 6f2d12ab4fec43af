//! Bodies of answers.

use serde::Serialize;
use uuid::Uuid;

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorBody<'a> {
    /// What happened, for a person.
    pub error: &'a str,
    /// A stable word to branch on; each has a page in `docs/errors/`.
    pub code: &'a str,
    /// The path of the field that is at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<&'a str>,
    /// What else the error has to say, by its code.
    #[serde(flatten)]
    pub more: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

/// A list.
#[derive(Clone, Debug, Serialize)]
pub struct List<T> {
    /// What is in it.
    pub items: Vec<T>,
}

/// The answer of `POST …/exec`, without its texts. A command that ended badly is an answer too, not an
/// error.
///
/// After these keys come `stdout` and `stderr`, as text in which bytes that are no UTF-8 appear as U+FFFD,
/// and `stdout_base64` and `stderr_base64`, each only when the text beside it is not exact. They can be
/// megabytes, so that they are written as they go out and are never a value of this type.
#[derive(Clone, Debug, Serialize)]
pub struct ExecAnswer {
    /// Always `exec`.
    pub result: &'static str,
    /// The ledger number of the outcome.
    pub seq: u64,
    /// 128 + n for signal n, 124 when the time ran out.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its time ran out.
    #[serde(skip_serializing_if = "is_false")]
    pub timed_out: bool,
    /// How long it ran, in milliseconds.
    pub duration_ms: u64,
    /// Something was dropped.
    #[serde(skip_serializing_if = "is_false")]
    pub output_truncated: bool,
    /// How many bytes of standard output were dropped.
    #[serde(skip_serializing_if = "is_zero")]
    pub stdout_dropped_bytes: u64,
    /// How many bytes of standard error were dropped.
    #[serde(skip_serializing_if = "is_zero")]
    pub stderr_dropped_bytes: u64,
    /// Processes that it left running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survivors: Option<Survivors>,
    /// What the kernel held it to, where the session's policy confines commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<EnforcementView>,
}

/// What the guest's kernel held a command to. A restriction that was not asked for is `false`.
#[derive(Clone, Debug, Default, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a table of independent facts, not a state"
)]
pub struct EnforcementView {
    /// The version of the kernel's Landlock; 0 is none.
    pub landlock_abi: u32,
    /// Which files may be read and written.
    pub filesystem: bool,
    /// Which programs may be executed.
    pub execute: bool,
    /// Ports that may be connected to.
    pub tcp_connect: bool,
    /// Ports that may be bound.
    pub tcp_bind: bool,
    /// Abstract sockets of processes outside are out of reach.
    pub scope_abstract_unix: bool,
    /// Signals to processes outside are not delivered.
    pub scope_signal: bool,
    /// Calls that administer a machine are filtered.
    pub seccomp: bool,
    /// Kinds of sockets are filtered.
    pub seccomp_sockets: bool,
    /// Each command has limits of its own.
    pub limits: bool,
    /// It ran as another user than the guest daemon.
    pub uid_dropped: bool,
    /// It had namespaces of its own.
    pub namespaces: bool,
    /// It had a network of its own, apart from its sandbox's.
    pub network_isolated: bool,
    /// What was asked for and was not enforced, as the caller agreed.
    pub not_enforced: Vec<String>,
    /// Paths and programs of the policy that are not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// Processes that a command left running.
#[derive(Clone, Debug, Serialize)]
pub struct Survivors {
    /// How many.
    pub total: u64,
    /// The first of them.
    pub listed: Vec<Survivor>,
}

/// One process that outlived its command.
#[derive(Clone, Debug, Serialize)]
pub struct Survivor {
    /// Its id in the sandbox.
    pub pid: u32,
    /// Its command line, cut.
    pub command: String,
}

/// The answer of `POST …/replay`.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayAnswer {
    /// The session whose commands these are.
    pub source: Uuid,
    /// The session in which they ran again.
    pub target: Option<Uuid>,
    /// Nothing ran.
    pub dry_run: bool,
    /// The ledger number of the replay's own entry.
    pub seq: Option<u64>,
    /// What ran, or would.
    pub steps: Vec<ReplayStep>,
    /// What cannot be run again.
    pub skipped: Vec<SkippedStep>,
    /// The source's event at which it stopped before the end.
    pub stopped_at: Option<u64>,
    /// Why it stopped there.
    pub stopped_because: Option<String>,
    /// The first event of the source that came to something else now.
    pub diverged_at: Option<u64>,
}

/// One step of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayStep {
    /// The ledger number of the recorded event.
    pub seq: u64,
    /// Its kind.
    pub kind: &'static str,
    /// What it is: the shell line of a command, `write /path`, `commit message`.
    pub command: String,
    /// What was recorded of what it did, digests among it.
    pub recorded: String,
    /// The same of what it did now.
    pub replayed: Option<String>,
    /// The two are equal in every respect that counts.
    pub same: Option<bool>,
    /// How a command ended when it was recorded.
    pub recorded_exit_code: Option<i32>,
    /// How it ended now.
    pub exit_code: Option<i32>,
    /// The two are equal.
    pub same_exit_code: Option<bool>,
    /// Standard output is equal, byte by byte.
    pub same_stdout: Option<bool>,
    /// Standard error is equal, byte by byte.
    pub same_stderr: Option<bool>,
    /// The ledger number of the new outcome.
    pub target_seq: Option<u64>,
    /// How long it ran, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Why it has no outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StepError>,
}

/// Why a step of a replay has no outcome.
#[derive(Clone, Debug, Serialize)]
pub struct StepError {
    /// The stable code.
    pub code: String,
    /// What happened, for a person.
    pub message: String,
}

/// An entry that a replay does not run again.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedStep {
    /// Its ledger number.
    pub seq: u64,
    /// Its kind.
    pub kind: String,
    /// Why not.
    pub reason: String,
}

/// The answer of `GET /v1/ledger/info`.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerInfo {
    /// The ledger's id.
    pub ledger_id: String,
    /// Where it was started.
    pub origin: String,
    /// When.
    pub created_at: String,
    /// The key that its checkpoints are verified with.
    pub vkey: String,
    /// Its end, as far as it is durable.
    pub head: LedgerHead,
    /// Something was erased whose bytes are still in a file of ours, or may be.
    pub erasure_pending: bool,
    /// In which: `store`, which a start rids of them, and `archive`.
    pub erasure_pending_in: Vec<&'static str>,
    /// The sessions whose keys the start found to be destroyed without an event that ordered it.
    pub keys_found_destroyed: Vec<String>,
    /// The second copy of everything; `null` where the config names none.
    pub archive: Option<ArchiveView>,
    /// What is there of the content that the newest events stand for; only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<ContentLookView>,
    /// Each place that the config has checkpoints pushed to, and how the last push went.
    pub checkpoint_pushes: Vec<PushView>,
    /// What it takes on the disk.
    pub bytes_on_disk: u64,
    /// How long a sync took lately, in microseconds: the median.
    pub sync_micros_p50: u64,
    /// How long a sync took lately, in microseconds: one in a hundred took longer.
    pub sync_micros_p99: u64,
}

/// What is there of the content that the newest events stand for.
#[derive(Clone, Debug, Serialize)]
pub struct ContentLookView {
    /// How many events were looked at.
    pub events: u64,
    /// How many pieces of content they stand for.
    pub pieces: u64,
    /// How many of those are missing.
    pub missing: u64,
    /// The first event that one is missing of.
    pub first_missing: Option<u64>,
}

/// The archive of a ledger.
#[derive(Clone, Debug, Serialize)]
pub struct ArchiveView {
    /// `ok` or `failed`.
    pub state: &'static str,
    /// Its folder.
    pub dir: String,
    /// How many events are durable in it.
    pub archived: u64,
    /// Why nothing more is archived.
    pub error: Option<String>,
    /// It holds, or may hold, bytes that were erased.
    pub erasure_pending: bool,
}

/// How the last push of a checkpoint to one place went.
#[derive(Clone, Debug, Serialize)]
pub struct PushView {
    /// `checkpoint_dir`, `checkpoint_stdout` or `witness`, as in the config.
    pub to: &'static str,
    /// The size of the checkpoint; `null` where none was pushed since the start.
    pub size: Option<u64>,
    /// Why it was not taken.
    pub error: Option<String>,
}

/// The answer of `POST /v1/ledger/redact`.
#[derive(Clone, Debug, Serialize)]
pub struct RedactionView {
    /// The event that records it.
    pub seq: u64,
    /// The events that were erased.
    pub redacted: Vec<u64>,
    /// How many pieces of stored content went with them.
    pub blobs: u64,
    /// The reason that is recorded.
    pub reason: String,
    /// The archive, where it has failed and still holds, or may hold, what was erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveView>,
}

/// The answer of `POST /v1/ledger/shred`.
#[derive(Clone, Debug, Serialize)]
pub struct ShredView {
    /// The event that records it.
    pub seq: u64,
    /// The session whose key was destroyed.
    pub session: Uuid,
    /// The reason that is recorded.
    pub reason: String,
}

/// The answer of `POST /v1/ledger/retention`.
#[derive(Clone, Debug, Serialize)]
pub struct RetentionView {
    /// The event that records that it is done.
    pub seq: u64,
    /// The size of the checkpoint that all of it lies before.
    pub before: u64,
    /// How many sessions were erased.
    pub sessions: u64,
    /// How many events.
    pub events: u64,
    /// How many more sessions could be: ask again.
    pub left: u64,
    /// The archive, where it has failed and still holds, or may hold, what was erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveView>,
}

/// A hold in force.
#[derive(Clone, Debug, Serialize)]
pub struct HoldView {
    /// The event that placed it, by which it is released.
    pub seq: u64,
    /// The session that it covers; `null` is the whole ledger.
    pub session: Option<Uuid>,
    /// Why.
    pub reason: String,
    /// Since when.
    pub at: String,
}

/// The answer of `GET /v1/ledger/key`.
#[derive(Clone, Debug, Serialize)]
pub struct KeysView {
    /// The key that speaks for the ledger now.
    pub vkey: String,
    /// All keys that ever did, the oldest first.
    pub keys: Vec<KeyView>,
}

/// One key of a ledger.
#[derive(Clone, Debug, Serialize)]
pub struct KeyView {
    /// The size of the ledger from which on it speaks.
    pub from: u64,
    /// The key.
    pub vkey: String,
}

/// The end of a ledger.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerHead {
    /// How many events it has.
    pub position: u64,
    /// The hash of the last one, hex.
    pub hash: String,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}
