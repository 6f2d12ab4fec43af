//! The words of the command line. What is said here wins over the config file.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use clap::ValueHint;

use crate::config::ListenAddress;

const AFTER_HELP: &str = "\
What is said on the command line wins over the environment, and that over the config file.

At the first start an admin token is written to <state folder>/secrets/admin-token. fluxctl on the
same machine finds it by itself; other clients send it as `Authorization: Bearer <token>`.

Exit codes:
  0  ended by SIGTERM or SIGINT, in order
  1  could not start, or the ledger failed while it ran; stderr says why
  2  the command line or the config file is wrong
  3  another daemon holds the state folder";

/// The fluxvm daemon: sandboxes for AI agents, and the ledger that remembers what they did.
#[derive(Clone, Debug, Parser)]
#[command(name = "fluxvmd", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Config file (TOML)
    #[arg(long, value_name = "FILE", env = "FLUXVM_CONFIG", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Folder for the ledger, secrets and sandboxes [default: /var/lib/fluxvm for root, else
    /// $XDG_STATE_HOME/fluxvm or ~/.local/state/fluxvm]
    #[arg(long, value_name = "DIR", env = "FLUXVM_STATE_DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7788]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<ListenAddress>,
    /// Once it answers, print one line {"url","token_file","pid"} to stdout and nothing else
    #[arg(long)]
    pub(crate) ready_json: bool,
    /// Let everyone who reaches the listener in, as an administrator. Only on a loopback address
    #[arg(long)]
    pub(crate) open: bool,
    /// The guest daemon that is put into every sandbox [default: beside this program]
    #[arg(long, value_name = "PATH", env = "FLUXVM_AGENTD", value_hint = ValueHint::FilePath)]
    pub(crate) agentd: Option<PathBuf>,
    /// The program that builds a sandbox's namespaces [default: beside this program]
    #[arg(long, value_name = "PATH", env = "FLUXVM_LAUNCHER", value_hint = ValueHint::FilePath)]
    pub(crate) launcher: Option<PathBuf>,
    /// What to do instead of serving
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
    /// How to log to stderr: text or json, and off, error, warn, info, debug or trace
    #[arg(
        long,
        value_name = "FORMAT/LEVEL",
        env = "FLUXVM_LOG",
        default_value = "text/info"
    )]
    pub(crate) log: LogChoice,
}

/// What else the program can do.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Make the ledger again out of its archive, in a state folder that has none
    Rebuild(RebuildArgs),
}

/// `rebuild`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RebuildArgs {
    /// The archive
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) from: PathBuf,
    /// The state folder that the ledger is made in [default: as for serving]
    #[arg(long, value_name = "DIR", env = "FLUXVM_STATE_DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Say what was found as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `--log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogChoice {
    /// One line of text or one JSON object per event.
    pub(crate) format: LogFormat,
    /// The least important level that is logged.
    pub(crate) level: tracing_subscriber::filter::LevelFilter,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl FromStr for LogChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, level) = match text.split_once('/') {
            Some((format, level)) => (format, level),
            None if matches!(text, "text" | "json") => (text, "info"),
            None => ("text", text),
        };
        let format = match format {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            _ => {
                return Err(format!(
                    "`{format}` is not a format; there are text and json"
                ));
            }
        };
        let level = level.parse().map_err(|_| {
            format!("`{level}` is not a level; there are off, error, warn, info, debug and trace")
        })?;
        Ok(Self { format, level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use tracing_subscriber::filter::LevelFilter;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn log_takes_a_format_a_level_or_both() {
        let read = |text: &str| text.parse::<LogChoice>();
        let text_info = LogChoice {
            format: LogFormat::Text,
            level: LevelFilter::INFO,
        };
        assert_eq!(read("text"), Ok(text_info));
        assert_eq!(read("info"), Ok(text_info));
        let json_debug = LogChoice {
            format: LogFormat::Json,
            level: LevelFilter::DEBUG,
        };
        assert_eq!(read("json/debug"), Ok(json_debug));
        assert!(read("xml/info").is_err());
        assert!(read("text/loud").is_err());
    }

    #[test]
    fn a_listen_address_is_checked_when_it_is_read() {
        assert!(Cli::try_parse_from(["fluxvmd", "--listen", "127.0.0.1:0"]).is_ok());
        assert!(Cli::try_parse_from(["fluxvmd", "--listen", "7788"]).is_err());
        assert!(Cli::try_parse_from(["fluxvmd", "--listen", "example.org:80"]).is_err());
    }
}
