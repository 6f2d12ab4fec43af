//! The two traits that the rest of the system sees of an engine.

use std::fmt;
use std::io;
use std::sync::Arc;

use agentd_client::AgentdClient;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::error::{AdoptError, CreateError, RemoveError, ReviveError, SnapshotError};
use crate::snapshot::{
    Disk, Identity, ManifestEntry, ManifestQuery, Revived, Snapshot, SnapshotId, SnapshotSpec,
};
use crate::spec::{GuestPath, SandboxId, SandboxSpec};

/// An engine that makes sandboxes.
#[async_trait]
pub trait Backend: Send + Sync {
    /// A short stable name, e.g. `procbox`.
    fn name(&self) -> &'static str;

    /// What is enforced on this host.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox and returns when its guest daemon has taken its token.
    ///
    /// On failure everything half made is gone again. A caller that stops waiting leaves nothing
    /// behind either: what was being made is then removed in the background.
    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, CreateError>;

    /// Takes over a sandbox that an earlier daemon made and that still runs.
    async fn adopt(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>, AdoptError>;

    /// Every sandbox of which anything is left on disk, running or not, half-made ones too.
    async fn list(&self) -> io::Result<Vec<SandboxId>>;

    /// Ends a sandbox and removes every process, mount, control group, socket and file of it.
    ///
    /// Idempotent: removing one that does not exist answers so.
    async fn remove(&self, id: &SandboxId) -> Result<Removal, RemoveError>;

    /// Makes a sandbox from a snapshot. `spec.image` must be the one that the captured sandbox was
    /// made from; `spec.id` is new. The captured sandbox may run on meanwhile.
    ///
    /// The snapshot's disk is checked against the digest that was given out when it was taken. On
    /// failure everything half made is gone again.
    async fn revive(
        &self,
        spec: SandboxSpec,
        snapshot: &Snapshot,
        identity: Identity,
    ) -> Result<Revived, ReviveError>;

    /// Every snapshot of which anything is left on disk, half-made ones too.
    async fn snapshots(&self) -> io::Result<Vec<SnapshotId>>;

    /// Forgets a snapshot. What other snapshots and sandboxes stand on stays until they are gone.
    /// Idempotent: the answer says whether there was one.
    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<bool, SnapshotError>;

    /// Every path below a folder of a disk, as the sandbox saw it, sorted by path.
    async fn manifest(&self, query: ManifestQuery) -> Result<Vec<ManifestEntry>, SnapshotError>;

    /// Opens a regular file of a disk for reading. Links are not followed.
    async fn open_file(
        &self,
        disk: &Disk,
        path: &GuestPath,
    ) -> Result<tokio::fs::File, SnapshotError>;
}

/// One running sandbox. Dropping it leaves it running.
#[async_trait]
pub trait Sandbox: Send + Sync + fmt::Debug {
    /// Its name.
    fn id(&self) -> &SandboxId;

    /// The guest daemon inside, bootstrapped.
    fn guest(&self) -> &AgentdClient;

    /// A look from outside: works whatever the guest does.
    fn inspect(&self) -> Inspection;

    /// Resolves when the sandbox's first process has ended, and with it everything inside.
    async fn exited(&self) -> ExitReason;

    /// Captures it while it runs, and lets it run on. One at a time: a second call waits.
    ///
    /// Connections of the host to the guest daemon may be closed for it; commands and their output
    /// are not touched by that and can be attached to again.
    async fn checkpoint(&self, spec: SnapshotSpec) -> Result<Snapshot, SnapshotError>;

    /// The same as [`Backend::remove`].
    async fn destroy(&self) -> Result<Removal, RemoveError>;
}

/// What can be seen of a sandbox from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspection {
    /// The host's process id of its first process.
    pub pid: u32,
    /// Whether that process still runs.
    pub alive: bool,
    /// Memory charged to it, where the host counts it.
    pub memory_bytes: Option<u64>,
    /// Processes in it, where the host counts them.
    pub processes: Option<u64>,
    /// How often the kernel killed something inside for want of memory, where the host counts it.
    pub oom_kills: Option<u64>,
}

/// How the first process of a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExitReason {
    /// It returned this code.
    Exited {
        /// The exit code.
        code: i32,
    },
    /// This signal ended it.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// It is gone, and somebody else was told how.
    Unknown,
}

/// What a removal found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Something of the sandbox existed.
    pub existed: bool,
    /// Its first process still ran and was killed.
    pub was_running: bool,
}
