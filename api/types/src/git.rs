//! Git and the look around: bodies of requests and answers.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

/// `POST …/git/commit`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitCommitRequest {
    /// The message.
    pub message: String,
    /// Only what is staged, not everything that changed.
    #[serde(default)]
    pub staged_only: Option<bool>,
    /// The repository's folder; the workspace when it is left out.
    #[serde(default)]
    pub repo: Option<String>,
}

/// `POST …/git/branch`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitBranchRequest {
    /// The branch.
    pub name: String,
    /// The repository's folder; the workspace when it is left out.
    #[serde(default)]
    pub repo: Option<String>,
}

/// `GET …/git/status`.
#[derive(Clone, Debug, Serialize)]
pub struct GitStatusView {
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
    /// Nothing differs.
    pub clean: bool,
    /// What differs.
    pub changes: Vec<GitChangeView>,
    /// There is more than is listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// One path that differs.
#[derive(Clone, Debug, Serialize)]
pub struct GitChangeView {
    /// The path, below the repository's top.
    pub path: String,
    /// Staged, as git's letter; `.` for nothing, `?` for a path that is not tracked.
    pub index: char,
    /// Not staged, as git's letter.
    pub worktree: char,
    /// The path that it was renamed or copied from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// `GET …/git/diff`.
#[derive(Clone, Debug, Serialize)]
pub struct GitDiffView {
    /// The repository's folder.
    pub repo: String,
    /// A unified diff.
    pub diff: String,
    /// There is more than is shown.
    pub truncated: bool,
}

/// `GET …/git/log`.
#[derive(Clone, Debug, Serialize)]
pub struct GitLogView {
    /// The commits, the newest first.
    pub commits: Vec<GitCommitView>,
}

/// One commit of a log.
#[derive(Clone, Debug, Serialize)]
pub struct GitCommitView {
    /// The commit.
    pub commit: String,
    /// Its tree.
    pub tree: String,
    /// The commits that it follows.
    pub parents: Vec<String>,
    /// Who wrote it.
    pub author: String,
    /// When, in seconds since 1970.
    pub date: i64,
    /// The first line of its message.
    pub subject: String,
}

/// The answer of `POST …/git/commit`.
#[derive(Clone, Debug, Serialize)]
pub struct CommittedView {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The repository's folder.
    pub repo: String,
    /// The commit.
    pub commit: String,
    /// Its tree.
    pub tree: String,
    /// The commit that it follows.
    pub parent: Option<String>,
    /// The branch that it is on.
    pub branch: Option<String>,
    /// Who it is by.
    pub author: String,
}

/// The answer of `POST …/git/branch`.
#[derive(Clone, Debug, Serialize)]
pub struct BranchedView {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The repository's folder.
    pub repo: String,
    /// The branch, which is checked out.
    pub branch: String,
    /// The commit that it starts at.
    pub commit: Option<String>,
}

/// `GET …/probe`.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeView {
    /// Where each tool is; `null` where it is not.
    pub tools: BTreeMap<&'static str, Option<String>>,
    /// What can be done with them.
    pub ready_for: BTreeMap<&'static str, bool>,
}
