//! One running sandbox of this engine.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_client::AgentdClient;
use async_trait::async_trait;

use super::cgroup;
use super::checkpoint::Plan;
use super::engine::Engine;
use super::memory;
use super::process::Process;
use super::record::Record;
use super::{Held, blocking, checkpoint, remove};
use crate::backend::{ExitReason, Inspection, Removal, Sandbox};
use crate::error::{RemoveError, SnapshotError};
use crate::layers::os;
use crate::snapshot::{MemoryKept, MemoryWanted, Snapshot, SnapshotSpec};
use crate::spec::SandboxId;

/// How long a guest that was kept holds output for readers that come back, in time in which it runs:
/// a daemon that is busy reviving many takes seconds.
const HOLD: Duration = Duration::from_secs(30);

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

impl ProcboxSandbox {
    /// What is on disk of this sandbox.
    async fn record(&self) -> Result<Record, SnapshotError> {
        let folder = self.engine.folder(&self.id).path;
        let read = blocking(move || Record::read(&folder)).await;
        let record = read.and_then(|record| record);
        let record = record.map_err(os(|| "reading the record of the sandbox".to_owned()))?;
        record.ok_or(SnapshotError::SandboxGone)
    }

    /// What is to become of the processes.
    async fn plan(&self, wanted: MemoryWanted, record: &Record) -> Result<Plan, SnapshotError> {
        let plan = match wanted {
            MemoryWanted::Never => return Ok(Plan::Leave(MemoryKept::NotAsked)),
            MemoryWanted::BestEffort => Plan::Try,
            MemoryWanted::Required => Plan::Insist,
        };
        let (process, record) = (Arc::clone(&self.process), record.clone());
        let alive = blocking(move || memory::alive_beside(&process, &record)).await;
        match alive.and_then(|alive| alive) {
            Ok(alive) if alive.is_empty() => return Ok(Plan::Leave(MemoryKept::NothingAlive)),
            Ok(_) => {}
            Err(_) if !self.process.alive() => return Err(SnapshotError::SandboxGone),
            Err(error) => return Err(os(|| "looking at its processes".to_owned())(error)),
        }
        match (&self.engine.criu, plan) {
            (Err(reason), Plan::Insist) => Err(SnapshotError::Memory(reason.clone())),
            (Err(reason), _) => {
                let reason = reason.clone();
                Ok(Plan::Leave(MemoryKept::Impossible { reason }))
            }
            (Ok(_), plan) => Ok(plan),
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
        let record = self.record().await?;
        let plan = self.plan(spec.memory, &record).await?;
        // Connections of the host cannot be kept: they end, and those who read on come back.
        let silent = match &plan {
            Plan::Leave(_) => None,
            Plan::Insist | Plan::Try => Some(self.client.quiesce(HOLD).await),
        };
        let (plan, silent) = match (plan, silent) {
            (Plan::Insist, Some(Err(error))) => {
                return Err(SnapshotError::Memory(format!(
                    "it does not fall silent: {error}"
                )));
            }
            (Plan::Try, Some(Err(error))) => {
                let reason = format!("it does not fall silent: {error}");
                (Plan::Leave(MemoryKept::Impossible { reason }), None)
            }
            (plan, silent) => (plan, silent.and_then(Result::ok)),
        };
        let (engine, process) = (Arc::clone(&self.engine), Arc::clone(&self.process));
        let taken = blocking(move || {
            let mut record = record;
            let (process, standing) = (&process, &mut standing);
            checkpoint::take(&engine, process, &mut record, standing, spec.id, plan)
        });
        let taken = taken.await;
        drop(silent);
        taken.map_err(os(|| "waiting for the snapshot".to_owned()))?
    }

    async fn destroy(&self) -> Result<Removal, RemoveError> {
        remove(&self.engine, self.id).await
    }
}
