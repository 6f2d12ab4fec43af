//! What can go wrong for the person at the terminal, and what to do about it. Each variant knows
//! its exit code (see `args::EXIT_CODES`) and, where there is one, the next thing to type.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A failure of a verb.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The daemon answered with an error.
    #[error("{method} {path}: {status}: {message}")]
    Api {
        /// HTTP method.
        method: &'static str,
        /// Path and query.
        path: String,
        /// HTTP status.
        status: u16,
        /// The daemon's own words.
        message: String,
        /// The stable code beside them.
        code: Option<String>,
        /// When to ask again, where it said so.
        retry_after: Option<Duration>,
    },
    /// Nobody listens there, or the connection broke.
    #[error("cannot reach the daemon at {url}: {reason}")]
    Unreachable {
        /// Address tried.
        url: String,
        /// The transport's words.
        reason: String,
    },
    /// It took the request, and its answer did not come in time.
    #[error("{method} {path}: the daemon did not answer in {}", in_seconds(*waited))]
    Late {
        /// HTTP method.
        method: &'static str,
        /// Path and query.
        path: String,
        /// How long we waited.
        waited: Duration,
    },
    /// The same for a command: nobody knows whether it still runs.
    #[error("the daemon did not answer in {}; the command may still be running", in_seconds(*waited))]
    CommandLate {
        /// The session the command was for.
        id: String,
        /// How long we waited.
        waited: Duration,
    },
    /// No state folder says that a daemon runs.
    #[error("no daemon found: no daemon.json in {}", join(looked))]
    NoDaemon {
        /// Folders that were looked into.
        looked: Vec<PathBuf>,
    },
    /// A file that says how to reach the daemon cannot be used.
    #[error("{}: {reason}", path.display())]
    Discovery {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// What was typed cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// The answer is not what the API promises.
    #[error("{method} {path}: the answer is not what the API promises: {reason}")]
    Answer {
        /// HTTP method.
        method: &'static str,
        /// Path and query.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A local file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Stdout or stderr cannot be written. A reader that went away ends us quietly.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Exit code when the daemon refused or failed, and when the answer is "no".
pub(crate) const EXIT_FAILED: u8 = 1;
/// Exit code of a wrong command line, and of a file that `ledger verify` cannot read.
pub(crate) const EXIT_USAGE: u8 = 2;
/// Exit code when the daemon cannot be reached or does not answer in time.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;
/// Exit code when `agent exec` itself failed, apart from every code a command may end with.
pub(crate) const EXIT_EXEC_FAILED: u8 = 125;

/// When to ask again where the daemon does not say.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);
/// The longest wait that a daemon is believed: whoever follows wants to see something.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

impl CliError {
    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Api { .. } | Self::Answer { .. } | Self::File { .. } | Self::Output(_) => {
                EXIT_FAILED
            }
            Self::Usage(_) => EXIT_USAGE,
            Self::Unreachable { .. }
            | Self::Late { .. }
            | Self::CommandLate { .. }
            | Self::NoDaemon { .. }
            | Self::Discovery { .. } => EXIT_UNREACHABLE,
        }
    }

    /// True when the same request may well succeed a moment later.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Late { .. } => true,
            Self::Api { status, code, .. } => {
                matches!(status, 408 | 429 | 500..) || code.as_deref() == Some("upload_offset")
            }
            _ => false,
        }
    }

    /// How long to wait when the daemon has no room for us now and will have later.
    pub(crate) fn turned_away_for(&self) -> Option<Duration> {
        match self {
            Self::Api {
                status: 429,
                retry_after,
                ..
            } => Some(
                retry_after
                    .unwrap_or(RETRY_AFTER_DEFAULT)
                    .min(RETRY_AFTER_MAX),
            ),
            _ => None,
        }
    }

    /// True when the reader of our output has gone: nobody is left to tell.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What to do next, in one sentence.
    pub(crate) fn advice(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => {
                Some("Is the daemon running? Start it with `make run` (or `fluxvmd`).".to_owned())
            }
            Self::Late { .. } => Some(
                "It may still do what was asked: look before you ask again.".to_owned(),
            ),
            Self::CommandLate { id, .. } => Some(format!(
                "See what became of it with `fluxctl agent timeline {id}`."
            )),
            Self::NoDaemon { .. } => Some(
                "Start the daemon with `make run` (or `fluxvmd`). If it runs elsewhere, name it with --server \
                 and --server-token, or its state folder with --state-dir."
                    .to_owned(),
            ),
            Self::Api { status: 401, .. } => Some(
                "The daemon wants a token: it lies in <state folder>/secrets/admin-token on the daemon's machine. \
                 Name the folder with --state-dir, or pass the token in FLUXVM_TOKEN."
                    .to_owned(),
            ),
            Self::Api { status: 403, .. } => {
                Some("This token may not do that; the admin token may.".to_owned())
                    .filter(|_| self.code_is("forbidden"))
            }
            Self::Api { path, code, .. } if snapshot_advice(code.as_deref(), path).is_some() => {
                snapshot_advice(code.as_deref(), path)
            }
            Self::Api { path, code, .. } if job_advice(code.as_deref(), path).is_some() => {
                job_advice(code.as_deref(), path)
            }
            Self::Api { status: 404, path, .. } if path.contains("/sessions/") => {
                Some("`fluxctl agent ls` lists the sessions that exist.".to_owned())
            }
            _ => None,
        }
    }

    fn code_is(&self, wanted: &str) -> bool {
        matches!(self, Self::Api { code: Some(code), .. } if code == wanted)
    }
}

/// What to do about a refusal that has to do with a job.
fn job_advice(code: Option<&str>, path: &str) -> Option<String> {
    let mut parts = path
        .split(['/', '?'])
        .skip_while(|part| *part != "sessions");
    let id = parts.nth(1)?;
    let job = parts.nth(1).unwrap_or("JOB");
    match code? {
        "job_ended" => Some(format!(
            "`fluxctl agent logs {id} {job} -f` prints what it wrote and exits with its code."
        )),
        "job_not_found" => Some(format!(
            "`fluxctl agent jobs {id}` lists the jobs there are."
        )),
        "stdin_closed" => Some(format!(
            "`fluxctl agent bg {id} --stdin` starts a job that can be written to."
        )),
        _ => None,
    }
}

/// What to do about a refusal that has to do with states of the past.
fn snapshot_advice(code: Option<&str>, path: &str) -> Option<String> {
    let id = path
        .split('/')
        .skip_while(|part| *part != "sessions")
        .nth(1)?;
    Some(match code? {
        "tag_not_found" => format!(
            "`fluxctl agent checkpoints {id}` and `fluxctl agent rewind {id}` list what there is."
        ),
        "tag_taken" => format!(
            "Leave --tag out to get a number, or delete the old one with `fluxctl agent rm-checkpoint {id} TAG`."
        ),
        "no_such_step" => format!("`fluxctl agent rewind {id}` lists the steps."),
        "memory_checkpoint_impossible" => {
            "Keep the disk only with --disk-only: what runs begins anew after a restore.".to_owned()
        }
        "commands_running" => {
            format!("`fluxctl agent timeline {id}` shows what runs; try again when it ended.")
        }
        "rewind_ring_full" => format!(
            "Release a pin with `fluxctl agent rewind {id} pin TAG --unpin`, or keep more points with \
             `fluxctl agent rewind {id} on --max-points N`."
        ),
        "snapshot_damaged" => format!(
            "The session goes on as it is; `fluxctl agent checkpoints {id}` lists the others."
        ),
        _ => return None,
    })
}

fn in_seconds(waited: Duration) -> String {
    format!("{} s", waited.as_secs_f64())
}

fn join(paths: &[PathBuf]) -> String {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::EXIT_CODES;

    #[test]
    fn the_help_names_every_exit_code() {
        for code in [EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_EXEC_FAILED] {
            assert!(
                EXIT_CODES.contains(&format!("\n  {code} ")),
                "{code} is not in --help"
            );
        }
    }

    #[test]
    fn a_refusal_about_the_past_says_what_to_type() {
        let error = CliError::Api {
            method: "POST",
            path: "/v1/agents/sessions/5f0c/restore".to_owned(),
            status: 404,
            message: "the session has no checkpoint `x`".to_owned(),
            code: Some("tag_not_found".to_owned()),
            retry_after: None,
        };
        let wanted =
            "`fluxctl agent checkpoints 5f0c` and `fluxctl agent rewind 5f0c` list what there is.";
        assert_eq!(error.advice().as_deref(), Some(wanted));
    }

    #[test]
    fn an_api_error_prints_method_path_status_and_the_daemons_words() {
        let error = CliError::Api {
            method: "GET",
            path: "/v1/agents/sessions/x".to_owned(),
            status: 404,
            message: "no such session".to_owned(),
            code: Some("session_not_found".to_owned()),
            retry_after: None,
        };
        assert_eq!(
            error.to_string(),
            "GET /v1/agents/sessions/x: 404: no such session"
        );
        assert!(
            error
                .advice()
                .is_some_and(|advice| advice.contains("agent ls"))
        );
    }
}
