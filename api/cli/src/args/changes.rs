//! The words for what sessions made: differences, and carrying them on.

use clap::Args;

use super::SessionArg;

/// `agent diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The one side: now, baseline, a tag, a session, or SESSION:TAG [default: baseline]
    #[arg(long, value_name = "STATE")]
    pub(crate) from: Option<String>,
    /// The other side [default: now]
    #[arg(long, value_name = "STATE")]
    pub(crate) to: Option<String>,
    /// Only this path of the workspace
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
}

/// `agent promote`.
#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// The child whose changes are carried to its parent.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Only show what would be done, with the id of that plan
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do this plan or nothing
    #[arg(long, value_name = "ID")]
    pub(crate) plan_id: Option<String>,
    /// Leave out what both sides changed, and do the rest
    #[arg(long)]
    pub(crate) skip_conflicts: bool,
    /// Only this file or folder of the workspace; may be given several times
    #[arg(long = "path", value_name = "PATH")]
    pub(crate) paths: Vec<String>,
}

/// `agent blame`.
#[derive(Debug, Args)]
pub(crate) struct BlameArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The file, and which of its lines
    #[arg(value_name = "PATH[:LINE]")]
    pub(crate) place: String,
}

impl BlameArgs {
    /// The path, and the line where one is named.
    pub(crate) fn parts(&self) -> (&str, Option<u64>) {
        let split = self.place.rsplit_once(':');
        let line = split.and_then(|(path, line)| Some((path, line.parse().ok()?)));
        match line {
            Some((path, line)) => (path, Some(line)),
            None => (self.place.as_str(), None),
        }
    }
}
