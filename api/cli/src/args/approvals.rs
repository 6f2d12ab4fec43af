//! Words of the verbs on approvals.

use clap::Args;

use super::SessionArg;

/// `agent approvals`.
#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Go on and print requests as they come
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `agent approve` and `agent deny`.
#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The approval's id, as the refusal and `agent approvals` name it
    #[arg(value_name = "APPROVAL")]
    pub(crate) approval: String,
    /// Why
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}
