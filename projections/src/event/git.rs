//! Payloads of the git verbs that change a repository.

use serde::Deserialize;
use serde::Serialize;

use super::is_false;

/// `git.commit.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommitStarted {
    /// The repository's folder, absolute.
    pub repo: String,
    /// The message.
    pub message: String,
    /// Only what was staged before, not everything that changed.
    pub staged_only: bool,
    /// The time that the commit bears, in seconds since 1970.
    pub date: i64,
    /// The commit that was checked out before; `None` in an empty repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
}

/// `git.commit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitCommitted {
    /// The ledger number of the intent.
    pub op: u64,
    /// The repository's folder, absolute.
    pub repo: String,
    /// The message.
    pub message: String,
    /// Only what was staged before.
    pub staged_only: bool,
    /// The time that the commit bears, in seconds since 1970.
    pub date: i64,
    /// The commit.
    pub commit: String,
    /// The tree that it holds: equal exactly when the files are.
    pub tree: String,
    /// The commit that it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The branch that it is on; `None` where none is checked out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Who it is by: `Name <address>`.
    pub author: String,
    /// The daemon ended in the middle, and the next one found it done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
}

/// `git.branch.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitBranchStarted {
    /// The repository's folder, absolute.
    pub repo: String,
    /// The branch.
    pub name: String,
}

/// `git.branch`: it was made and is checked out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitBranched {
    /// The ledger number of the intent.
    pub op: u64,
    /// The repository's folder, absolute.
    pub repo: String,
    /// The branch.
    pub name: String,
    /// The commit that it starts at; `None` in an empty repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The daemon ended in the middle, and the next one found it done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
}

/// `git.failed`: there is no commit, or no branch; or it is not known, and the reason says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// `commit` or `branch`.
    pub action: String,
    /// The repository's folder.
    pub repo: String,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}
