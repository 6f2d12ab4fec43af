//! The words for going back: checkpoints, forks and the ring of points.

use clap::Args;
use clap::Subcommand;
use clap::ValueEnum;

use super::SessionArg;

/// `agent checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// What to call it [default: the next free cp-N]
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Keep the disk only: what runs begins anew after a restore
    #[arg(long)]
    pub(crate) disk_only: bool,
}

/// A session and one of its tags.
#[derive(Debug, Args)]
pub(crate) struct TagArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The checkpoint
    #[arg(value_name = "TAG")]
    pub(crate) tag: String,
}

/// `agent fork`.
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// How many children, 1 to 32
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,
    /// Who the children are
    #[arg(long, value_enum)]
    pub(crate) identity: Option<IdentityWord>,
    /// Start them from a checkpoint instead of the current state
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Copy the disk only: what runs is not copied
    #[arg(long, conflicts_with = "tag")]
    pub(crate) disk_only: bool,
}

/// `identity` of the API.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum IdentityWord {
    /// Machines of their own, as far as that goes
    BestEffort,
    /// Machines of their own, or none at all
    Unique,
    /// The parent's machine id and host name
    Preserve,
}

/// `agent rewind`.
#[derive(Debug, Args)]
pub(crate) struct RewindArgs {
    /// Which session.
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// What to do [default: list the points]
    #[command(subcommand)]
    pub(crate) verb: Option<RewindVerb>,
}

/// Verbs on a session's ring of points.
#[derive(Debug, Subcommand)]
pub(crate) enum RewindVerb {
    /// List what can be undone and redone
    List,
    /// Take a point before every command from now on
    On(RewindOnArgs),
    /// Take no more points; those that there are stay
    Off,
    /// Go back to before the last command, or further
    Undo(RewindMoveArgs),
    /// Take an undo back
    Redo(RewindMoveArgs),
    /// Keep a point for good
    Pin {
        /// The point
        #[arg(value_name = "TAG")]
        tag: String,
        /// Let go of it again
        #[arg(long)]
        unpin: bool,
    },
    /// Find the command that broke it: TEST ends with 0 where all is well
    Bisect {
        /// A command that is run in copies of the session's earlier states
        #[arg(value_name = "TEST")]
        test: String,
        /// A state in which it passes [default: the oldest point]
        #[arg(long, value_name = "TAG")]
        good: Option<String>,
        /// A state in which it fails [default: now]
        #[arg(long, value_name = "TAG")]
        bad: Option<String>,
    },
    /// Make children from a point of the past; the session itself goes on as it is
    Branch {
        /// The point, or a checkpoint
        #[arg(value_name = "TAG")]
        tag: String,
        /// How many children, 1 to 32
        #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
        count: u32,
        /// Who the children are
        #[arg(long, value_enum)]
        identity: Option<IdentityWord>,
    },
}

/// `agent rewind ID on`.
#[derive(Debug, Args)]
pub(crate) struct RewindOnArgs {
    /// How many points are kept, 1 to 50
    #[arg(long, value_name = "N")]
    pub(crate) max_points: Option<u32>,
    /// Keep the disk only: what runs begins anew after an undo
    #[arg(long)]
    pub(crate) disk_only: bool,
    /// What a point is taken before, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub(crate) triggers: Option<Vec<TriggerWord>>,
}

/// `triggers` of the API.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TriggerWord {
    /// Commands
    Exec,
    /// Jobs, when they start
    Job,
    /// Files that are written, removed or uploaded
    File,
    /// Commits and branches
    Git,
}

/// How far.
#[derive(Debug, Args)]
pub(crate) struct RewindMoveArgs {
    /// So many steps [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "to")]
    pub(crate) steps: Option<u64>,
    /// To this point
    #[arg(long, value_name = "TAG")]
    pub(crate) to: Option<String>,
}
