//! What is in flight in a session: intents whose outcome is not known yet.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::EventId;
use serde::Deserialize;
use serde::Serialize;

use crate::event::exec::is_false;
use crate::event::rewind::Trigger;
use crate::ids::ExecId;
use crate::ids::JobId;
use crate::ids::SessionId;
use crate::ids::SnapshotId;
/// An intent whose outcome is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The intent's ledger number.
    pub seq: u64,
    /// The intent's event id, which the outcome names.
    pub intent: EventId,
    /// What it is.
    pub kind: OperationKind,
    /// When it was recorded.
    pub started_at: DateTime<Utc>,
}

/// What an operation is, with what it takes to find it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// The session's sandbox is being made.
    Create,
    /// A command runs.
    Exec {
        /// The guest's id of it.
        exec_id: ExecId,
        /// The shell line.
        command: String,
        /// Its time limit, in milliseconds.
        timeout_ms: u64,
        /// It is given something to read.
        #[serde(default, skip_serializing_if = "is_false")]
        stdin: bool,
    },
    /// A job runs.
    Job {
        /// Which.
        job: JobId,
        /// Its time limit, in milliseconds, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// The shell line.
        command: String,
    },
    /// Bytes go into a job's standard input.
    JobStdin,
    /// A signal goes to a job.
    JobKill,
    /// A file is written from outside.
    FileWrite,
    /// A file or a tree is removed from outside.
    FileDelete,
    /// An upload's file is put in its place.
    FileUpload,
    /// A commit is made.
    GitCommit,
    /// A branch is made.
    GitBranch,
    /// Commands of another session are run again here.
    Replay,
    /// The session is being deleted.
    Delete,
    /// Its state is being captured under a tag.
    Checkpoint {
        /// The tag.
        tag: String,
        /// The snapshot that is being taken.
        snapshot: SnapshotId,
    },
    /// Its sandbox is being replaced by one at a checkpoint's state.
    Restore {
        /// The tag.
        tag: String,
        /// The snapshot that it is made from.
        snapshot: SnapshotId,
    },
    /// Children are being made from its state, or from a checkpoint.
    Fork {
        /// The snapshot that they are made from.
        snapshot: SnapshotId,
    },
    /// Children are being made from a point of its past.
    Branch {
        /// The snapshot that they are made from.
        snapshot: SnapshotId,
    },
    /// A point is being taken that can be gone back to.
    RewindPoint {
        /// The tag.
        tag: String,
        /// The snapshot that is being taken.
        snapshot: SnapshotId,
        /// What it is taken before.
        trigger: Trigger,
        /// The ledger number of the intent that it is taken before.
        before: Option<u64>,
        /// The command that is about to run, or what is about to happen.
        command: Option<String>,
    },
    /// An earlier point is being gone back to.
    Undo {
        /// The snapshot that it is made from.
        snapshot: SnapshotId,
        /// The snapshot that keeps the state of before.
        keep: Option<SnapshotId>,
    },
    /// A point that was undone is being gone to.
    Redo {
        /// The snapshot that it is made from.
        snapshot: SnapshotId,
    },
    /// The command that broke something is being looked for.
    Bisect,
    /// A child's changes are being carried here.
    Promote {
        /// The child.
        child: SessionId,
        /// The checkpoint of just before.
        checkpoint: SnapshotId,
        /// The child's snapshot.
        theirs: SnapshotId,
        /// What the child started from.
        baseline: SnapshotId,
        /// Only these paths; empty is all.
        paths: Vec<String>,
    },
    /// A promotion of another session is being done again here.
    Changes,
    /// Candidates are being tried, or one command several times over.
    Evaluate {
        /// The children that it makes and removes.
        children: Vec<SessionId>,
        /// One command, several times over.
        rollout: bool,
    },
    /// An intent whose payload was erased.
    Erased,
}

impl Operation {
    /// What erased events no longer say.
    pub(crate) fn erase(&mut self, seqs: &[u64]) {
        if seqs.contains(&self.seq) {
            self.kind = OperationKind::Erased;
        }
        if let OperationKind::RewindPoint {
            before, command, ..
        } = &mut self.kind
            && before.is_some_and(|seq| seqs.contains(&seq))
        {
            *command = None;
        }
    }
}

impl OperationKind {
    /// The operation's name, as refusals and `interrupted_op` spell it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create => "session.create",
            Self::Exec { .. } => "exec",
            Self::Job { .. } => "job",
            Self::JobStdin => "job.stdin",
            Self::JobKill => "job.kill",
            Self::FileWrite => "file.write",
            Self::FileDelete => "file.delete",
            Self::FileUpload => "file.upload",
            Self::GitCommit => "git.commit",
            Self::GitBranch => "git.branch",
            Self::Replay => "replay",
            Self::Delete => "session.delete",
            Self::Checkpoint { .. } => "checkpoint",
            Self::Restore { .. } => "restore",
            Self::Fork { .. } => "fork",
            Self::Branch { .. } => "session.branch_child",
            Self::RewindPoint { .. } => "rewind.point",
            Self::Undo { .. } => "rewind.undo",
            Self::Redo { .. } => "rewind.redo",
            Self::Bisect => "rewind.bisect",
            Self::Promote { .. } => "promote",
            Self::Changes => "changes",
            Self::Evaluate { rollout: false, .. } => "evaluate",
            Self::Evaluate { rollout: true, .. } => "rollout",
            Self::Erased => "erased",
        }
    }

    /// Whether it is a command of the user's, or a job.
    #[must_use]
    pub fn is_command(&self) -> bool {
        matches!(self, Self::Exec { .. } | Self::Job { .. })
    }

    /// Whether it is work on files or a repository, which is over when the guest says so.
    #[must_use]
    pub fn is_file_work(&self) -> bool {
        matches!(
            self,
            Self::FileWrite
                | Self::FileDelete
                | Self::FileUpload
                | Self::GitCommit
                | Self::GitBranch
                | Self::Changes
        )
    }

    /// Whether it holds the lifecycle slot, so that nothing else may start.
    #[must_use]
    pub fn holds_lifecycle(&self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Delete
                | Self::Checkpoint { .. }
                | Self::Restore { .. }
                | Self::Fork { .. }
                | Self::Branch { .. }
                | Self::Undo { .. }
                | Self::Redo { .. }
                | Self::Bisect
                | Self::Promote { .. }
        )
    }

    /// Whether a command runs in the session's machine, so that it must not be replaced under it.
    #[must_use]
    pub fn needs_machine(&self) -> bool {
        self.is_file_work()
            || matches!(
                self,
                Self::Exec { .. } | Self::Replay | Self::RewindPoint { .. } | Self::Erased
            )
    }

    /// The snapshots that it works with, which must stay until it ends.
    #[must_use]
    pub fn snapshots(&self) -> [Option<SnapshotId>; 2] {
        match self {
            Self::Checkpoint { snapshot, .. }
            | Self::Restore { snapshot, .. }
            | Self::Fork { snapshot }
            | Self::Branch { snapshot }
            | Self::RewindPoint { snapshot, .. }
            | Self::Redo { snapshot } => [Some(*snapshot), None],
            Self::Undo { snapshot, keep } => [Some(*snapshot), *keep],
            // The checkpoint of before is one of the session's own.
            Self::Promote {
                theirs, baseline, ..
            } => [Some(*theirs), Some(*baseline)],
            _ => [None, None],
        }
    }
}
