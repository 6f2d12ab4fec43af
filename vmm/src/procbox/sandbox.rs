//! One running sandbox of this engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use agentd_client::AgentdClient;
use async_trait::async_trait;

use super::cgroup;
use super::engine::Engine;
use super::process::Process;
use super::record::Record;
use super::{Held, blocking, checkpoint, remove};
use crate::backend::{ExitReason, Inspection, Removal, Sandbox};
use crate::error::{RemoveError, SnapshotError};
use crate::layers::os;
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

    async fn checkpoint(&self, spec: SnapshotSpec) -> Result<Snapshot, SnapshotError> {
        let gone = || SnapshotError::SandboxGone;
        let standing = self.engine.standing_of(&self.id).ok_or_else(gone)?;
        let mut standing = standing.lock_owned().await;
        let (engine, process, id) = (Arc::clone(&self.engine), Arc::clone(&self.process), self.id);
        let taken = blocking(move || {
            let folder = engine.folder(&id).path;
            let record = Record::read(&folder)
                .map_err(os(|| "reading the record of the sandbox".to_owned()))?;
            let mut record = record.ok_or(SnapshotError::SandboxGone)?;
            checkpoint::take(&engine, &process, &mut record, &mut standing, spec)
        });
        taken
            .await
            .map_err(os(|| "waiting for the snapshot".to_owned()))?
    }

    async fn destroy(&self) -> Result<Removal, RemoveError> {
        remove(&self.engine, self.id).await
    }
}
