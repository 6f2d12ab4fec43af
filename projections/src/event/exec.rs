//! Payloads of commands.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::ExecId;

/// `exec.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// The guest knows the command by this id.
    pub exec_id: ExecId,
    /// The shell line, as submitted.
    pub command: String,
    /// When the guest ends it, in milliseconds from its start.
    pub timeout_ms: u64,
    /// It is given something to read.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin: bool,
}

/// `exec`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecCompleted {
    /// The ledger number of the intent.
    pub op: u64,
    /// The guest's id of the command.
    pub exec_id: ExecId,
    /// The shell line, once more, so that this entry can be read alone.
    pub command: String,
    /// The exit code: 128 + n for signal n, 124 after the time ran out.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its time ran out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed_out: bool,
    /// From the start in the guest to the end of its output, in milliseconds.
    pub duration_ms: u64,
    /// The time limit that it ran under, so that a replay can run under the same.
    pub timeout_ms: u64,
    /// How many bytes of standard input it took, if it was given any. The bytes are not recorded, and
    /// neither is a digest of them: one of something short could be guessed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_bytes: Option<u64>,
    /// Its standard input broke off before its end, and it was ended for that.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin_cut: bool,
    /// What it wrote to standard output.
    pub stdout: OutputRecord,
    /// What it wrote to standard error.
    pub stderr: OutputRecord,
    /// Bytes of either stream that never reached the host: the guest's window had moved past them while
    /// the daemon was down. The digests do not cover them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gap_bytes: u64,
    /// Processes that it left running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survivors: Option<Survivors>,
    /// The daemon was restarted while it ran and took it up again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub readopted: bool,
    /// What the kernel held it to, if its session's policy confines commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<EnforcementRecord>>,
}

impl ExecCompleted {
    /// Whether something that the command wrote was not kept.
    #[must_use]
    pub fn output_truncated(&self) -> bool {
        self.stdout.dropped_bytes > 0 || self.stderr.dropped_bytes > 0 || self.gap_bytes > 0
    }
}

/// One output stream of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// The digest of all bytes that reached the host, hex.
    pub blake3: String,
    /// How many bytes the command wrote.
    pub bytes: u64,
    /// The blob that holds what was kept, hex. It differs from `blake3` only when bytes were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// Bytes that were not kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_bytes: u64,
}

/// What the guest's kernel held a command to. A restriction that was not asked for is `false`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a table of independent facts, not a state"
)]
pub struct EnforcementRecord {
    /// The version of the kernel's Landlock; 0 is none.
    pub landlock_abi: u32,
    /// Files: which may be read and written.
    pub filesystem: bool,
    /// Programs: which may be executed.
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
    /// Memory, processes or processor time of each command are limited.
    pub limits: bool,
    /// The command ran as another user than the guest daemon.
    pub uid_dropped: bool,
    /// The command had namespaces of its own.
    pub namespaces: bool,
    /// The command had a network of its own.
    pub network_isolated: bool,
    /// What was asked for and was not enforced, as the caller agreed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<String>,
    /// Paths and programs of the policy that were not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

/// Processes that a command left running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivors {
    /// How many.
    pub total: u64,
    /// The first of them.
    pub listed: Vec<SurvivorRecord>,
}

/// One process that outlived its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivorRecord {
    /// Its id in the sandbox.
    pub pid: u32,
    /// Its command line, cut.
    pub command: String,
}

/// `exec.failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// The guest's id of the command.
    pub exec_id: ExecId,
    /// The shell line.
    pub command: String,
    /// A stable code: `sandbox_gone`, `guest_unreachable`, `spawn_failed`, `interrupted`,
    /// `confinement_refused` when the guest cannot hold it to what the session's policy says.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}

/// `exec.refused`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecRefused {
    /// The shell line.
    pub command: String,
    /// A stable code of the rule.
    pub code: String,
    /// Why, for a person.
    pub reason: String,
    /// The pattern that refuses it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
pub(crate) fn is_zero(value: &u64) -> bool {
    *value == 0
}
