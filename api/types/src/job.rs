//! Bodies of answers about jobs.

use serde::Serialize;
use uuid::Uuid;

use crate::answer::EnforcementView;

/// A job, as it is listed and as its start answers it.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// Its id.
    pub job: Uuid,
    /// The shell line.
    pub command: String,
    /// `running`, `exited`, `killed`, `signaled`, `timed_out` or `failed`.
    pub state: &'static str,
    /// 128 + n for signal n, 124 when the time ran out.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What runs it: always `supervisor`.
    pub engine: &'static str,
    /// When it was started.
    pub started_at: String,
    /// When it ended by the guest's clock; when its end was recorded where that is not known.
    pub ended_at: Option<String>,
    /// Its standard input can be written to.
    pub stdin: bool,
    /// Bytes that its standard input took, of writes that are done.
    pub stdin_bytes: u64,
    /// How long nobody may be writing to it before the job is ended, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_lost_seconds: Option<f64>,
    /// It was ended because its standard input broke off.
    #[serde(skip_serializing_if = "is_false")]
    pub stdin_cut: bool,
    /// Its time limit, in seconds.
    pub timeout_seconds: Option<f64>,
    /// Bytes of each output stream that are kept.
    pub max_output_bytes: u64,
    /// Why it has no exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<JobFailureView>,
    /// What the kernel held it to, once it ended, where the session's policy confines commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<EnforcementView>,
}

/// Why a job has no exit code.
#[derive(Clone, Debug, Serialize)]
pub struct JobFailureView {
    /// The stable code.
    pub code: String,
    /// What happened, for a person.
    pub message: String,
}

/// `GET …/jobs/{job}`: a job with a page of its output.
#[derive(Clone, Debug, Serialize)]
pub struct JobPageView {
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
    /// Standard output from the offset on, as text; what is no UTF-8 appears as U+FFFD.
    pub output: String,
    /// The same, exactly.
    pub output_base64: String,
    /// Where the next page of it begins.
    pub next_offset: u64,
    /// Standard error from the offset on, as text.
    pub stderr: String,
    /// The same, exactly.
    pub stderr_base64: String,
    /// Where the next page of it begins.
    pub stderr_next_offset: u64,
    /// There is more to read already.
    pub more: bool,
    /// Something was dropped.
    pub truncated: bool,
    /// How many bytes of both streams were dropped.
    pub dropped_bytes: u64,
    /// The job has ended, and this is the rest of what it wrote.
    pub eof: bool,
}

/// The `exit` event of a job's stream.
#[derive(Clone, Debug, Serialize)]
pub struct JobExitView {
    /// 128 + n for signal n, 124 when the time ran out.
    pub exit_code: Option<i32>,
    /// How it ended.
    pub state: &'static str,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was ended because its standard input broke off.
    #[serde(skip_serializing_if = "is_false")]
    pub stdin_cut: bool,
    /// Something was dropped.
    pub truncated: bool,
    /// How many bytes of both streams were dropped.
    pub dropped_bytes: u64,
    /// How many bytes of standard output were.
    pub stdout_dropped_bytes: u64,
    /// How many bytes of standard error were.
    pub stderr_dropped_bytes: u64,
    /// What the kernel held it to, where the session's policy confines commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<EnforcementView>,
}

/// What a write to a job's standard input came to.
#[derive(Clone, Debug, Serialize)]
pub struct JobInputView {
    /// The job.
    pub job: Uuid,
    /// The ledger number of the write.
    pub seq: u64,
    /// Bytes of this write that it has.
    pub written: u64,
    /// Its standard input is closed.
    pub closed: bool,
    /// Bytes that it took of all writes together: the `offset` of the next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
}

/// What a signal to a job came to.
#[derive(Clone, Debug, Serialize)]
pub struct JobSignalView {
    /// The job.
    pub job: Uuid,
    /// The ledger number of the signal.
    pub seq: u64,
    /// Its name, without `SIG`.
    pub signal: &'static str,
    /// There was a process to signal.
    pub delivered: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_false(value: &bool) -> bool {
    !*value
}
