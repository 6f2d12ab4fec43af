//! One enum for everything that the ledger can hold.
//!
//! An effect is two events: an intent (`…started`) and an outcome whose header names the intent as its
//! cause. Outcomes are matched to intents by that header field and not by payload, so that a redacted
//! payload still closes what it closed. An intent without an outcome is an interrupted operation.
//!
//! A payload is never rewritten. A changed shape gets a new schema number here and a branch in
//! [`Event::decode`] that lifts the old one.

pub(crate) mod approval;
pub(crate) mod bisect;
pub(crate) mod budget;
pub(crate) mod checkpoint;
pub(crate) mod evaluate;
pub(crate) mod exec;
pub(crate) mod file;
pub(crate) mod fork;
pub(crate) mod git;
pub(crate) mod host;
pub(crate) mod idempotency;
pub(crate) mod jobs;
pub(crate) mod ledger;
pub(crate) mod lifecycle;
pub(crate) mod promote;
pub(crate) mod replay;
pub(crate) mod rewind;
pub(crate) mod session;
pub(crate) mod snapshot;
pub(crate) mod token;
pub(crate) mod upload;

use serde::de::DeserializeOwned;

use crate::envelope::DecodeError;

/// The schema number that this version writes for every kind.
const SCHEMA: u16 = 1;

macro_rules! events {
    ($($(#[$doc:meta])* $variant:ident($payload:ty) = $kind:literal,)*) => {
        /// Everything that can be recorded, by kind.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(
            clippy::large_enum_variant,
            reason = "one is decoded at a time, folded and dropped"
        )]
        pub enum Event {
            $($(#[$doc])* $variant($payload),)*
            /// An event whose payload was erased. Its kind and its links remain in the header.
            Redacted,
        }

        impl Event {
            /// Every kind that this version writes and reads.
            pub const KINDS: &'static [&'static str] = &[$($kind),*];

            /// The kind as the ledger and the API spell it; `None` for a redacted event, whose kind is
            /// in its header.
            #[must_use]
            pub fn kind(&self) -> Option<&'static str> {
                match self {
                    $(Self::$variant(_) => Some($kind),)*
                    Self::Redacted => None,
                }
            }

            /// The schema number that goes with the payload.
            #[must_use]
            pub fn schema(&self) -> u16 {
                SCHEMA
            }

            /// The payload as a JSON value.
            ///
            /// # Errors
            ///
            /// When a payload cannot be expressed in JSON, which none of these types can bring about.
            pub fn payload(&self) -> Result<serde_json::Value, serde_json::Error> {
                match self {
                    $(Self::$variant(payload) => serde_json::to_value(payload),)*
                    Self::Redacted => Ok(serde_json::Value::Null),
                }
            }

            /// Reads a stored payload.
            ///
            /// # Errors
            ///
            /// [`DecodeError::UnknownKind`] and [`DecodeError::UnknownSchema`] for what a newer version
            /// wrote, [`DecodeError::Payload`] when the payload does not have the shape of its kind.
            pub fn decode(kind: &str, schema: u16, payload: &[u8]) -> Result<Self, DecodeError> {
                match (kind, schema) {
                    $(($kind, SCHEMA) => parse(kind, payload).map(Self::$variant),)*
                    (known, _) if Self::KINDS.contains(&known) => {
                        Err(DecodeError::UnknownSchema { kind: kind.to_owned(), schema })
                    }
                    _ => Err(DecodeError::UnknownKind { kind: kind.to_owned() }),
                }
            }
        }
    };
}

events! {
    /// A session was asked for and its sandbox is being made.
    SessionCreateStarted(session::SessionCreateStarted) = "session.create.started",
    /// The session's sandbox answers.
    SessionCreated(session::SessionCreated) = "session.create",
    /// The sandbox could not be made; nothing of it is left.
    SessionCreateFailed(session::SessionCreateFailed) = "session.create.failed",
    /// The network part of a session's policy is recorded and not enforced, as its caller agreed.
    HttpUnenforced(session::HttpUnenforced) = "policy.http_unenforced",
    /// A command is about to run.
    ExecStarted(exec::ExecStarted) = "exec.started",
    /// A command ran and ended.
    ExecCompleted(exec::ExecCompleted) = "exec",
    /// A command's fate is unknown or it never ran; the reason says which.
    ExecFailed(exec::ExecFailed) = "exec.failed",
    /// A rule refused a command before it started.
    ExecRefused(exec::ExecRefused) = "exec.refused",
    /// A job is about to run.
    JobStarted(jobs::JobStarted) = "job.start",
    /// A job ran and ended.
    JobExited(jobs::JobExited) = "job.exit",
    /// A job's fate is unknown or it never ran; the reason says which.
    JobFailed(jobs::JobFailed) = "job.failed",
    /// A rule refused a job before it started.
    JobRefused(exec::ExecRefused) = "job.refused",
    /// Bytes are about to go into a job's standard input.
    JobStdinStarted(jobs::JobStdinStarted) = "job.stdin.started",
    /// Bytes went into a job's standard input.
    JobStdinWritten(jobs::JobStdinWritten) = "job.stdin",
    /// A signal is about to go to a job.
    JobKillStarted(jobs::JobKillStarted) = "job.kill.started",
    /// A signal went to a job.
    JobKilled(jobs::JobKilled) = "job.kill",
    /// A command waits for people to decide on it.
    ApprovalRequested(approval::ApprovalRequested) = "approval.requested",
    /// Somebody agreed to a command.
    ApprovalApproved(approval::ApprovalDecided) = "approval.approved",
    /// Somebody did not agree to a command.
    ApprovalDenied(approval::ApprovalDecided) = "approval.denied",
    /// A command that was approved is about to run.
    ApprovalConsumed(approval::ApprovalConsumed) = "approval.consumed",
    /// A command came with an approval that does not let it run.
    ApprovalRefused(approval::ApprovalRefused) = "approval.refused",
    /// A token for a session was made.
    TokenMinted(token::TokenMinted) = "token.mint",
    /// A token was ended.
    TokenRevoked(token::TokenRevoked) = "token.revoke",
    /// The holder of a token asked for what it is not for.
    TokenRefused(token::TokenRefused) = "token.refused",
    /// What a model used was reported.
    UsageReported(budget::UsageReported) = "usage.report",
    /// A file is about to be written from outside.
    FileWriteStarted(file::FileWriteStarted) = "file.write.started",
    /// A file was written from outside.
    FileWritten(file::FileWritten) = "file.write",
    /// A file or a tree is about to be removed from outside.
    FileDeleteStarted(file::FileDeleteStarted) = "file.delete.started",
    /// A file or a tree was removed from outside.
    FileDeleted(file::FileDeleted) = "file.delete",
    /// An upload's file is about to be put in its place.
    FileUploadStarted(upload::FileUploadStarted) = "file.upload.started",
    /// An upload's file is in its place.
    FileUploaded(upload::FileUploaded) = "file.upload",
    /// A write, a removal or an upload came to nothing, or its fate is unknown.
    FileFailed(file::FileFailed) = "file.failed",
    /// A file will come in parts.
    UploadOpened(upload::UploadOpened) = "upload.open",
    /// All parts came.
    UploadCompleted(upload::UploadCompleted) = "upload.complete",
    /// The parts that came are dropped.
    UploadAborted(upload::UploadAborted) = "upload.abort",
    /// A commit is about to be made.
    GitCommitStarted(git::GitCommitStarted) = "git.commit.started",
    /// A commit was made.
    GitCommitted(git::GitCommitted) = "git.commit",
    /// A branch is about to be made.
    GitBranchStarted(git::GitBranchStarted) = "git.branch.started",
    /// A branch was made and is checked out.
    GitBranched(git::GitBranched) = "git.branch",
    /// A commit or a branch was not made, or its fate is unknown.
    GitFailed(git::GitFailed) = "git.failed",
    /// Recorded commands of another session are about to be run again in this one.
    ReplayStarted(replay::ReplayStarted) = "replay.started",
    /// A replay ended.
    ReplayCompleted(replay::ReplayCompleted) = "replay",
    /// The session's time ran out.
    SessionExpired(lifecycle::SessionExpired) = "session.expire",
    /// The session is being deleted.
    SessionDeleteStarted(lifecycle::SessionDeleteStarted) = "session.delete.started",
    /// The session and its sandbox are gone.
    SessionDeleted(lifecycle::SessionDeleted) = "session.delete",
    /// What an ended session left behind was removed. Once per session.
    SessionCleanedUp(lifecycle::SessionCleanedUp) = "session.cleanup",
    /// The sandbox ended without having been asked to.
    SandboxGone(lifecycle::SandboxGone) = "sandbox.gone",
    /// The daemon ended in the middle of an operation that could not be taken up again.
    LifecycleInterrupted(lifecycle::LifecycleInterrupted) = "lifecycle.interrupted",
    /// The session's state is about to be captured.
    CheckpointStarted(checkpoint::CheckpointStarted) = "checkpoint.started",
    /// The session's state is captured under a tag.
    CheckpointTaken(checkpoint::CheckpointTaken) = "checkpoint",
    /// It could not be captured.
    CheckpointFailed(checkpoint::SnapshotOperationFailed) = "checkpoint.failed",
    /// A checkpoint was let go of.
    CheckpointDeleted(checkpoint::CheckpointDeleted) = "checkpoint.delete",
    /// A sandbox is about to be made from a checkpoint, in place of the session's own.
    RestoreStarted(checkpoint::RestoreStarted) = "restore.started",
    /// The session is at a checkpoint's state again.
    Restored(checkpoint::Restored) = "restore",
    /// It is not; it is as it was.
    RestoreFailed(checkpoint::SnapshotOperationFailed) = "restore.failed",
    /// Children are about to be made.
    ForkStarted(fork::ForkStarted) = "fork.started",
    /// Children were made from the session's state.
    Forked(fork::Forked) = "fork",
    /// No child was made.
    ForkFailed(checkpoint::SnapshotOperationFailed) = "fork.failed",
    /// Children are about to be made from a state of the past.
    BranchStarted(fork::ForkStarted) = "session.branch_child.started",
    /// Children were made from a state of the past.
    Branched(fork::Forked) = "session.branch_child",
    /// No child was made from a state of the past.
    BranchFailed(checkpoint::SnapshotOperationFailed) = "session.branch_child.failed",
    /// Whether, when and how points are taken from here on.
    RewindConfigured(rewind::RewindConfigured) = "rewind.config",
    /// A point is about to be taken.
    RewindPointStarted(rewind::RewindPointStarted) = "rewind.point.started",
    /// A point that can be gone back to.
    RewindPointTaken(rewind::RewindPointTaken) = "rewind.point",
    /// No point was tried.
    RewindSkipped(rewind::RewindSkipped) = "rewind.skipped",
    /// A point could not be taken.
    RewindCaptureFailed(rewind::RewindCaptureFailed) = "rewind.capture_failed",
    /// An earlier point is about to be gone back to.
    RewindUndoStarted(rewind::RewindMoveStarted) = "rewind.undo.started",
    /// The session is at an earlier point.
    RewindUndone(rewind::RewindMoved) = "rewind.undo",
    /// It is not; it is as it was.
    RewindUndoFailed(checkpoint::SnapshotOperationFailed) = "rewind.undo.failed",
    /// An undone point is about to be gone to.
    RewindRedoStarted(rewind::RewindMoveStarted) = "rewind.redo.started",
    /// The session is at a point that had been undone.
    RewindRedone(rewind::RewindMoved) = "rewind.redo",
    /// It is not; it is as it was.
    RewindRedoFailed(checkpoint::SnapshotOperationFailed) = "rewind.redo.failed",
    /// A point is kept, or no longer.
    RewindPinned(rewind::RewindPinned) = "rewind.pin",
    /// The command that broke something is about to be looked for.
    BisectStarted(bisect::BisectStarted) = "rewind.bisect.started",
    /// The command that broke something was found.
    Bisected(bisect::Bisected) = "rewind.bisect",
    /// It was not found.
    BisectFailed(bisect::BisectFailed) = "rewind.bisect.failed",
    /// A child's changes are about to be carried here.
    PromoteStarted(promote::PromoteStarted) = "promote.started",
    /// A child's changes were carried here.
    Promoted(promote::Promoted) = "promote",
    /// They were not.
    PromoteFailed(promote::PromoteFailed) = "promote.failed",
    /// The session's changes were carried to its parent.
    PromotedOut(promote::PromotedOut) = "promote.out",
    /// A promotion of another session is about to be done again here.
    ChangesStarted(promote::ChangesStarted) = "changes.started",
    /// It was done again.
    ChangesApplied(promote::ChangesApplied) = "changes",
    /// Candidates are about to be tried side by side.
    EvaluateStarted(evaluate::EvaluateStarted) = "evaluate.started",
    /// They were tried and scored.
    Evaluated(evaluate::Evaluated) = "evaluate",
    /// They could not be tried.
    EvaluateFailed(evaluate::EvaluateFailed) = "evaluate.failed",
    /// One command is about to be tried several times over.
    RolloutStarted(evaluate::EvaluateStarted) = "rollout.started",
    /// It was tried.
    RolledOut(evaluate::Evaluated) = "rollout",
    /// It could not be tried.
    RolloutFailed(evaluate::EvaluateFailed) = "rollout.failed",
    /// A daemon opened this ledger.
    HostStarted(host::HostStarted) = "host.started",
    /// What a starting daemon found, took up again and removed.
    HostReconciled(host::HostReconciled) = "host.reconciled",
    /// A daemon closed this ledger in an orderly way.
    HostStopped(host::HostStopped) = "host.stopped",
    /// A request with an idempotency key is being answered.
    IdempotencyClaimed(idempotency::IdempotencyClaimed) = "idempotency.claimed",
    /// The answer that every retry with the same key gets.
    IdempotencyAnswered(idempotency::IdempotencyAnswered) = "idempotency.answered",
    /// The request failed, so that its key may be used again.
    IdempotencyReleased(idempotency::IdempotencyReleased) = "idempotency.released",
    /// The answer that was kept for a key is erased.
    IdempotencyErased(ledger::IdempotencyErased) = "idempotency.erased",
    /// Events of this session were erased.
    SessionRedacted(ledger::SessionRedacted) = "session.redacted",
    /// All that this session said is erased; what is left of it is in here.
    SessionErased(ledger::SessionErased) = "session.erased",
    /// The key that a session was sealed with is destroyed.
    LedgerShredded(ledger::LedgerShredded) = "ledger.shredded",
    /// A key was found to be destroyed that no event had ordered destroyed.
    LedgerKeyFoundDestroyed(ledger::LedgerKeyFoundDestroyed) = "ledger.key_found_destroyed",
    /// Destroying a key was refused because of a hold.
    LedgerShredRefused(ledger::LedgerShredRefused) = "ledger.shred.refused",
    /// Deleting a session was refused because of a hold.
    LedgerDeleteRefused(ledger::LedgerDeleteRefused) = "ledger.delete.refused",
    /// What ended sessions said before a checkpoint is about to be erased.
    LedgerRetentionStarted(ledger::LedgerRetentionStarted) = "ledger.retention.started",
    /// It is erased.
    LedgerRetention(ledger::LedgerRetention) = "ledger.retention",
    /// That was refused because of a hold.
    LedgerRetentionRefused(ledger::LedgerRetentionRefused) = "ledger.retention.refused",
    /// What some events said is erased.
    LedgerRedacted(ledger::LedgerRedacted) = "ledger.redacted",
    /// An erasure was refused because of a hold.
    LedgerRedactRefused(ledger::LedgerRedactRefused) = "ledger.redact.refused",
    /// Nothing in a scope may be erased.
    LedgerHold(ledger::LedgerHold) = "ledger.hold",
    /// A hold is no longer in force.
    LedgerHoldReleased(ledger::LedgerHoldReleased) = "ledger.hold.released",
    /// Another key speaks for the ledger from here on.
    LedgerKeyRotated(ledger::LedgerKeyRotated) = "ledger.key_rotated",
}

/// Whether events of this kind are intents, which an outcome answers.
#[must_use]
pub fn is_intent(kind: &str) -> bool {
    kind.ends_with(".started") || kind == "job.start"
}

fn parse<T: DeserializeOwned>(kind: &str, payload: &[u8]) -> Result<T, DecodeError> {
    serde_json::from_slice(payload).map_err(|source| DecodeError::Payload {
        kind: kind.to_owned(),
        source,
    })
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde asks for"
)]
fn is_false(value: &bool) -> bool {
    !*value
}
