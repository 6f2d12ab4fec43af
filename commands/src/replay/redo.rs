//! What a recorded event takes to be done again, and what came of it beside what was recorded.
//!
//! Each kind of step goes through the very command that a caller would use, in the target, so that a
//! replay can do no more than the target may, and each leaves its own events there.

use std::sync::Arc;

use bytes::Bytes;
use fluxvm_projections::Event;
use fluxvm_projections::ExecCompleted;
use fluxvm_projections::FileDeleted;
use fluxvm_projections::FileUploaded;
use fluxvm_projections::FileWritten;
use fluxvm_projections::GitBranched;
use fluxvm_projections::GitCommitted;
use fluxvm_projections::Promoted;
use fluxvm_projections::SessionId;

use super::upload;
use crate::answer::ReplayExec;
use crate::answer::ReplayResult;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::files;
use crate::files::DeleteFile;
use crate::files::WriteFile;
use crate::git;
use crate::git::GitBranch;
use crate::git::GitCommit;
use crate::promote;
use crate::request::Exec;

/// Why content that was not kept is not written again.
const ONLY_DIGEST: &str = "only its digest was recorded, not its content";

/// Why what had no outcome is not done again.
const NO_OUTCOME: &str = "it came to nothing when it was recorded, or its outcome was not known";

/// One step of a replay.
#[derive(Clone, Debug)]
pub(super) enum Redo {
    /// A command.
    Exec(Box<ExecCompleted>),
    /// A file that was written.
    Write(FileWritten),
    /// A file or a tree that was removed.
    Delete(FileDeleted),
    /// A file that came in parts.
    Upload(FileUploaded),
    /// A commit.
    Commit(Box<GitCommitted>),
    /// A branch.
    Branch(GitBranched),
    /// A promotion, with the ledger number of its outcome.
    Promote(u64, Box<Promoted>),
}

/// What an event means for a replay.
pub(super) enum Meaning {
    /// It is done again.
    Step(Redo),
    /// It did something, and is not done again.
    Skipped(&'static str),
    /// It did nothing by itself.
    Nothing,
}

impl Redo {
    /// What the event with this number means. Pure.
    pub(super) fn meaning(seq: u64, kind: &str, event: Event) -> Meaning {
        match event {
            Event::ExecCompleted(it) if it.stdin_bytes.unwrap_or_default() > 0 || it.stdin_cut => {
                Meaning::Skipped("it read standard input, which is not recorded")
            }
            Event::ExecCompleted(outcome) => Meaning::Step(Self::Exec(Box::new(outcome))),
            Event::FileWritten(outcome) => kept(outcome.size, &outcome.blobs.clone(), || {
                Self::Write(outcome)
            }),
            Event::FileUploaded(outcome) => kept(outcome.size, &outcome.blobs.clone(), || {
                Self::Upload(outcome)
            }),
            Event::FileDeleted(outcome) => Meaning::Step(Self::Delete(outcome)),
            Event::GitCommitted(outcome) => Meaning::Step(Self::Commit(Box::new(outcome))),
            Event::GitBranched(outcome) => Meaning::Step(Self::Branch(outcome)),
            Event::ExecFailed(_) => {
                Meaning::Skipped("its outcome was not known when it was recorded")
            }
            Event::ExecRefused(_) | Event::JobRefused(_) => {
                Meaning::Skipped("it was refused and did not run")
            }
            Event::JobExited(_) | Event::JobFailed(_) => {
                Meaning::Skipped("it was a job; a replay runs one command after the other")
            }
            Event::Promoted(outcome) if changes(&outcome) == 0 => Meaning::Nothing,
            Event::Promoted(outcome) => kept(1, &outcome.blobs.clone(), || {
                Self::Promote(seq, Box::new(outcome))
            }),
            Event::ChangesApplied(_) => {
                Meaning::Skipped("it was a promotion of another session, done again here")
            }
            Event::JobStdinWritten(_) => Meaning::Skipped("what a job reads is not recorded"),
            Event::JobKilled(_) => Meaning::Skipped("it was a signal to a job"),
            Event::FileFailed(_) | Event::GitFailed(_) => Meaning::Skipped(NO_OUTCOME),
            Event::Redacted if is_outcome(kind) => Meaning::Skipped("its payload was erased"),
            _ => Meaning::Nothing,
        }
    }

    /// The kind of the recorded event.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Write(_) => "file.write",
            Self::Delete(_) => "file.delete",
            Self::Upload(_) => "file.upload",
            Self::Commit(_) => "git.commit",
            Self::Branch(_) => "git.branch",
            Self::Promote(..) => "promote",
        }
    }

    /// The ledger number of its intent: steps are redone in the order in which they were begun.
    pub(super) fn op(&self) -> u64 {
        match self {
            Self::Exec(outcome) => outcome.op,
            Self::Write(outcome) => outcome.op,
            Self::Delete(outcome) => outcome.op,
            Self::Upload(outcome) => outcome.op,
            Self::Commit(outcome) => outcome.op,
            Self::Branch(outcome) => outcome.op,
            Self::Promote(_, outcome) => outcome.op,
        }
    }

    /// What it is, for a person: the shell line of a command.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Exec(outcome) => outcome.command.clone(),
            Self::Write(outcome) => format!("write {}", outcome.path),
            Self::Delete(outcome) => format!("delete {}", outcome.path),
            Self::Upload(outcome) => format!("upload {}", outcome.path),
            Self::Commit(outcome) => format!("commit {}", outcome.message),
            Self::Branch(outcome) => format!("branch {}", outcome.name),
            Self::Promote(_, outcome) => format!("promotion of {}", outcome.child),
        }
    }

    /// The exit code of a command.
    pub(super) fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exec(outcome) => Some(outcome.exit_code),
            _ => None,
        }
    }

    /// What was recorded of what it did, in a text that is equal exactly when that is.
    pub(super) fn recorded(&self) -> String {
        match self {
            Self::Exec(outcome) => of_exec(outcome),
            Self::Write(outcome) => of_content(&outcome.sha256, outcome.mode),
            Self::Upload(outcome) => of_content(&outcome.sha256, outcome.mode),
            Self::Delete(outcome) => of_removal(outcome),
            Self::Commit(outcome) => of_commit(outcome),
            Self::Branch(outcome) => of_branch(outcome),
            Self::Promote(_, outcome) => of_promotion(outcome),
        }
    }

    /// Does again in one session what was recorded of another.
    pub(super) async fn run(
        &self,
        inner: &Arc<Inner>,
        caller: &Caller,
        (source, target): (SessionId, SessionId),
        timeout_ms: Option<u64>,
    ) -> Result<ReplayResult, CommandError> {
        let (seq, replayed, same) = match self {
            Self::Exec(recorded) => return run(inner, caller, target, recorded, timeout_ms).await,
            Self::Write(recorded) => {
                let content = match recorded.blobs.first() {
                    Some(blob) => inner.content(Some(source), blob).await?,
                    None => Bytes::new(),
                };
                let request = WriteFile {
                    path: recorded.path.clone(),
                    content,
                    mode: Some(recorded.mode),
                    parents: recorded.parents,
                };
                let answer = files::write(inner, caller, target, request).await?;
                let replayed = of_content(&answer.outcome.sha256, answer.outcome.mode);
                (answer.seq, replayed, None)
            }
            Self::Upload(recorded) => {
                let (seq, done) = upload::redo(inner, caller, (source, target), recorded).await?;
                (seq, of_content(&done.sha256, done.mode), None)
            }
            Self::Delete(recorded) => {
                let request = DeleteFile {
                    path: recorded.path.clone(),
                    recursive: recorded.recursive,
                };
                let (seq, done) = files::delete(inner, caller, target, request).await?;
                // Where only the absence was seen, there is nothing to compare but that.
                let same = (recorded.kind == "unknown").then_some(true);
                (seq, of_removal(&done), same)
            }
            Self::Commit(recorded) => {
                let request = GitCommit {
                    repo: Some(recorded.repo.clone()),
                    message: recorded.message.clone(),
                    staged_only: recorded.staged_only,
                    date: Some(recorded.date),
                };
                let answer = git::commit(inner, caller, target, request).await?;
                // The files are what counts; who it is by is the target's business.
                let same = answer.outcome.tree == recorded.tree;
                (answer.seq, of_commit(&answer.outcome), Some(same))
            }
            Self::Branch(recorded) => {
                let request = GitBranch {
                    repo: Some(recorded.repo.clone()),
                    name: recorded.name.clone(),
                };
                let (seq, done) = git::branch(inner, caller, target, request).await?;
                (seq, of_branch(&done), None)
            }
            Self::Promote(seq, recorded) => {
                let sessions = (source, target);
                let seq = promote::redo(inner, caller, sessions, (*seq, recorded.as_ref())).await?;
                // The set is whole or it is an error.
                (seq, of_promotion(recorded), Some(true))
            }
        };
        Ok(ReplayResult {
            seq,
            same: same.unwrap_or_else(|| replayed == self.recorded()),
            replayed,
            exec: None,
        })
    }
}

/// Runs a command again.
async fn run(
    inner: &Arc<Inner>,
    caller: &Caller,
    target: SessionId,
    then: &ExecCompleted,
    timeout_ms: Option<u64>,
) -> Result<ReplayResult, CommandError> {
    let timeout_ms = Some(timeout_ms.unwrap_or(then.timeout_ms));
    let request = Exec::new(then.command.clone(), timeout_ms);
    let answer = exec::exec(inner, caller, target, request, None).await?;
    let now = &answer.outcome;
    let exec = ReplayExec {
        exit_code: now.exit_code,
        same_exit_code: now.exit_code == then.exit_code,
        same_stdout: now.stdout.blake3 == then.stdout.blake3,
        same_stderr: now.stderr.blake3 == then.stderr.blake3,
        duration_ms: now.duration_ms,
    };
    Ok(ReplayResult {
        seq: answer.seq,
        same: exec.same_exit_code && exec.same_stdout && exec.same_stderr,
        replayed: of_exec(now),
        exec: Some(exec),
    })
}

/// A step whose content was kept.
fn kept(size: u64, blobs: &[String], step: impl FnOnce() -> Redo) -> Meaning {
    match size > 0 && blobs.is_empty() {
        true => Meaning::Skipped(ONLY_DIGEST),
        false => Meaning::Step(step()),
    }
}

/// Kinds whose erasure leaves something that was done and cannot be done again.
fn is_outcome(kind: &str) -> bool {
    matches!(
        kind,
        "exec" | "file.write" | "file.delete" | "file.upload" | "git.commit" | "git.branch"
    )
}

fn of_exec(outcome: &ExecCompleted) -> String {
    format!(
        "exit:{} stdout:{} stderr:{}",
        outcome.exit_code, outcome.stdout.blake3, outcome.stderr.blake3
    )
}

fn of_content(sha256: &str, mode: u32) -> String {
    format!("sha256:{sha256} mode:{mode:04o}")
}

fn of_removal(outcome: &FileDeleted) -> String {
    let FileDeleted {
        kind,
        entries,
        size,
        ..
    } = outcome;
    format!("{kind} entries:{entries} bytes:{size}")
}

fn of_commit(outcome: &GitCommitted) -> String {
    format!("tree:{} commit:{}", outcome.tree, outcome.commit)
}

fn of_branch(outcome: &GitBranched) -> String {
    let commit = outcome.commit.as_deref().unwrap_or("none");
    format!("branch:{} commit:{commit}", outcome.name)
}

fn of_promotion(outcome: &Promoted) -> String {
    let contents = outcome.blobs.join(" ");
    let digest = blake3::hash(contents.as_bytes()).to_hex();
    format!("paths:{} set:{digest}", changes(outcome))
}

/// How many paths a promotion changed.
fn changes(outcome: &Promoted) -> usize {
    outcome.added.len() + outcome.modified.len() + outcome.deleted.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn written(size: u64, blobs: &[&str]) -> Event {
        Event::FileWritten(FileWritten {
            op: 3,
            path: "/workspace/a".into(),
            size,
            digest: "d".into(),
            sha256: "5".into(),
            mode: 0o644,
            parents: true,
            replaced: false,
            blobs: blobs.iter().map(|blob| (*blob).to_owned()).collect(),
            recovered: false,
        })
    }

    fn told(kind: &str, event: Event) -> String {
        match Redo::meaning(9, kind, event) {
            Meaning::Step(step) => {
                format!("{}: {} = {}", step.kind(), step.words(), step.recorded())
            }
            Meaning::Skipped(why) => format!("skipped: {why}"),
            Meaning::Nothing => "nothing".to_owned(),
        }
    }

    #[test]
    fn content_that_was_kept_is_written_again_and_what_was_not_is_skipped() {
        expect!["file.write: write /workspace/a = sha256:5 mode:0644"]
            .assert_eq(&told("file.write", written(1, &["b"])));
        expect!["skipped: only its digest was recorded, not its content"]
            .assert_eq(&told("file.write", written(1, &[])));
        expect!["file.write: write /workspace/a = sha256:5 mode:0644"]
            .assert_eq(&told("file.write", written(0, &[])));
    }

    #[test]
    fn what_was_erased_is_skipped_if_it_did_something() {
        for (kind, expected) in [
            ("file.upload", "skipped: its payload was erased"),
            ("git.commit", "skipped: its payload was erased"),
            ("file.write.started", "nothing"),
        ] {
            assert_eq!(told(kind, Event::Redacted), expected, "{kind}");
        }
    }
}
