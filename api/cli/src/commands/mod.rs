//! One module per group of verbs: make the request, show the answer, choose the exit code.

mod approvals;
mod bond;
mod changes;
mod doctor;
mod evaluate;
mod events;
mod evidence;
mod exec;
mod export;
mod feed;
mod files;
mod follow_job;
mod git;
mod jobs;
mod ledger;
mod rebuild;
mod redaction;
mod replay;
mod sessions;
mod time_travel;
mod tokens;
mod transfer;
mod verify_proof;

use std::io;

use clap::CommandFactory;
use serde_json::json;

use crate::args::Agent;
use crate::args::Cli;
use crate::args::Command;
use crate::args::Global;
use crate::args::Ledger;
use crate::client::Client;
use crate::client::with_query;
use crate::discover::Surroundings;
use crate::discover::discover;
use crate::error::CliError;
use crate::error::EXIT_EXEC_FAILED;
use crate::error::EXIT_USAGE;
use crate::output::Output;
use crate::render;

pub(crate) use doctor::Check;

/// What every verb works with.
struct Context {
    global: Global,
    output: Output,
}

impl Context {
    /// The same for another thread.
    fn anew(&self) -> Self {
        Self {
            output: Output::new(&self.global),
            global: self.global.clone(),
        }
    }

    /// A client of the daemon that the options and the environment point to.
    fn client(&self) -> Result<Client, CliError> {
        Ok(Client::new(discover(
            &self.global,
            &Surroundings::of_this_process(),
        )?))
    }
}

/// The exit code that a failure of this verb has, where it is not the failure's own: no code of
/// ours may be taken for one of the command that `exec` ran, nor for a verdict on a ledger.
pub(crate) fn failure_code(command: &Command) -> Option<u8> {
    match command {
        Command::Agent(Agent::Exec(_)) => Some(EXIT_EXEC_FAILED),
        Command::Agent(Agent::Logs(logs)) if logs.follow => Some(EXIT_EXEC_FAILED),
        Command::Ledger(Ledger::Verify(_) | Ledger::VerifyProof(_)) => Some(EXIT_USAGE),
        _ => None,
    }
}

/// Runs the verb; the answer is the exit code.
pub(crate) fn run(cli: Cli) -> Result<u8, CliError> {
    let context = Context {
        output: Output::new(&cli.global),
        global: cli.global,
    };
    match cli.command {
        Command::Agent(verb) => run_agent(&context, verb),
        Command::Ledger(verb) => run_ledger(&context, verb),
        Command::Capabilities => {
            let answer = context.client()?.get("/v1/capabilities")?;
            context.output.show(&answer, render::capabilities::render)?;
            Ok(0)
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fluxctl", &mut script);
            context.output.bytes(&script)?;
            Ok(0)
        }
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            let document = json!({"name": "fluxctl", "version": version});
            context
                .output
                .show(&document, |_, _| format!("fluxctl {version}"))?;
            Ok(0)
        }
    }
}

fn run_ledger(context: &Context, verb: Ledger) -> Result<u8, CliError> {
    match verb {
        Ledger::Verify(args) => ledger::verify(context, *args),
        Ledger::VerifyProof(args) => verify_proof::run(context, &args),
        Ledger::Info => ledger::info(context),
        Ledger::Export(args) => {
            let path = export_path("/v1/ledger/export", args.with_content);
            let form = export::Form::of(args.compress);
            let out = args.out.out.as_deref();
            export::run(context, &context.client()?, &path, out, form)
        }
        Ledger::Events(args) => evidence::events(context, &args),
        Ledger::Checkpoint(out) => evidence::checkpoint(context, out.out.as_deref()),
        Ledger::Prove(args) => evidence::prove(context, &args),
        Ledger::ProveConsistency(args) => evidence::prove_consistency(context, &args),
        Ledger::Key => evidence::key(context),
        Ledger::RotateKey => evidence::rotate_key(context),
        Ledger::Doctor => doctor::doctor(context),
        Ledger::Redact(args) => redaction::redact(context, &args),
        Ledger::Shred(args) => redaction::shred(context, &args),
        Ledger::Truncate(args) => redaction::truncate(context, &args),
        Ledger::Rebuild(args) => rebuild::run(&context.global, &args),
        Ledger::Hold(args) => redaction::hold(context, &args),
        Ledger::Holds => redaction::list(context),
        Ledger::Release { hold } => redaction::release(context, hold),
    }
}

/// An export's path, with the stored content or without.
fn export_path(path: &str, with_content: bool) -> String {
    with_query(
        path,
        &[("content", with_content.then(|| "true".to_owned()))],
    )
}

fn run_agent(context: &Context, verb: Agent) -> Result<u8, CliError> {
    match verb {
        Agent::Run(args) => sessions::run(context, &args),
        Agent::Ls => sessions::list(context),
        Agent::Get(args) => sessions::get(context, &args.id),
        Agent::Token(args) => tokens::mint(context, &args),
        Agent::Tokens(args) => tokens::list(context, &args.id),
        Agent::Untoken(args) => tokens::revoke(context, &args),
        Agent::Approvals(args) => approvals::list(context, &args),
        Agent::Approve(args) => approvals::decide(context, &args, "approve"),
        Agent::Deny(args) => approvals::decide(context, &args, "deny"),
        Agent::Rm(args) => sessions::remove(context, &args.ids),
        Agent::Exec(args) => exec::run(context, &args),
        Agent::Bg(args) => jobs::start(context, &args),
        Agent::Jobs(args) => jobs::list(context, &args.id),
        Agent::Logs(args) => jobs::logs(context, &args),
        Agent::Stdin(args) => jobs::stdin(context, &args),
        Agent::Kill(args) => jobs::kill(context, &args),
        Agent::Checkpoint(args) => time_travel::checkpoint(context, &args),
        Agent::Checkpoints(args) => time_travel::list(context, &args.id),
        Agent::RmCheckpoint(args) => time_travel::remove(context, &args),
        Agent::Restore(args) => time_travel::restore(context, &args),
        Agent::Fork(args) => time_travel::fork(context, &args),
        Agent::Rewind(args) => time_travel::rewind(context, &args),
        Agent::Put(args) => files::put(context, &args),
        Agent::Cat(args) => files::cat(context, &args),
        Agent::Files(args) => files::list(context, &args),
        Agent::RmFile(args) => files::remove(context, &args),
        Agent::Upload(args) => transfer::upload(context, &args),
        Agent::Pull(args) | Agent::Download(args) => transfer::download(context, &args),
        Agent::Git(args) => git::run(context, &args),
        Agent::Probe(args) => files::probe(context, &args.id),
        Agent::Artifacts(args) => changes::artifacts(context, &args.id),
        Agent::Diff(args) => changes::diff(context, &args),
        Agent::Promote(args) => changes::promote(context, &args),
        Agent::Blame(args) => changes::blame(context, &args),
        Agent::Evaluate(args) => evaluate::evaluate(context, &args),
        Agent::Rollout(args) => evaluate::rollout(context, &args),
        Agent::Timeline(args) => events::timeline(context, &args.id),
        Agent::Events(args) => events::run(context, &args),
        Agent::Replay(args) => replay::run(context, &args),
        Agent::Export(args) => {
            let client = context.client()?;
            let id = sessions::resolve(&client, &args.session.id)?;
            let path = format!("{}/{id}/export", sessions::SESSIONS);
            let path = export_path(&path, args.with_content);
            let form = export::Form::of(args.compress);
            export::run(context, &client, &path, args.out.as_deref(), form)
        }
    }
}

/// A local file that could not be used.
fn file_error(path: &std::path::Path, source: io::Error) -> CliError {
    CliError::File {
        path: path.to_owned(),
        source,
    }
}
