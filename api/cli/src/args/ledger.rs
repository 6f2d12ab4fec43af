//! The command line of `ledger`, apart from `verify`.

use std::path::PathBuf;

use clap::Args;
use clap::ValueHint;

/// `ledger redact`.
#[derive(Debug, Args)]
pub(crate) struct RedactArgs {
    /// The event: of a command, its intent or its outcome
    #[arg(value_name = "SEQ")]
    pub(crate) seq: u64,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// `ledger shred`.
#[derive(Debug, Args)]
pub(crate) struct ShredArgs {
    /// The session; it has to have ended
    #[arg(value_name = "ID")]
    pub(crate) session: String,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// `ledger truncate`.
#[derive(Debug, Args)]
pub(crate) struct TruncateArgs {
    /// The signed checkpoint: its size, or a file that holds it
    #[arg(long, value_name = "SIZE|FILE")]
    pub(crate) before: String,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// `ledger rebuild`.
#[derive(Debug, Args)]
pub(crate) struct RebuildArgs {
    /// The archive
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) from: PathBuf,
    /// The state folder that the ledger is made in [default: the daemon's own]
    #[arg(long, value_name = "DIR", env = "FLUXVM_STATE_DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// The daemon's program, which does it [default: beside this program, then on PATH]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) daemon: Option<PathBuf>,
}

/// `ledger hold`.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// Hold this session only [default: the whole ledger]
    #[arg(long, value_name = "ID")]
    pub(crate) session: Option<String>,
    /// Why; it is recorded
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

/// `ledger events`.
#[derive(Debug, Args)]
pub(crate) struct LedgerEventsArgs {
    /// Begin with the event of this seq
    #[arg(long, value_name = "SEQ")]
    pub(crate) from: Option<u64>,
    /// Only events of this stream, such as session/ID or ledger
    #[arg(long, value_name = "STREAM")]
    pub(crate) stream: Option<String>,
}

/// Where signed text goes.
#[derive(Debug, Args)]
pub(crate) struct OutArg {
    /// File to write [default: stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
}

/// `ledger prove`.
#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// The event
    #[arg(value_name = "SEQ")]
    pub(crate) seq: u64,
    /// Where to.
    #[command(flatten)]
    pub(crate) out: OutArg,
}

/// `ledger prove-consistency`.
#[derive(Debug, Args)]
pub(crate) struct ProveConsistencyArgs {
    /// The size of the earlier checkpoint
    #[arg(value_name = "FROM")]
    pub(crate) from: u64,
    /// The size of the later checkpoint [default: one that is signed now]
    #[arg(value_name = "TO")]
    pub(crate) to: Option<u64>,
    /// Where to.
    #[command(flatten)]
    pub(crate) out: OutArg,
}

/// `ledger export`.
#[derive(Debug, Args)]
pub(crate) struct LedgerExportArgs {
    /// Where to.
    #[command(flatten)]
    pub(crate) out: OutArg,
    /// Bring the stored content along that the events name
    #[arg(long)]
    pub(crate) with_content: bool,
    /// Compress it with zstd; `ledger verify` reads both
    #[arg(long)]
    pub(crate) compress: bool,
}
