//! Git in a session's repository: look at it, commit, branch.
//!
//! Every call is git itself, run in the sandbox with fixed words; what a caller says is one argument and
//! checked before. Hooks of the repository do not run: who holds the git verbs need not hold exec, and a
//! hook is a command that somebody else wrote. Neither do an external diff, a file system monitor, a pager,
//! an editor or a signing program. A clean filter that the repository's own configuration names does run on
//! a commit, inside the sandbox like everything else: without it the content would be another one.

mod branch;
mod commit;
mod names;
mod read;
mod recover;
mod run;
mod status;

use fluxvm_projections::GitBranched;
use fluxvm_projections::GitCommitted;
use fluxvm_projections::SessionId;

pub(crate) use branch::branch;
pub(crate) use commit::commit;
pub(crate) use recover::recover;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::CommandError;

/// Why git did not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitFault {
    /// The sandbox has no git.
    Missing,
    /// There is no such folder, or it is in no repository.
    NoRepository,
    /// Nothing changed, or nothing is staged.
    NothingToCommit,
    /// The branch is there already.
    BranchExists,
    /// Git refused; its words say why.
    Failed,
    /// The daemon ended in the middle.
    Interrupted,
}

impl GitFault {
    /// The API's name of it.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Missing => "git_missing",
            Self::NoRepository => "repository_not_found",
            Self::NothingToCommit => "nothing_to_commit",
            Self::BranchExists => "branch_exists",
            Self::Failed => "git_failed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A commit to be made.
#[derive(Clone, Debug)]
pub struct GitCommit {
    /// The repository's folder; the workspace when `None`.
    pub repo: Option<String>,
    /// The message.
    pub message: String,
    /// Only what is staged, not everything that changed.
    pub staged_only: bool,
    /// The time that it bears, in seconds since 1970; now when `None`.
    pub date: Option<i64>,
}

/// A branch to be made and checked out.
#[derive(Clone, Debug)]
pub struct GitBranch {
    /// The repository's folder; the workspace when `None`.
    pub repo: Option<String>,
    /// Its name.
    pub name: String,
}

/// A commit that was made.
#[derive(Clone, Debug)]
pub struct CommitAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: GitCommitted,
}

/// What a repository is at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GitStatus {
    /// The repository's folder.
    pub repo: String,
    /// The branch that is checked out.
    pub branch: Option<String>,
    /// The commit that is checked out.
    pub commit: Option<String>,
    /// The branch that it follows.
    pub upstream: Option<String>,
    /// Commits that the followed branch does not have.
    pub ahead: Option<u64>,
    /// Commits that only the followed branch has.
    pub behind: Option<u64>,
    /// What differs.
    pub changes: Vec<GitChange>,
    /// There is more than is listed.
    pub truncated: bool,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitChange {
    /// The path, below the repository's top.
    pub path: String,
    /// Staged, as git's letter: `M`, `A`, `D`, `R`, …; `.` for nothing, `?` for a path that is not tracked.
    pub index: char,
    /// Not staged, as git's letter.
    pub worktree: char,
    /// The path that it was renamed or copied from.
    pub from: Option<String>,
}

/// What differs, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitDiff {
    /// The repository's folder.
    pub repo: String,
    /// A unified diff.
    pub diff: String,
    /// There is more than is shown.
    pub truncated: bool,
}

/// One commit of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitLogEntry {
    /// The commit.
    pub commit: String,
    /// Its tree.
    pub tree: String,
    /// The commits that it follows.
    pub parents: Vec<String>,
    /// Who wrote it: `Name <address>`.
    pub author: String,
    /// When, in seconds since 1970.
    pub date: i64,
    /// The first line of its message.
    pub subject: String,
}

impl Engine {
    /// What a repository is at.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Git`, `Guest`.
    pub async fn git_status(
        &self,
        caller: &Caller,
        id: SessionId,
        repo: Option<&str>,
    ) -> Result<GitStatus, CommandError> {
        read::status(&self.inner, caller, id, repo).await
    }

    /// What differs from what is staged, or of what is staged from the commit.
    ///
    /// # Errors
    ///
    /// As [`Self::git_status`].
    pub async fn git_diff(
        &self,
        caller: &Caller,
        id: SessionId,
        repo: Option<&str>,
        staged: bool,
        path: Option<&str>,
    ) -> Result<GitDiff, CommandError> {
        read::diff(&self.inner, caller, id, (repo, staged, path)).await
    }

    /// The latest commits, the newest first. None in an empty repository.
    ///
    /// # Errors
    ///
    /// As [`Self::git_status`].
    pub async fn git_log(
        &self,
        caller: &Caller,
        id: SessionId,
        repo: Option<&str>,
        count: Option<u64>,
    ) -> Result<Vec<GitLogEntry>, CommandError> {
        read::log(&self.inner, caller, id, (repo, count)).await
    }

    /// Makes a commit.
    ///
    /// # Errors
    ///
    /// As [`Self::git_status`], and `Busy`, `TooMany`; `Git` with `nothing_to_commit`.
    pub async fn git_commit(
        &self,
        caller: &Caller,
        id: SessionId,
        request: GitCommit,
    ) -> Result<CommitAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            commit(&inner, &caller, id, request).await
        })
        .await
    }

    /// Makes a branch and checks it out. Answers the outcome with its ledger number.
    ///
    /// # Errors
    ///
    /// As [`Self::git_commit`]; `Git` with `branch_exists`.
    pub async fn git_branch(
        &self,
        caller: &Caller,
        id: SessionId,
        request: GitBranch,
    ) -> Result<(u64, GitBranched), CommandError> {
        self.run(caller, move |inner, caller| async move {
            branch(&inner, &caller, id, request).await
        })
        .await
    }
}
