//! Payloads of jobs: commands that outlive their request.
//!
//! `job.start` is the intent and `job.exit` or `job.failed` its outcome. What goes into a job's standard
//! input is recorded by size alone: a digest of something short could be guessed.

use serde::Deserialize;
use serde::Serialize;

use super::exec::EnforcementRecord;
use super::exec::OutputRecord;
use super::exec::Survivors;
use super::exec::is_false;
use super::exec::is_zero;
use crate::ids::JobId;

/// `job.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStarted {
    /// The job. The guest knows it by the same id.
    pub job: JobId,
    /// The shell line, as submitted.
    pub command: String,
    /// Its standard input is a pipe that can be written to.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin: bool,
    /// When the guest ends it, in milliseconds from its start; never where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Bytes of each output stream that are kept.
    pub max_output_bytes: u64,
    /// How long nobody may be writing to its standard input before that counts as broken off and the job
    /// is ended, in milliseconds; for ever where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_lost_ms: Option<u64>,
}

/// `job.exit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobExited {
    /// The ledger number of the intent.
    pub op: u64,
    /// The job.
    pub job: JobId,
    /// The shell line, once more, so that this entry can be read alone.
    pub command: String,
    /// How it ended.
    pub state: JobEnd,
    /// The exit code: 128 + n for signal n, 124 after the time ran out.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// From the start in the guest to the end of its leader, in milliseconds.
    pub duration_ms: u64,
    /// When its leader ended by the guest's clock, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
    /// Its standard input broke off before its end, and it was ended for that.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin_cut: bool,
    /// What it wrote to standard output. The digest covers what was kept.
    pub stdout: OutputRecord,
    /// What it wrote to standard error. The digest covers what was kept.
    pub stderr: OutputRecord,
    /// Bytes of either stream that never reached the host.
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

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEnd {
    /// By itself, with an exit code.
    Exited,
    /// By a signal that was asked for.
    Killed,
    /// By a signal that nobody asked for here.
    Signaled,
    /// Its time ran out.
    TimedOut,
}

/// `job.failed`: it never ran, or how it ended is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// The job.
    pub job: JobId,
    /// The shell line.
    pub command: String,
    /// A stable code: `sandbox_gone`, `guest_unreachable`, `spawn_failed`, `interrupted`, `replaced`
    /// when its session went to a state in which it does not run, `confinement_refused` when the guest
    /// cannot hold it to what the session's policy says, `content_unavailable` when its output could not be kept.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
    /// What was kept of its standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<OutputRecord>,
    /// What was kept of its standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<OutputRecord>,
}

/// `job.stdin.started`: bytes are about to go into a job's standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStdinStarted {
    /// The job.
    pub job: JobId,
    /// How many bytes; 0 where they are `streamed`.
    pub bytes: u64,
    /// As many as come: the outcome says how many.
    #[serde(default, skip_serializing_if = "is_false")]
    pub streamed: bool,
    /// How many bytes were written before them, where the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Its standard input is closed after them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub close: bool,
}

/// `job.stdin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStdinWritten {
    /// The ledger number of the intent.
    pub op: u64,
    /// The job.
    pub job: JobId,
    /// How many bytes it took, those of them included that it had taken before.
    pub written: u64,
    /// How many it took of all writes together, as far as the guest said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u64>,
    /// Its standard input is closed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub closed: bool,
    /// Why not everything was done: a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// `job.kill.started`: a signal is about to go to a job's processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKillStarted {
    /// The job.
    pub job: JobId,
    /// The signal's name, without `SIG`.
    pub signal: String,
    /// Its number.
    pub number: i32,
}

/// `job.kill`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKilled {
    /// The ledger number of the intent.
    pub op: u64,
    /// The job.
    pub job: JobId,
    /// The signal's name, without `SIG`.
    pub signal: String,
    /// There was a process to signal.
    pub delivered: bool,
}
