//! The fluxvm daemon: HTTP in, commands and queries out.
//!
//! A request is read strictly, its caller is known by a token, and what it asks for is done by
//! `fluxvm-commands`; the answer is written from what that says. There are no rules here: a handler that
//! decides is in the wrong crate. HTTP statuses are decided in `status` and nowhere else, limits are in
//! `limits`.
//!
//! ```text
//! connection (serve) ─► edge: id, caller, audit ─► route ─► engine ─► answer (status)
//! ```

mod app;
mod approval_view;
mod auth;
mod body;
mod changes_view;
mod cli;
mod config;
mod daemon;
mod edge;
mod evaluate_view;
mod event_view;
mod exec_body;
mod idempotency;
mod job_streams;
mod job_view;
mod lifecycle;
mod limits;
mod logging;
mod metrics;
mod query;
mod rate;
mod ready;
mod rebuild;
mod routes;
mod scope;
mod serve;
mod session_view;
mod settings;
mod space;
mod state;
mod status;
mod time_travel_view;
mod witness;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use fluxvm_commands::StartError;
use nix::sys::resource::Resource;

use crate::cli::Cli;
use crate::cli::Task;
use crate::daemon::DaemonError;
use crate::settings::Settings;
use crate::settings::Surroundings;
use crate::state::StateError;

/// Exit code when the daemon could not start, or its ledger failed.
const EXIT_FAILED: u8 = 1;

/// Exit code of a command line or config that is wrong.
const EXIT_USAGE: u8 = 2;

/// Exit code when another daemon holds the state folder.
const EXIT_HELD: u8 = 3;

/// What helps where the ledger's files are not what they were.
const REBUILD_HINT: &str = "fluxvmd: nothing was changed. From an archive ([ledger] archive), `fluxctl ledger rebuild \
                            --from ARCHIVE --state-dir NEW` makes the ledger again in a new state folder";

/// How long work that nobody waits for any more may take to end with the process.
const RUNTIME_END: std::time::Duration = std::time::Duration::from_millis(500);

/// The program, from its command line to its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(cli.log);
    match start(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Said even when logging is off: an exit code alone explains nothing.
            let _ = writeln!(std::io::stderr(), "fluxvmd: {error}");
            if is_damage(&error) {
                let _ = writeln!(std::io::stderr(), "{REBUILD_HINT}");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// Whether the ledger's files are not what they were.
fn is_damage(error: &DaemonError) -> bool {
    matches!(error, DaemonError::Engine(StartError::Ledger(error)) if error.is_damage())
}

fn exit_code(error: &DaemonError) -> u8 {
    match error {
        DaemonError::Config(_) | DaemonError::Settings(_) => EXIT_USAGE,
        DaemonError::State(StateError::Held { .. }) => EXIT_HELD,
        _ => EXIT_FAILED,
    }
}

fn start(cli: &Cli) -> Result<(), DaemonError> {
    let config = cli
        .config
        .as_deref()
        .map(config::load)
        .transpose()?
        .unwrap_or_default();
    let settings = Settings::resolve(cli, config, &Surroundings::of_this_process())?;
    if let Some(Task::Rebuild(args)) = &cli.task {
        return rebuild::run(&settings, args);
    }
    let system = |what| move |source| DaemonError::System { what, source };
    // Sandboxes outlive the process that launched them; this makes us the one who hears of their end.
    fluxvm_vmm::become_subreaper().map_err(system("becoming the parent of sandboxes"))?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(system("starting threads"))?;
    let ended = runtime.block_on(daemon::run(settings));
    runtime.shutdown_timeout(RUNTIME_END);
    ended
}

/// A thousand sessions hold more files than the usual limit; up to the hard limit nobody minds.
fn raise_open_files() {
    let raised = nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files could not be raised");
    }
}
