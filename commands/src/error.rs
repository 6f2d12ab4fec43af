//! Why a command or a query was not done.
//!
//! The variants say what happened, in the domain's words. Which HTTP status that is, is decided in the
//! server and nowhere else.

use agentd_protocol::FileFault;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::BlobError;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::SignError;
use fluxvm_projections::Approval;
use fluxvm_projections::ApprovalId;
use fluxvm_projections::JobId;
use fluxvm_projections::SessionId;
use fluxvm_projections::TokenId;
use fluxvm_projections::UploadId;
use fluxvm_vmm::CreateError;
use fluxvm_vmm::ReviveError;
use fluxvm_vmm::SnapshotError;

use crate::git::GitFault;

/// Why a command or a query was not done. [`Self::code`] is stable and documented.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A field of the request does not hold.
    #[error("{field}: {message}")]
    Invalid {
        /// The field's path, such as `workspace.path`.
        field: &'static str,
        /// What it should be.
        message: String,
    },
    /// What was asked for cannot be enforced here, so it is not promised.
    #[error("{field}: {message}")]
    Unenforceable {
        /// The field's path.
        field: &'static str,
        /// What is missing.
        message: String,
    },
    /// A rule of the session does not let it run. The refusal is recorded.
    #[error("{reason}")]
    Refused {
        /// A stable code of the kind of rule.
        code: &'static str,
        /// Which rule, and what of the request it is about.
        reason: String,
    },
    /// People have to decide on the command first.
    #[error("the command waits for an approval: {}", .0.request.approval_id)]
    ApprovalRequired(Box<Approval>),
    /// No such approval in this session.
    #[error("approval {0} not found in this session")]
    ApprovalNotFound(ApprovalId),
    /// There is nothing to decide any more.
    #[error("approval {approval}: {why}")]
    ApprovalDecided {
        /// The approval.
        approval: ApprovalId,
        /// Why.
        why: String,
    },
    /// No such token of this session.
    #[error("token {0} not found in this session")]
    TokenNotFound(TokenId),
    /// The session has as many tokens as it can.
    #[error("{limit} tokens of this session are live, which is the limit; revoke one first")]
    TooManyTokens {
        /// The limit.
        limit: usize,
    },
    /// No such session, or none that this caller may know of.
    #[error("session {0} not found")]
    NotFound(SessionId),
    /// The session is in no state for it.
    #[error("session {session} is {status}: {message}")]
    NotRunning {
        /// The session.
        session: SessionId,
        /// Its status.
        status: &'static str,
        /// What can still be done.
        message: String,
    },
    /// No such job in this session.
    #[error("job {0} not found in this session")]
    JobNotFound(JobId),
    /// The job has ended, so that nothing can be done to it.
    #[error("job {0} has ended; how, and what it wrote, can be read until its session ends")]
    JobEnded(JobId),
    /// The job's standard input takes nothing.
    #[error("the standard input of job {job} is closed: {why}")]
    StdinClosed {
        /// The job.
        job: JobId,
        /// Since when, or why.
        why: &'static str,
    },
    /// A job's kept output cannot be read.
    #[error("the output of job {job} cannot be read: {source}")]
    JobOutput {
        /// The job.
        job: JobId,
        /// Why.
        source: std::io::Error,
    },
    /// An operation that excludes this one is in flight.
    #[error("{operation} is in flight on session {session} since {since}; try again when it ended")]
    Busy {
        /// The session.
        session: SessionId,
        /// The operation.
        operation: &'static str,
        /// When it started, RFC 3339.
        since: String,
    },
    /// Commands run in the machine that would be replaced.
    #[error(
        "{count} running in session {session}: its machine cannot be replaced under them; wait until \
         they end"
    )]
    CommandsRunning {
        /// The session.
        session: SessionId,
        /// How many.
        count: usize,
    },
    /// Another checkpoint of the session has this tag.
    #[error("the session has a checkpoint `{0}` already; delete it first or take another tag")]
    TagTaken(String),
    /// The session has no checkpoint or point of this tag.
    #[error("the session has no {what} `{tag}`{hint}")]
    TagNotFound {
        /// What was looked for.
        what: &'static str,
        /// The tag.
        tag: String,
        /// Where it may be found, as the tail of the sentence.
        hint: &'static str,
    },
    /// The session has as much of it as it may.
    #[error("the session has {limit} {what}, which is the limit")]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// What was asked for is larger than what is done at once.
    #[error("{what} has more than {limit} {unit}, which is the limit")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit.
        limit: usize,
        /// What is counted.
        unit: &'static str,
    },
    /// The session is nobody's child.
    #[error(
        "session {0} was not forked from another one: there is no baseline and nobody to promote to"
    )]
    NoBaseline(SessionId),
    /// What would be done is not what the caller saw.
    #[error(
        "the plan is {actual} now: something changed since it was {expected}; look at it again"
    )]
    PlanChanged {
        /// The caller's.
        expected: String,
        /// The one of now.
        actual: String,
    },
    /// Both sides changed the same paths.
    #[error("{count} paths are in conflict, the first is {first}: {reason}; nothing was changed")]
    Conflicts {
        /// How many.
        count: usize,
        /// The first of them.
        first: String,
        /// Why it is one.
        reason: &'static str,
    },
    /// Changes could not be brought into a session.
    #[error("the changes could not be applied: {reason}; {outcome}")]
    NotApplied {
        /// What went wrong.
        reason: String,
        /// How the session is.
        outcome: String,
    },
    /// The ends of a search do not differ.
    #[error("{0}")]
    EndsAgree(String),
    /// The engine cannot do this at all.
    #[error("this session's engine cannot {what}: {reason}")]
    NotSupported {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// The session cannot be forked.
    #[error("the session cannot be forked: {0}")]
    CannotFork(String),
    /// Processes were to be kept, and that cannot be done.
    #[error("memory cannot be kept: {0}; with `memory: false` only the disk is")]
    MemoryImpossible(String),
    /// A pin or a smaller ring would leave no slot for the next point.
    #[error("{pinned} of {max_points} points would be pinned; one slot must stay free")]
    RingFull {
        /// Pinned points.
        pinned: usize,
        /// The ring's size.
        max_points: u32,
    },
    /// There are not so many steps.
    #[error("cannot {what} so far: steps asked for {wanted}, steps there are {there}")]
    NoSuchStep {
        /// `undo` or `redo`.
        what: &'static str,
        /// What was asked for.
        wanted: u64,
        /// What there is.
        there: usize,
    },
    /// A sandbox could not be captured.
    #[error("{0}")]
    Snapshot(SnapshotError),
    /// No sandbox could be made of a snapshot.
    #[error("{0}")]
    Revive(ReviveError),
    /// The engine did not answer in time.
    #[error("{what} within {seconds} s; the session is as it was")]
    SnapshotLate {
        /// What was not done.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// Too much of one kind runs already.
    #[error("{what}: {limit} at once is the limit; try again when one has ended")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The caller's revision is not the session's.
    #[error("the session is at revision {actual}, not {expected}; read it again")]
    RevisionDiffers {
        /// The caller's.
        expected: u64,
        /// The session's.
        actual: u64,
    },
    /// An idempotency key was used before with another body.
    #[error("this Idempotency-Key was used with another body; take a new key")]
    IdempotencyMismatch,
    /// The request with this idempotency key has not been answered yet.
    #[error("the request with this Idempotency-Key is still running")]
    IdempotencyRunning,
    /// The answer that was kept for this idempotency key was erased.
    #[error(
        "the request with this Idempotency-Key was done, and its answer was erased; take a new key"
    )]
    AnswerErased,
    /// No such event.
    #[error("there is no event {0}")]
    EventNotFound(u64),
    /// What this event says is needed to know the state, so it is not erased.
    #[error("event {seq} ({kind}) cannot be redacted: {why}")]
    NotRedactable {
        /// The event.
        seq: u64,
        /// Its kind.
        kind: String,
        /// What it is needed for.
        why: &'static str,
    },
    /// A hold covers the event.
    #[error("hold {hold} forbids it ({reason}); the refusal is recorded as event {refusal}")]
    UnderHold {
        /// The event that placed the hold.
        hold: u64,
        /// Why it was placed.
        reason: String,
        /// The event that records the refusal.
        refusal: u64,
    },
    /// Only a session that has ended is erased as a whole.
    #[error("session {session} is {status}: end it first (delete it), then erase it")]
    NotEnded {
        /// The session.
        session: SessionId,
        /// Its status.
        status: &'static str,
    },
    /// The session has no key of its own to be destroyed.
    #[error(
        "session {0} is not sealed, so it has no key to destroy; redact its commands, or erase it by a \
         retention"
    )]
    NotSealed(SessionId),
    /// No such hold is in force.
    #[error("there is no hold {0} in force")]
    HoldNotFound(u64),
    /// There is less room on the disk than is kept free for the ledger.
    #[error(
        "the disk that the state is on has {free_mib} MiB left, and {reserve_mib} MiB are kept free so that \
         what runs can still be recorded; make room: delete sessions, or free space on the host"
    )]
    InsufficientStorage {
        /// What is left, in MiB.
        free_mib: u64,
        /// What is kept free, in MiB.
        reserve_mib: u64,
    },
    /// The sandbox could not be made. Nothing of it is left.
    #[error("the sandbox could not be made: {0}")]
    CreateFailed(#[from] CreateError),
    /// The workspace could not be made ready and the caller required it.
    #[error("the workspace is not ready: {0}; the sandbox was removed")]
    WorkspaceNotReady(String),
    /// The sandbox could not be removed completely. It is tried again at the next start.
    #[error("the sandbox could not be removed: {0}")]
    RemoveFailed(String),
    /// The command could not be started, or its end is not known.
    #[error("the command has no outcome: {reason}")]
    ExecFailed {
        /// The stable code that the ledger has.
        code: String,
        /// What is known.
        reason: String,
    },
    /// The guest did not do something with a file.
    #[error("{detail}")]
    File {
        /// Why, by its stable name.
        fault: FileFault,
        /// What happened.
        detail: String,
    },
    /// Git did not do it.
    #[error("{detail}")]
    Git {
        /// Why, by its stable name.
        fault: GitFault,
        /// What happened.
        detail: String,
    },
    /// No such upload in this session.
    #[error("there is no upload {0} in this session; it may have been aborted")]
    UploadNotFound(UploadId),
    /// The upload is complete and takes nothing more.
    #[error("upload {0} is complete")]
    UploadDone(UploadId),
    /// A part does not begin where the last one ended.
    #[error("the part begins at {offset}; go on at {received}")]
    UploadOffset {
        /// The caller's.
        offset: u64,
        /// Where to go on.
        received: u64,
    },
    /// Not all bytes came yet.
    #[error("{received} of {size} bytes came; go on at {received}")]
    UploadIncomplete {
        /// How many came.
        received: u64,
        /// How many have to.
        size: u64,
    },
    /// The host's disk did not take or give a part of an upload.
    #[error("the parts of uploads could not be stored or read: {0}")]
    Spool(std::io::Error),
    /// The guest did not answer. Whether it did anything is recorded as unknown.
    #[error("{reason}")]
    Guest {
        /// A stable code.
        code: &'static str,
        /// What is known.
        reason: String,
    },
    /// The ledger did not take the event.
    #[error("the ledger did not record it: {0}")]
    Ledger(#[from] AppendError),
    /// The ledger did not sign.
    #[error("the ledger did not sign it: {0}")]
    Sign(#[from] SignError),
    /// No checkpoint was signed at this size.
    #[error("no checkpoint was signed at size {0}")]
    CheckpointNotFound(u64),
    /// The ledger could not be read.
    #[error("the ledger could not be read: {0}")]
    Read(#[from] ReadError),
    /// Content could not be stored or read.
    #[error("content could not be stored or read: {0}")]
    Blob(#[from] BlobError),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// A defect: an invariant did not hold.
    #[error("internal error: {0}")]
    Internal(String),
}

impl CommandError {
    /// The stable code that clients can branch on.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Invalid { .. } => "invalid_field",
            Self::Unenforceable { .. } => "not_enforceable",
            Self::Refused { code, .. } => code,
            Self::ApprovalRequired(_) => "approval_required",
            Self::ApprovalNotFound(_) => "approval_not_found",
            Self::ApprovalDecided { .. } => "approval_decided",
            Self::TokenNotFound(_) => "token_not_found",
            Self::TooManyTokens { .. } => "too_many_tokens",
            Self::NotFound(_) => "session_not_found",
            Self::NotRunning { .. } => "session_not_running",
            Self::JobNotFound(_) => "job_not_found",
            Self::JobEnded(_) => "job_ended",
            Self::StdinClosed { .. } => "stdin_closed",
            Self::JobOutput { .. } => "content_unavailable",
            Self::Busy { .. } => "operation_in_flight",
            Self::CommandsRunning { .. } => "commands_running",
            Self::TagTaken(_) => "tag_taken",
            Self::TagNotFound { .. } => "tag_not_found",
            Self::Full { .. } => "session_full",
            Self::TooLarge { .. } => "too_large",
            Self::NoBaseline(_) => "no_baseline",
            Self::PlanChanged { .. } => "plan_changed",
            Self::Conflicts { .. } => "conflicts",
            Self::NotApplied { .. } => "not_applied",
            Self::EndsAgree(_) => "ends_agree",
            Self::NotSupported { .. } => "not_supported",
            Self::CannotFork(_) => "cannot_fork",
            Self::MemoryImpossible(_) => "memory_checkpoint_impossible",
            Self::RingFull { .. } => "rewind_ring_full",
            Self::NoSuchStep { .. } => "no_such_step",
            Self::Snapshot(error) => snapshot_code(error),
            Self::Revive(ReviveError::Snapshot(error)) => snapshot_code(error),
            Self::Revive(ReviveError::Create(_)) => "sandbox_create_failed",
            Self::Revive(ReviveError::Memory { .. }) => "memory_restore_failed",
            Self::Revive(ReviveError::Identity(_)) => "identity_not_renewed",
            Self::SnapshotLate { .. } => "snapshot_failed",
            Self::TooMany { .. } => "too_many",
            Self::RevisionDiffers { .. } => "revision_differs",
            Self::IdempotencyMismatch => "idempotency_key_reused",
            Self::IdempotencyRunning => "idempotency_key_running",
            Self::AnswerErased => "answer_erased",
            Self::EventNotFound(_) => "event_not_found",
            Self::NotRedactable { .. } => "not_redactable",
            Self::UnderHold { .. } => "under_hold",
            Self::NotEnded { .. } => "session_not_ended",
            Self::NotSealed(_) => "session_not_sealed",
            Self::HoldNotFound(_) => "hold_not_found",
            Self::InsufficientStorage { .. } => "insufficient_storage",
            Self::CreateFailed(_) => "sandbox_create_failed",
            Self::WorkspaceNotReady(_) => "workspace_not_ready",
            Self::RemoveFailed(_) => "sandbox_remove_failed",
            Self::ExecFailed { code, .. } => code,
            Self::File { fault, .. } => file_code(*fault),
            Self::Git { fault, .. } => fault.code(),
            Self::UploadNotFound(_) => "upload_not_found",
            Self::UploadDone(_) => "upload_done",
            Self::UploadOffset { .. } => "upload_offset",
            Self::UploadIncomplete { .. } => "upload_incomplete",
            Self::Spool(_) => "upload_not_stored",
            Self::Guest { code, .. } => code,
            Self::Ledger(_) | Self::Sign(_) => "ledger_unavailable",
            Self::CheckpointNotFound(_) => "checkpoint_not_found",
            Self::Read(_) => "ledger_unreadable",
            Self::Blob(_) => "content_unavailable",
            Self::Stopping => "stopping",
            Self::Internal(_) => "internal",
        }
    }

    /// The request field that is at fault, if one is.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { field, .. } | Self::Unenforceable { field, .. } => Some(field),
            _ => None,
        }
    }
}

/// The stable code of what went wrong with a snapshot.
fn snapshot_code(error: &SnapshotError) -> &'static str {
    match error {
        SnapshotError::Unsupported(_) => "not_supported",
        SnapshotError::Missing(_) | SnapshotError::Damaged { .. } => "snapshot_damaged",
        SnapshotError::Memory(_) => "memory_checkpoint_impossible",
        SnapshotError::SandboxGone => "sandbox_gone",
        SnapshotError::AlreadyExists(_)
        | SnapshotError::NoSuchPath { .. }
        | SnapshotError::TooMany { .. }
        | SnapshotError::Os { .. } => "snapshot_failed",
    }
}

impl From<SnapshotError> for CommandError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Memory(reason) => Self::MemoryImpossible(reason),
            error => Self::Snapshot(error),
        }
    }
}

impl From<ReviveError> for CommandError {
    fn from(error: ReviveError) -> Self {
        Self::Revive(error)
    }
}

/// The API's name of a guest's fault.
fn file_code(fault: FileFault) -> &'static str {
    match fault {
        FileFault::Malformed => "invalid_path",
        FileFault::Absent => "file_not_found",
        FileFault::NotAFile => "not_a_file",
        FileFault::NotAFolder => "not_a_folder",
        FileFault::Symlink => "symlink_in_the_way",
        FileFault::MagicLink => "path_leads_outside",
        FileFault::NotEmpty => "folder_not_empty",
        FileFault::TooLarge => "file_too_large",
        FileFault::SizeMismatch => "size_mismatch",
        FileFault::ChecksumMismatch => "checksum_mismatch",
        FileFault::NoRoom => "guest_disk_full",
        FileFault::Denied => "file_denied",
        FileFault::Failed => "guest_file_failed",
    }
}
