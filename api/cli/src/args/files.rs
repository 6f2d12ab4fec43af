//! The words of files, uploads and git.

use std::path::PathBuf;

use clap::Args;
use clap::Subcommand;
use clap::ValueHint;

use super::SessionArg;

/// `agent put`.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// File here
    #[arg(value_name = "LOCAL", value_hint = ValueHint::FilePath)]
    pub(crate) local: PathBuf,
    /// Where it goes in the sandbox, absolute; folders on the way are made
    #[arg(value_name = "REMOTE")]
    pub(crate) remote: String,
    /// Permissions, octal [default: 644]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
}

/// `agent pull` and `agent download`.
#[derive(Debug, Args)]
pub(crate) struct DownloadArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// File in the sandbox, absolute
    #[arg(value_name = "REMOTE")]
    pub(crate) remote: String,
    /// File here; it appears under its name when it is whole and its checksum is right
    #[arg(value_name = "LOCAL", value_hint = ValueHint::FilePath)]
    pub(crate) local: PathBuf,
    /// Go on with what an earlier download left in LOCAL.part
    #[arg(long)]
    pub(crate) resume: bool,
}

/// `agent upload`.
#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    /// The file and where it goes.
    #[command(flatten)]
    pub(crate) file: PutArgs,
    /// Go on with this upload
    #[arg(long, value_name = "UPLOAD")]
    pub(crate) resume: Option<String>,
}

/// `agent files` and `agent cat`.
#[derive(Debug, Args)]
pub(crate) struct PathArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Path in the sandbox, absolute
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// `agent rm-file`.
#[derive(Debug, Args)]
pub(crate) struct RemoveFileArgs {
    /// What to remove.
    #[command(flatten)]
    pub(crate) path: PathArgs,
    /// A folder with all that is in it
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

/// `agent git`.
#[derive(Debug, Args)]
pub(crate) struct GitArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The repository's folder in the sandbox [default: the workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) repo: Option<String>,
    /// The verb.
    #[command(subcommand)]
    pub(crate) verb: Git,
}

/// Verbs of git.
#[derive(Debug, Subcommand)]
pub(crate) enum Git {
    /// Show what differs from the last commit
    Status,
    /// Print what differs, as a unified diff
    Diff {
        /// What is staged, instead of what is not
        #[arg(long)]
        staged: bool,
        /// Only this path, below the repository
        #[arg(value_name = "PATH")]
        path: Option<String>,
    },
    /// Commit everything that changed
    Commit {
        /// The message
        #[arg(value_name = "MSG")]
        message: String,
        /// Only what is staged
        #[arg(long)]
        staged_only: bool,
    },
    /// Make a branch and check it out
    Branch {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Show the latest commits
    Log {
        /// How many
        #[arg(short, value_name = "N")]
        number: Option<u64>,
    },
}
