//! fluxctl, the command line of fluxvm. It is a client like any other: everything it does goes
//! through the daemon's HTTP API, but for `ledger verify`, which needs no daemon at all, so that
//! who checks a ledger need not trust who keeps it.
//!
//! It refuses to guess: an id prefix that fits two sessions is an error, a token is sent only to
//! the address it belongs to, and an answer that is not what the API promises is said to be so.

mod args;
mod client;
mod commands;
mod compress;
mod discover;
mod duplex;
mod duration;
mod error;
mod moment;
mod output;
mod render;
mod shell;
mod sse;
mod visible;

use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use output::note;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with code 0, mistakes to stderr with code 2.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(error::EXIT_USAGE));
        }
    };
    let failed = commands::failure_code(&cli.command);
    match commands::run(cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("fluxctl: {error}"));
            if let Some(advice) = error.advice() {
                note(&advice);
            }
            ExitCode::from(failed.unwrap_or_else(|| error.exit_code()))
        }
    }
}
