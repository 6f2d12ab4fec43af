//! The words for trying candidates side by side.

use clap::Args;

use super::SessionArg;
use crate::duration::parse_seconds;

/// `agent evaluate`.
#[derive(Debug, Args)]
pub(crate) struct EvaluateArgs {
    /// The session that the candidates start from.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// A shell line to try in a child of its own; may be given several times
    #[arg(long = "candidate", value_name = "CMD", required = true)]
    pub(crate) candidates: Vec<String>,
    /// A shell line that ends with 0 where all is well; runs after each candidate
    #[arg(long, value_name = "CMD")]
    pub(crate) test: Option<String>,
    /// Keep every child, not only the winner
    #[arg(long)]
    pub(crate) keep_all: bool,
    /// Time limit of each command: seconds, or 90s, 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
}

/// `agent rollout`.
#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    /// The session that the children start from.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// In how many children, 1 to 32
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,
    /// Keep the children
    #[arg(long)]
    pub(crate) keep: bool,
    /// Time limit of the command: seconds, or 90s, 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// The command, after `--`
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD")]
    pub(crate) command: Vec<String>,
}
