//! One running sandbox of this engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_client::AgentdClient;
use async_trait::async_trait;

use super::cgroup;
use super::engine::Engine;
use super::process::Process;
use super::{Held, remove};
use crate::backend::{ExitReason, Inspection, Removal, Sandbox};
use crate::error::{RemoveError, SnapshotError};
use crate::snapshot::{Snapshot, SnapshotSpec};
use crate::spec::SandboxId;

/// A sandbox that this daemon made or took over.
pub(super) struct ProcboxSandbox {
    id: SandboxId,
    process: Arc<Process>,
    client: AgentdClient,
    cgroups: Vec<PathBuf>,
    engine: Arc<Engine>,
}

impl ProcboxSandbox {
    pub(super) fn new(id: SandboxId, held: Held, engine: Arc<Engine>) -> Self {
        let Held {
            process,
            client,
            cgroups,
        } = held;
        Self {
            id,
            process,
            client,
            cgroups,
            engine,
        }
    }
}

impl fmt::Debug for ProcboxSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcboxSandbox")
            .field("id", &self.id)
            .field("pid", &self.process.pid)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Sandbox for ProcboxSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn guest(&self) -> &AgentdClient {
        &self.client
    }

    fn inspect(&self) -> Inspection {
        Inspection {
            pid: self.process.pid,
            alive: self.process.alive(),
            memory_bytes: cgroup::memory_bytes(&self.cgroups),
            processes: cgroup::processes(&self.cgroups),
            oom_kills: cgroup::oom_kills(&self.cgroups),
        }
    }

    async fn exited(&self) -> ExitReason {
        self.process.exited().await
    }

    async fn checkpoint(&self, _spec: SnapshotSpec) -> Result<Snapshot, SnapshotError> {
        Err(SnapshotError::Unsupported(
            "procbox has no layers yet".to_owned(),
        ))
    }

    async fn destroy(&self) -> Result<Removal, RemoveError> {
        remove(&self.engine, self.id).await
    }
}
