//! What the daemon and the launcher say to each other.
//!
//! The launcher's standard input is one end of a `SOCK_SEQPACKET` pair, so that each message is one
//! packet:
//!
//! ```text
//! daemon    -> launcher   LaunchRequest, with a descriptor: the log
//! launcher  -> daemon     LaunchReport::Spawned { pid }   it exists and waits; with its pidfd
//! daemon    -> launcher   GO                                    its pid is on disk: it may start
//! launcher  -> daemon     LaunchReport::Ready | LaunchReport::Failed
//! ```
//!
//! The first process runs nothing of its own before `GO`, and it ends when the launcher does. So
//! there is no moment at which a guest daemon runs and the record on disk does not name it, whoever
//! is killed when. A guest daemon that comes back from memory is the exception: CRIU lets it run. Until
//! the record names it, its control groups do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::CreateStage;

/// Longest message in bytes: a request with a thousand grafts of long paths stays far below.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// The daemon's word that the record is written.
pub const GO: &[u8] = b"go";
/// The descriptor under which the guest daemon finds its listening socket.
pub const LISTEN_FD: i32 = 3;
/// Where the guest daemon lies inside.
pub const AGENTD_GUEST_PATH: &str = "/.fluxvm/microvms-agentd";
/// Set in the launcher's environment to `fail:<stage>`, `full:<stage>` or `die:<stage>`, it makes
/// the launcher answer with a failure or with a full disk, or end without a word, at that stage;
/// `lack:idmapped_mount` makes it do without. The crash tests need to stop anywhere.
pub const FAULT_VARIABLE: &str = "FLUXVM_PROCBOX_FAULT";
/// Device nodes that a sandbox shares with the host. All of them are harmless to whoever has them.
pub const DEVICE_NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// In the environment of a run of CRIU: the folder with the two pipes below.
pub const HOOK_FOLDER_VARIABLE: &str = "FLUXVM_PROCBOX_HOOK";
/// The launcher, called by CRIU, writes a byte here when everything stands still.
pub const HOOK_STOPPED: &str = "stopped";
/// It then waits here for `y`, or for anything else if the capture failed.
pub const HOOK_CAPTURED: &str = "captured";
/// The guest daemon's socket, an abstract name in the sandbox's network namespace.
pub const ABSTRACT_SOCKET: &[u8] = b"fluxvm-agentd";
/// The same for an ordinary user, who may not enter that: a name in the sandbox's own folder.
pub const SOCKET: &str = "agentd.sock";
/// Names of the folders below a sandbox's own folder.
pub const UPPER: &str = "upper";
/// The overlay's scratch folder.
pub const WORK: &str = "work";
/// Where launchers mount, beside the sandboxes' folders and each in a namespace of its own.
pub const MOUNT_POINT: &str = ".mnt";
/// The uppers of grafted folders, numbered.
pub const GRAFTS: &str = "grafts";

/// What the launcher is asked for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A sandbox.
    Launch(Box<LaunchRequest>),
    /// A run of CRIU on a sandbox that exists. The launcher ends with its exit code.
    Criu(CriuRequest),
}

/// A run of CRIU in a mount namespace of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CriuRequest {
    /// The program.
    pub program: PathBuf,
    /// What it is told.
    pub arguments: Vec<String>,
    /// What it found out about the kernel, so that it need not each time.
    pub cache: PathBuf,
}

/// The processes of a snapshot that are to be brought back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryRequest {
    /// The program, and where it keeps what it found out about the kernel.
    pub criu: PathBuf,
    /// See [`CriuRequest::cache`].
    pub cache: PathBuf,
    /// The folder with the images.
    pub images: PathBuf,
    /// What the images call the guest daemon's log.
    pub log: String,
    /// What they call files that programs had mapped, and where those lie inside.
    pub mapped: Vec<(String, String)>,
}

/// Everything the launcher must know.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// The sandbox's own folder, absolute.
    pub folder: PathBuf,
    /// The name of the skeleton folder, a neighbour of `folder`.
    pub skeleton: String,
    /// What lies below the skeleton.
    pub lower: Lower,
    /// Trees of captured layers above the skeleton, absolute, the lowest first.
    pub layers: Vec<PathBuf>,
    /// Whether to write the host's name into `/etc`.
    pub name_host: bool,
    /// What to write into `/etc/machine-id`, if anything.
    pub machine_id: Option<String>,
    /// Who the users inside are.
    pub users: Users,
    /// The `cgroup.procs` files to join.
    pub cgroup_procs: Vec<PathBuf>,
    /// The host name inside.
    pub hostname: String,
    /// The directory in which the guest daemon starts.
    pub workspace: String,
    /// The guest daemon's environment.
    pub env: Vec<(String, String)>,
    /// The size of `/dev/shm`.
    pub shm_bytes: u64,
    /// Where the launcher may, the first process is the last that the kernel ends for want of
    /// memory.
    pub spare_first_process: bool,
    /// Stop where the guest daemon would be started.
    pub trial: bool,
    /// Instead of starting a guest daemon, bring one back with all that ran.
    pub memory: Option<MemoryRequest>,
}

/// What lies below the skeleton.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lower {
    /// The host's `/`, read with the rights of nobody.
    HostRoot,
    /// These folders of the host, each under an overlay of its own: an ordinary user's namespace
    /// may not take `/` apart from what is mounted below it.
    HostFolders(Vec<PathBuf>),
    /// An image folder, absolute.
    Image(PathBuf),
}

/// Who the users inside are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// A range of their own.
    Shifted {
        /// The host's id of root inside.
        base: u32,
        /// How many ids.
        count: u32,
    },
    /// Root inside is the user who runs the daemon.
    Single {
        /// That user.
        uid: u32,
        /// Their group.
        gid: u32,
    },
}

/// What the launcher found to be missing, and did without.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFacts {
    /// The lower file system could not be read under the sandbox's user range.
    pub owners_not_shifted: Option<String>,
    /// `/sys` could not be had.
    pub no_sysfs: Option<String>,
    /// Host device nodes that could not be had.
    pub missing_devices: Vec<String>,
    /// The version of Landlock that the first process has; 0 is none.
    pub landlock_abi: u32,
    /// The first process may filter calls.
    pub seccomp: bool,
}

/// What the launcher answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchReport {
    /// The first process exists and waits.
    Spawned {
        /// Its process id on the host.
        pid: u32,
    },
    /// The guest daemon was started (or, in a trial, could be).
    Ready(LaunchFacts),
    /// It was not, and the first process is gone.
    Failed(LaunchFailure),
}

/// The step that failed.
#[derive(Debug, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// Which.
    pub stage: CreateStage,
    /// What was tried.
    pub what: String,
    /// The system's answer.
    pub errno: i32,
}
