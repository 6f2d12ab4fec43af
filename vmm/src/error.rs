//! What goes wrong at this crate's boundary, one enum per operation.
//!
//! A failure names the stage at which it happened and, where the cause is known, what a person can
//! do about it. Callers decide by variant, never by text.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_client::ClientError;
use serde::{Deserialize, Serialize};

use crate::backend::Sandbox;
use crate::snapshot::SnapshotId;
use crate::spec::{ImageName, SandboxId};

/// A specification that no engine could honour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Not a lower-case hyphenated UUID.
    #[error("{0:?} is not a sandbox id (a lower-case hyphenated UUID)")]
    SandboxId(String),
    /// Not a lower-case hyphenated UUID.
    #[error("{0:?} is not a snapshot id (a lower-case hyphenated UUID)")]
    SnapshotId(String),
    /// Not 64 hexadecimal digits.
    #[error("{0:?} is not a digest (64 hexadecimal digits)")]
    ContentDigest(String),
    /// Not a valid image name.
    #[error("{0:?} is not an image name (lower-case letters, digits, '.', '_', '-', at most 64)")]
    ImageName(String),
    /// Not a plain absolute path.
    #[error("{0:?} is not an absolute path without '.', '..' or empty parts")]
    GuestPath(String),
    /// Not a usable host name.
    #[error("{0:?} is not a host name (1 to 64 letters, digits, '-' or '.')")]
    Hostname(String),
    /// A limit of nothing.
    #[error("{field} must be at least 1")]
    ZeroLimit {
        /// The field's name.
        field: &'static str,
    },
}

/// The steps of making a sandbox, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CreateStage {
    /// Checking the specification.
    Spec,
    /// Finding the image.
    Image,
    /// Making the sandbox's folder, record, token and socket.
    Folder,
    /// Making its control groups.
    Cgroup,
    /// Starting the launcher.
    Launcher,
    /// Joining the control groups.
    JoinCgroup,
    /// Making the launcher's own mount (and, for an ordinary user, user) namespace.
    LauncherNamespace,
    /// Making the sandbox's namespaces.
    SandboxNamespace,
    /// Writing the user and group maps.
    UserMap,
    /// Reading the lower file system under another user range.
    IdmappedMount,
    /// Mounting the lower layers.
    LowerLayers,
    /// Mounting the root file system.
    RootOverlay,
    /// Putting device nodes in place.
    Devices,
    /// Separating the sandbox's mounts from the host's.
    MountNamespace,
    /// Mounting `/proc`, `/sys`, `/dev/pts` and `/dev/shm`.
    KernelFilesystems,
    /// Making it the root.
    PivotRoot,
    /// Host name, loopback, limits, credentials.
    Identity,
    /// Making and entering the workspace.
    Workspace,
    /// Starting the guest daemon.
    Exec,
    /// Bringing processes back.
    Memory,
    /// Giving the guest daemon its token and environment.
    Bootstrap,
}

impl fmt::Display for CreateStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spec => "checking the specification",
            Self::Image => "finding the image",
            Self::Folder => "preparing the sandbox folder",
            Self::Cgroup => "making the control groups",
            Self::Launcher => "running the launcher",
            Self::JoinCgroup => "joining the control groups",
            Self::LauncherNamespace => "making the launcher's namespace",
            Self::SandboxNamespace => "making the sandbox's namespaces",
            Self::UserMap => "mapping users",
            Self::IdmappedMount => "shifting the owners of the lower file system",
            Self::LowerLayers => "mounting the lower layers",
            Self::RootOverlay => "mounting the root file system",
            Self::Devices => "placing device nodes",
            Self::MountNamespace => "separating the mounts",
            Self::KernelFilesystems => "mounting /proc, /sys and /dev",
            Self::PivotRoot => "changing the root",
            Self::Identity => "setting host name, loopback and limits",
            Self::Workspace => "entering the workspace",
            Self::Exec => "starting the guest daemon",
            Self::Memory => "bringing processes back",
            Self::Bootstrap => "bootstrapping the guest daemon",
        })
    }
}

/// Why a sandbox could not be made. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[error("{stage} failed: {source}{}", hint_suffix(.hint.as_deref()))]
pub struct CreateError {
    /// The step that failed.
    pub stage: CreateStage,
    /// What happened.
    pub source: CreateFault,
    /// What to do about it, where that is known.
    pub hint: Option<String>,
}

fn hint_suffix(hint: Option<&str>) -> String {
    hint.map(|text| format!(" ({text})")).unwrap_or_default()
}

/// What happened at the failing step.
#[derive(Debug, thiserror::Error)]
pub enum CreateFault {
    /// The specification cannot be honoured.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A sandbox of that id already has a folder.
    #[error("sandbox {0} already exists")]
    AlreadyExists(SandboxId),
    /// There is no image of that name.
    #[error("there is no image named {name} (looked for {path})")]
    ImageMissing {
        /// The name asked for.
        name: ImageName,
        /// The folder that is missing.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The answer.
        source: io::Error,
    },
    /// The launcher ended without saying why.
    #[error("the launcher ended early: {0}")]
    LauncherDied(String),
    /// The guest daemon did not answer as it must.
    #[error("the guest daemon did not answer: {0}")]
    Guest(#[from] ClientError),
    /// The guest daemon ended while it was being bootstrapped.
    #[error("the guest daemon ended at once; its log says: {log}")]
    GuestDied {
        /// The end of its log.
        log: String,
    },
}

impl CreateFault {
    /// The system's error number, if it was the system that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Os { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl CreateError {
    /// Whether a disk or a quota is full. Where namespaces and control groups are made, the same
    /// error number tells of other limits.
    pub fn is_out_of_space(&self) -> bool {
        use CreateStage::{
            Cgroup, JoinCgroup, LauncherNamespace, MountNamespace, SandboxNamespace, UserMap,
        };
        let elsewhere = matches!(
            self.stage,
            Cgroup | JoinCgroup | LauncherNamespace | SandboxNamespace | UserMap | MountNamespace
        );
        !elsewhere && self.source.errno().is_some_and(means_out_of_space)
    }
}

/// Whether an error number says that a disk or a quota is full.
pub(crate) fn means_out_of_space(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT)
}

/// Why a sandbox cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Nothing of that id is on disk.
    #[error("there is no sandbox {0}")]
    Missing(SandboxId),
    /// It was never finished, or its record or token cannot be read.
    #[error("sandbox {id} was never finished: {detail}")]
    HalfMade {
        /// The sandbox.
        id: SandboxId,
        /// What is missing.
        detail: String,
    },
    /// Its first process is gone (or the machine was restarted since).
    #[error("sandbox {id} no longer runs: {detail}")]
    Dead {
        /// The sandbox.
        id: SandboxId,
        /// How that was seen.
        detail: String,
    },
    /// Its first process runs and its guest daemon did not answer in time. That says nothing of
    /// later: whoever wants it all the same has it here.
    #[error("sandbox {id} does not answer: {source}")]
    Unresponsive {
        /// The sandbox.
        id: SandboxId,
        /// A hold of it, as good as any other once it answers.
        sandbox: Arc<dyn Sandbox>,
        /// What the client saw.
        source: ClientError,
    },
    /// The system refused.
    #[error("cannot look at sandbox {id}: {source}")]
    Io {
        /// The sandbox.
        id: SandboxId,
        /// The answer.
        source: io::Error,
    },
}

/// Why a snapshot could not be taken, read or forgotten. The sandbox runs on as before.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// This engine takes none on this host.
    #[error("this engine takes no snapshots here: {0}")]
    Unsupported(String),
    /// There is no such snapshot.
    #[error("there is no snapshot {0}")]
    Missing(SnapshotId),
    /// A snapshot of that id exists already.
    #[error("snapshot {0} already exists")]
    AlreadyExists(SnapshotId),
    /// Processes were to be kept, and that cannot be done.
    #[error("memory cannot be kept: {0}")]
    Memory(String),
    /// There is no such path in it, or it is not of the kind that was asked for.
    #[error("{disk} has no {what} at {path}")]
    NoSuchPath {
        /// The disk, as a person knows it.
        disk: String,
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: String,
    },
    /// There is more than the caller would take.
    #[error("more than {limit} {what}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The caller's limit.
        limit: usize,
    },
    /// What is on disk is not what was captured.
    #[error("snapshot {id} was changed since it was taken: {detail}")]
    Damaged {
        /// The snapshot.
        id: SnapshotId,
        /// What differs.
        detail: String,
    },
    /// The sandbox has ended.
    #[error("the sandbox has ended")]
    SandboxGone,
    /// The system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// The answer.
        source: io::Error,
    },
}

impl SnapshotError {
    /// Whether a disk or a quota is full.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Self::Os { source, .. } => source.raw_os_error().is_some_and(means_out_of_space),
            _ => false,
        }
    }
}

/// Why no sandbox could be made from a snapshot. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum ReviveError {
    /// The snapshot cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A sandbox could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// Its processes could not be brought back.
    #[error("the processes of snapshot {id} cannot be brought back: {reason}")]
    Memory {
        /// The snapshot.
        id: SnapshotId,
        /// Why, for a person.
        reason: String,
    },
    /// It would not have an identity of its own.
    #[error("the identity cannot be renewed: {0}")]
    Identity(String),
}

/// Why a sandbox could not be removed completely. Trying again is safe.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove sandbox {id}: {what}: {source}")]
pub struct RemoveError {
    /// The sandbox.
    pub id: SandboxId,
    /// What was tried.
    pub what: String,
    /// The answer.
    pub source: io::Error,
}

/// Why this engine cannot work on this host at all.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A program that it needs is missing or cannot be run.
    #[error("{what} at {path} cannot be used: {source}")]
    Program {
        /// Which program.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// A folder cannot be made or used.
    #[error("cannot use {path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The answer.
        source: io::Error,
    },
    /// The range of users holds the host's root, nobody, or more than there are.
    #[error("users {base} and the {count} from there cannot be a sandbox's users")]
    UserRange {
        /// The first.
        base: u32,
        /// How many.
        count: u32,
    },
    /// A trial sandbox could not be made, for another reason than a full disk.
    #[error("this host cannot run sandboxes: {0}")]
    Trial(CreateError),
}
