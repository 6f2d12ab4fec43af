//! What commands answer. Each is built from the outcome event, so that what the caller saw is what is
//! recorded.

use bytes::Bytes;
use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::CheckpointTaken;
use fluxvm_projections::ExecCompleted;
use fluxvm_projections::Forked;
use fluxvm_projections::Restored;
use fluxvm_projections::RewindMoved;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

/// A command's end.
#[derive(Clone, Debug)]
pub struct ExecAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: ExecCompleted,
    /// The bytes of standard output that were kept.
    pub stdout: Bytes,
    /// The bytes of standard error that were kept.
    pub stderr: Bytes,
}

/// A replay's end, or its plan.
#[derive(Clone, Debug)]
pub struct ReplayAnswer {
    /// The session whose commands were taken.
    pub source: SessionId,
    /// The session in which they ran.
    pub target: Option<SessionId>,
    /// Nothing ran.
    pub dry_run: bool,
    /// The ledger number of the target's `replay` entry.
    pub seq: Option<u64>,
    /// The steps, in order; those after a stop did not run.
    pub steps: Vec<ReplayStep>,
    /// What was recorded and cannot be redone.
    pub skipped: Vec<SkippedStep>,
    /// The source event at which it stopped.
    pub stopped_at: Option<u64>,
    /// Why.
    pub stopped_because: Option<String>,
    /// The first source event that came to something else now.
    pub diverged_at: Option<u64>,
}

/// One step of a replay.
#[derive(Clone, Debug)]
pub struct ReplayStep {
    /// The source event.
    pub seq: u64,
    /// Its kind.
    pub kind: &'static str,
    /// What it is: the shell line of a command, `write /path`, `commit message`.
    pub command: String,
    /// The recorded exit code of a command.
    pub recorded_exit_code: Option<i32>,
    /// What was recorded of what it did, digests among it.
    pub recorded: String,
    /// Its end in the target; `None` when it did not run.
    pub result: Option<ReplayResult>,
    /// Why it did not run although it was its turn.
    pub error: Option<ReplayError>,
}

/// What came of a step of a replay.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// The target event.
    pub seq: u64,
    /// What it did, as [`ReplayStep::recorded`] says it.
    pub replayed: String,
    /// It is what was recorded.
    pub same: bool,
    /// How a command ended.
    pub exec: Option<ReplayExec>,
}

/// How a command of a replay ended.
#[derive(Clone, Copy, Debug)]
pub struct ReplayExec {
    /// The exit code.
    pub exit_code: i32,
    /// It is the recorded one.
    pub same_exit_code: bool,
    /// Standard output is what was recorded, byte for byte.
    pub same_stdout: bool,
    /// Standard error is what was recorded, byte for byte.
    pub same_stderr: bool,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

/// Why a step of a replay did not run.
#[derive(Clone, Debug)]
pub struct ReplayError {
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

/// Something recorded that a replay does not redo.
#[derive(Clone, Debug)]
pub struct SkippedStep {
    /// The source event.
    pub seq: u64,
    /// Its kind.
    pub kind: String,
    /// Why it is not redone.
    pub reason: String,
}

/// What was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactAnswer {
    /// The event that records it.
    pub seq: u64,
    /// The events whose payloads are erased, in order.
    pub redacted: Vec<u64>,
    /// How many blobs went with them.
    pub blobs: u64,
    /// The reason that is recorded.
    pub reason: String,
}

/// A checkpoint that was taken.
#[derive(Clone, Debug)]
pub struct CheckpointAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// When it was recorded.
    pub created_at: DateTime<Utc>,
    /// The session's revision since.
    pub revision: u64,
    /// The outcome.
    pub outcome: CheckpointTaken,
}

/// A session that is at a checkpoint's state.
#[derive(Clone, Debug)]
pub struct RestoreAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The session's revision since.
    pub revision: u64,
    /// The outcome.
    pub outcome: Restored,
}

/// Children that were made.
#[derive(Clone, Debug)]
pub struct ForkAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The parent's revision since.
    pub revision: u64,
    /// The outcome.
    pub outcome: Forked,
    /// The children.
    pub children: Vec<Session>,
}

/// A session that is at another point of its ring.
#[derive(Clone, Debug)]
pub struct RewindAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: RewindMoved,
    /// The session since.
    pub session: Session,
}

/// A session whose key was destroyed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShredAnswer {
    /// The event that records it.
    pub seq: u64,
    /// The session.
    pub session: SessionId,
    /// The reason that is recorded.
    pub reason: String,
}

/// What a retention erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionAnswer {
    /// The event that records that it is done.
    pub seq: u64,
    /// The size of the checkpoint.
    pub before: u64,
    /// How many sessions were erased.
    pub sessions: u64,
    /// How many events.
    pub events: u64,
    /// How many more sessions could be: ask again.
    pub left: u64,
}
