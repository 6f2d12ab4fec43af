//! Words of the verbs on session tokens.

use clap::Args;

use super::SessionArg;
use crate::duration::parse_seconds;

/// `agent token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Operations, with commas: read, exec, jobs, files.read, files.write, git, checkpoint, preview,
    /// screen
    #[arg(long, required = true, value_delimiter = ',', value_name = "OPS")]
    pub(crate) ops: Vec<String>,
    /// End the token after this long: seconds, or 90s, 30m, 2h [default: one hour]
    #[arg(long, visible_alias = "ttl", value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) ttl_seconds: Option<u64>,
    /// Who it is for
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
}

/// `agent untoken`.
#[derive(Debug, Args)]
pub(crate) struct UntokenArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The token's id, as `agent tokens` lists it
    #[arg(value_name = "TOKEN")]
    pub(crate) token: String,
}
