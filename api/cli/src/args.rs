//! The words of the command line. What each verb does lives in `commands`; this file promises only
//! that what reaches it has the right shape (a duration is a duration, a policy is a known name),
//! so that a typing mistake is answered before a request is made.

pub(crate) mod approvals;
pub(crate) mod changes;
pub(crate) mod evaluate;
pub(crate) mod files;
pub(crate) mod jobs;
pub(crate) mod ledger;
pub(crate) mod time_travel;
pub(crate) mod tokens;
pub(crate) mod verify;

use std::path::PathBuf;

use clap::Args;
use clap::Parser;
use clap::Subcommand;
use clap::ValueEnum;
use clap::ValueHint;

use crate::duration::parse_seconds;
use crate::moment::Moment;

/// What `--help` says about exit codes; kept beside the codes in `error.rs` by a test.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the daemon refused or failed, or the answer is \"no\" (a replay differs, a ledger is broken)
  2    the command line is wrong; for `ledger verify`: the file cannot be read
  3    the daemon cannot be reached or does not answer in time, or its token cannot be read
  125  `agent exec` or `agent logs -f` itself failed; every other code of theirs is the command's own
       (124: it ran into its timeout, 128+n: signal n ended it)";

/// Sessions for AI agents, and the ledger that remembers what they did.
#[derive(Debug, Parser)]
#[command(name = "fluxctl", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Where and how to talk to the daemon.
    #[command(flatten)]
    pub(crate) global: Global,
    /// The verb.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options that every verb takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Address of the daemon, e.g. http://127.0.0.1:7788 [default: what the state folder says]
    #[arg(long, global = true, value_name = "URL", env = "FLUXVM_URL")]
    pub(crate) server: Option<String>,
    /// Bearer token [default: the admin token in the state folder]
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "FLUXVM_TOKEN",
        hide_env_values = true
    )]
    pub(crate) server_token: Option<String>,
    /// State folder of the daemon [default: the first that holds a running daemon]
    #[arg(long, global = true, value_name = "DIR", env = "FLUXVM_STATE_DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print JSON (also the default when stdout is not a terminal)
    #[arg(long, global = true, conflicts_with = "table")]
    pub(crate) json: bool,
    /// Print tables even when stdout is not a terminal
    #[arg(long, global = true)]
    pub(crate) table: bool,
}

/// The nouns.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Sessions: a sandbox, a workspace and the record of what happened in it
    #[command(subcommand)]
    Agent(Agent),
    /// The ledger: export it, look at its head, verify an export without the daemon
    #[command(subcommand)]
    Ledger(Ledger),
    /// What the sandboxes of this machine enforce
    Capabilities,
    /// Print a completion script for your shell
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the version of fluxctl
    Version,
}

/// Verbs on sessions.
#[derive(Debug, Subcommand)]
pub(crate) enum Agent {
    /// Start a session
    #[command(visible_alias = "create")]
    Run(Box<RunArgs>),
    /// List the sessions, oldest first
    Ls,
    /// Show one session
    Get(SessionArg),
    /// Run a command in a session
    #[command(after_help = EXEC_HELP)]
    Exec(ExecArgs),
    /// Start a command that goes on when fluxctl ends: a job
    Bg(jobs::BgArgs),
    /// List a session's jobs, oldest first
    Jobs(SessionArg),
    /// Print what a job wrote
    Logs(jobs::LogsArgs),
    /// Write to a job's standard input
    Stdin(jobs::StdinArgs),
    /// Send a signal to a job's processes
    Kill(jobs::KillArgs),
    /// Keep a session's state under a tag
    Checkpoint(time_travel::CheckpointArgs),
    /// List a session's checkpoints
    Checkpoints(SessionArg),
    /// Delete a checkpoint
    RmCheckpoint(time_travel::TagArgs),
    /// Put a session back to one of its checkpoints; what happened since is gone from its machine,
    /// not from its ledger
    Restore(time_travel::TagArgs),
    /// Make children that start from a session's state
    Fork(time_travel::ForkArgs),
    /// List what a session can undo; undo, redo, and branch off from its past
    Rewind(time_travel::RewindArgs),
    /// Write a small file into the sandbox
    Put(files::PutArgs),
    /// Fetch a file from the sandbox; another name for download
    Pull(files::DownloadArgs),
    /// Print a file of the sandbox
    Cat(files::PathArgs),
    /// List a folder of the sandbox, or show a file
    Files(files::PathArgs),
    /// Remove a file, a link or a folder of the sandbox
    RmFile(files::RemoveFileArgs),
    /// Send a large file into the sandbox, in parts that can be gone on with
    Upload(files::UploadArgs),
    /// Fetch a large file from the sandbox, checked
    Download(files::DownloadArgs),
    /// Look at a repository in the sandbox, commit, branch
    Git(files::GitArgs),
    /// Show which tools the sandbox has
    Probe(SessionArg),
    /// List what a session made of its workspace since it began
    Artifacts(SessionArg),
    /// Show what differs between two states, line by line
    Diff(changes::DiffArgs),
    /// Carry a child's changes to its parent, all of them or none
    Promote(changes::PromoteArgs),
    /// Show which step last wrote a file of the workspace, or a line of it
    Blame(changes::BlameArgs),
    /// Try several commands, each in a child of its own; score them, keep the best that passed;
    /// exits with 1 when none did
    Evaluate(evaluate::EvaluateArgs),
    /// Run one command in several children, side by side
    Rollout(evaluate::RolloutArgs),
    /// Show what happened in a session, step by step
    Timeline(SessionArg),
    /// Show a session's events as the ledger holds them
    Events(EventsArgs),
    /// Do again what was recorded of a session, in another session: commands, files, uploads, git;
    /// exits with 1 when a step came to something else or did not run
    Replay(ReplayArgs),
    /// Write a session's events as JSONL that can be verified without the daemon
    Export(ExportArgs),
    /// Make a token that reaches one session only, for the operations that it names
    Token(tokens::TokenArgs),
    /// List a session's live tokens
    Tokens(SessionArg),
    /// End a session's token at once
    Untoken(tokens::UntokenArgs),
    /// List the commands that wait, or waited, for people to decide on them
    Approvals(approvals::ApprovalsArgs),
    /// Let a command run that waits for it
    Approve(approvals::DecideArgs),
    /// Refuse a command that waits
    Deny(approvals::DecideArgs),
    /// Delete sessions and their sandboxes; their ledger stays
    Rm(RmArgs),
}

const EXEC_HELP: &str = "\
One word after `--` is a line for /bin/sh; several words are one command with its arguments, taken
as they are:
  fluxctl agent exec ID -- 'cd src && make | tail -3'
  fluxctl agent exec ID -- python3 reproduce.py 'an argument with spaces'

The command's bytes go to stdout and stderr unchanged, and fluxctl exits with the command's code.";

/// A session, by its id or the start of it.
#[derive(Debug, Clone, Args)]
pub(crate) struct SessionArg {
    /// Session id, or the start of it when no other session's id starts so
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// `agent run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A label for who works in the session (claude-code, codex, …)
    #[arg(default_value = "agent")]
    pub(crate) agent: String,
    /// End the session after this long: seconds, or 90s, 30m, 2h, 1d
    #[arg(long, visible_alias = "ttl", value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) ttl_seconds: Option<u64>,
    /// Memory limit in MiB
    #[arg(long, value_name = "N")]
    pub(crate) memory_mb: Option<u64>,
    /// CPU limit
    #[arg(long, value_name = "N")]
    pub(crate) cpus: Option<u32>,
    /// Image to start from [default: this machine's own files, read through a privacy filter]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Where the workspace lies in the sandbox [default: /workspace]
    #[arg(long, value_name = "PATH")]
    pub(crate) workspace: Option<String>,
    /// A https:// repository to clone into the workspace
    #[arg(long, value_name = "URL")]
    pub(crate) git: Option<String>,
    /// How the workspace is made
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Mode>,
    /// Fail, and leave nothing behind, when the workspace cannot be made ready
    #[arg(long)]
    pub(crate) require_ready: bool,
    /// A policy by its name
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Preset>,
    /// A pattern of commands that may run (repeatable); without any, all may
    #[arg(long, value_name = "PATTERN")]
    pub(crate) cmd_allow: Vec<String>,
    /// A pattern of commands that may not run (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub(crate) cmd_deny: Vec<String>,
    /// A pattern of commands that people decide on (repeatable)
    #[arg(long, value_name = "PATTERN")]
    pub(crate) cmd_ask: Vec<String>,
    /// The kernel holds the session to the programs that the patterns name
    #[arg(long)]
    pub(crate) cmd_enforce: bool,
    /// The kernel holds commands to the system's files, the scratch folder and the workspace
    #[arg(long)]
    pub(crate) confine: bool,
    /// A path that they may read too; implies --confine (repeatable)
    #[arg(long, value_name = "PATH")]
    pub(crate) fs_read: Vec<String>,
    /// A path that they may read and write too; implies --confine (repeatable)
    #[arg(long, value_name = "PATH")]
    pub(crate) fs_write: Vec<String>,
    /// Commands that the session may run
    #[arg(long, value_name = "N")]
    pub(crate) max_execs: Option<u64>,
    /// Time that its commands may take together: seconds, or 90s, 30m
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) max_exec_seconds: Option<u64>,
    /// What is kept of commands' output: its bytes, or only its digest
    #[arg(long, value_enum)]
    pub(crate) record: Option<Record>,
}

/// `workspace.mode` of the API.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    /// A folder of its own, with the repository in it when one is named
    Clone,
    /// Readable, not writable
    Readonly,
    /// An overlay over a folder of the image
    Overlay,
}

/// `policy.preset` of the API.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Preset {
    /// Source hosts and package registries only
    DeveloperSafe,
    /// No network
    Offline,
    /// No rules
    Open,
}

/// `record` of the API.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Record {
    /// Keep the bytes, so that replay can compare them
    Full,
    /// Keep digests only
    Digest,
}

/// `agent exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// End the command after this long: seconds, or 90s, 10m [default: the daemon's, 30 s]
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// Print what the command writes as it comes. An interrupt (Ctrl-C) is passed on to the command; a
    /// second one leaves it running and says how to follow or end it. The command is ended when nobody
    /// reads its output any more
    #[arg(long)]
    pub(crate) stream: bool,
    /// Let the command read what comes on our own standard input. It is ended if that breaks off: with
    /// --stream 15 s after fluxctl is gone, without it at once
    #[arg(long)]
    pub(crate) stdin: bool,
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

/// `agent events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// Only events after this time (RFC 3339), or of the last 90s, 10m, 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Moment>,
    /// Only events after this seq
    #[arg(long, value_name = "SEQ", conflicts_with = "since")]
    pub(crate) after: Option<u64>,
    /// Go on and print events as they happen, until the session ends
    #[arg(long, short)]
    pub(crate) follow: bool,
}

/// `agent replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The session whose commands are run again.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The session to run them in; with a checkpoint in --from, a new child of it when left out
    #[arg(long, value_name = "ID", required_unless_present_any = ["dry_run", "from"])]
    pub(crate) target: Option<String>,
    /// Only list what would be run
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Start after this time (RFC 3339), or within the last 90s, 10m, 2h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Moment>,
    /// Stop after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<Moment>,
    /// Start at this seq, or after this checkpoint
    #[arg(long, value_name = "SEQ|TAG", conflicts_with = "since")]
    pub(crate) from: Option<String>,
    /// Stop after this seq
    #[arg(long, value_name = "SEQ", conflicts_with = "until")]
    pub(crate) to: Option<u64>,
    /// Go on after a command that fails
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Time limit of each command: seconds, or 90s, 10m
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
}

/// `agent export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// File to write [default: stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    /// Bring the stored content along that the events name
    #[arg(long)]
    pub(crate) with_content: bool,
    /// Compress it with zstd; `ledger verify` reads both
    #[arg(long)]
    pub(crate) compress: bool,
}

/// `agent rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Session ids, or the start of them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

/// Verbs on the ledger.
#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// Check an export's hashes, proofs and signatures, without the daemon; lists every fault
    #[command(after_help = verify::VERIFY_HELP)]
    Verify(Box<verify::VerifyArgs>),
    /// Check what `prove` or `prove-consistency` wrote, without the daemon
    VerifyProof(Box<verify::VerifyProofArgs>),
    /// Show the ledger's identity and head
    Info,
    /// Write the whole ledger as JSONL that can be verified without the daemon
    Export(ledger::LedgerExportArgs),
    /// Print events of the whole ledger as JSON lines
    Events(ledger::LedgerEventsArgs),
    /// Print a signed checkpoint of the ledger as it is now; keep it somewhere else
    Checkpoint(ledger::OutArg),
    /// Print the proof that an event is in the ledger
    Prove(ledger::ProveArgs),
    /// Print the proof that the ledger begins with what it was at an earlier size
    ProveConsistency(ledger::ProveConsistencyArgs),
    /// Show the keys that speak and spoke for the ledger
    Key,
    /// Hand the ledger's key on to a new one
    RotateKey,
    /// Look at the disk, the head and the key; exits with 1 when something is wrong
    Doctor,
    /// Erase what a command said and wrote; its hashes stay
    Redact(ledger::RedactArgs),
    /// Destroy the key of a sealed session that ended: it is erased in every copy of the ledger
    Shred(ledger::ShredArgs),
    /// Erase what ended sessions said before a signed checkpoint; hashes and proofs stay
    Truncate(ledger::TruncateArgs),
    /// Make a ledger again out of its archive, while no daemon runs
    Rebuild(ledger::RebuildArgs),
    /// Forbid erasing anything of a session, or anything at all
    Hold(ledger::HoldArgs),
    /// List the holds in force
    Holds,
    /// Release a hold
    Release {
        /// The hold, by the seq of the event that placed it
        #[arg(value_name = "HOLD")]
        hold: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn words_after_the_dashes_are_the_command_even_when_they_look_like_options() {
        let cli = Cli::try_parse_from(["fluxctl", "agent", "exec", "5f0c", "--", "ls", "--json"]);
        let Command::Agent(Agent::Exec(exec)) = cli.expect("parses").command else {
            panic!("parsed as another verb");
        };
        assert_eq!(exec.command, ["ls", "--json"]);
    }

    #[test]
    fn an_exec_without_a_command_is_a_usage_error() {
        assert!(Cli::try_parse_from(["fluxctl", "agent", "exec", "5f0c"]).is_err());
        assert!(Cli::try_parse_from(["fluxctl", "agent", "exec", "5f0c", "--"]).is_err());
    }

    #[test]
    fn a_replay_needs_a_target_or_a_dry_run() {
        assert!(Cli::try_parse_from(["fluxctl", "agent", "replay", "5f0c"]).is_err());
        assert!(Cli::try_parse_from(["fluxctl", "agent", "replay", "5f0c", "--dry-run"]).is_ok());
    }

    #[test]
    fn create_is_another_name_for_run() {
        assert!(Cli::try_parse_from(["fluxctl", "agent", "create", "--ttl", "30m"]).is_ok());
    }
}
