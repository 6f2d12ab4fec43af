//! The words of the verbs on jobs.

use clap::Args;

use super::SessionArg;
use crate::duration::parse_seconds;

/// A job of a session.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobArg {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Job id, or the start of it when no other job's id starts so
    #[arg(value_name = "JOB")]
    pub(crate) job: String,
}

/// `agent bg`.
#[derive(Debug, Args)]
pub(crate) struct BgArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Give the job a standard input that `agent stdin` writes to
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Keep at most this many bytes of each output stream [default: 16 MiB]
    #[arg(long, value_name = "N")]
    pub(crate) max_output_bytes: Option<u64>,
    /// End the job after this long: seconds, or 90s, 10m [default: never]
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// The approval that the command was given
    #[arg(long, value_name = "APPROVAL")]
    pub(crate) approval_id: Option<String>,
    /// Wait this long for people to decide on the command, at most 120 s
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) approval_wait: Option<u64>,
    /// The command, after `--`
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// `agent logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Which job.
    #[command(flatten)]
    pub(crate) job: JobArg,
    /// Go on and print output as it comes; exit with the job's own code when it ends. An interrupt ends
    /// only this, never the job
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// `agent stdin`.
#[derive(Debug, Args)]
pub(crate) struct StdinArgs {
    /// Which job.
    #[command(flatten)]
    pub(crate) job: JobArg,
    /// Text to write, as it is; `-` writes what comes on our own standard input, and so does leaving
    /// it out, unless --close is there and our own standard input is a terminal
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Close the job's standard input after it
    #[arg(long)]
    pub(crate) close: bool,
}

/// `agent kill`.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Which job.
    #[command(flatten)]
    pub(crate) job: JobArg,
    /// The signal, by name or number
    #[arg(long, value_name = "S", default_value = "TERM")]
    pub(crate) signal: String,
}
