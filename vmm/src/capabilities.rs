//! What an engine really enforces on this host, found by trying it. Nothing is claimed on faith.

use serde::{Deserialize, Serialize};

/// What a backend can do here. Only what is enforced is `true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "a table of independent facts, not a state"
)]
pub struct Capabilities {
    /// Takes checkpoints.
    pub snapshot: bool,
    /// Goes back to one.
    pub restore: bool,
    /// Makes a second sandbox from one.
    pub fork: bool,
    /// Runs commands on a terminal.
    pub pty: bool,
    /// Checkpoints hold memory too.
    pub memory_checkpoint: bool,
    /// Why they do not.
    pub memory_checkpoint_reason: Option<String>,
    /// Commands can be confined further (Landlock, seccomp).
    pub confinement: bool,
    /// Only listed programs can be allowed to run.
    pub exec_allowlist: bool,
    /// The version of the kernel's Landlock; 0 is none.
    pub landlock_abi: u32,
    /// HTTP requests can be allowed by host, method and path.
    pub http_policy: bool,
    /// A memory limit is enforced.
    pub memory_limit: bool,
    /// A limit on processes is enforced.
    pub process_limit: bool,
    /// A limit on processor time is enforced.
    pub cpu_limit: bool,
    /// Who the users inside are on the host.
    pub user_namespace: UserNamespace,
    /// Root inside may change what came from the host's root file system (in its own copy).
    pub host_root_writable: bool,
    /// What a sandbox reaches.
    pub network: Network,
    /// Each thing this host lacks and what that costs, in one sentence each.
    pub degraded: Vec<String>,
}

/// Who the users of a sandbox are on the host. In no case is root inside the host's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum UserNamespace {
    /// User `n` inside is user `base + n` on the host, for `count` users.
    ShiftedRange {
        /// The host's user id of root inside.
        base: u32,
        /// How many users exist inside.
        count: u32,
    },
    /// Only root exists inside, and it is the user who runs the daemon.
    SingleUser,
}

/// What a sandbox reaches over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Its own loopback and nothing else.
    LoopbackOnly,
}
