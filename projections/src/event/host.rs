//! Payloads of the daemon's own life.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SandboxId;
use crate::ids::SessionId;
use crate::ids::SnapshotId;

/// `host.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStarted {
    /// The program's version.
    pub version: String,
    /// The engine that makes sandboxes.
    pub backend: String,
}

/// `host.reconciled`: what a starting daemon found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReconciled {
    /// Sessions whose sandboxes still ran and were taken up again.
    pub adopted: Vec<SessionId>,
    /// Sessions whose sandboxes had ended.
    pub gone: Vec<SessionId>,
    /// Sandboxes that no session owned and that were removed.
    pub removed: Vec<SandboxId>,
    /// Snapshots that nothing needed and that were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots_removed: Vec<SnapshotId>,
    /// Operations without an outcome that could not be taken up again.
    pub interrupted: u64,
    /// Commands that still ran and were taken up again.
    pub commands_resumed: u64,
}

/// `host.stopped`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStopped {
    /// Why: `signal` or the error that ended it.
    pub reason: String,
}
