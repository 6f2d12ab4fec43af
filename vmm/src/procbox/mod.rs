//! The engine that needs no virtual machine: Linux namespaces over an overlay root.
//!
//! **What a sandbox is.** A process tree in its own user, mount, process, network, host name, IPC
//! and control group namespaces, on a root file system of its own, with the guest daemon as process
//! 1. It outlives the daemon that made it; a later daemon finds it by its record and takes it over.
//!
//! **What it promises.** Root inside is never root of the host: it is a user of a range kept for
//! sandboxes or, when an ordinary user runs the daemon, that user. It reads of the host what any
//! unprivileged user may read (an ordinary user's daemon: what that user may read), and nothing
//! from homes, temporary folders, sockets and this system's state. It changes nothing of the host.
//! Its network is its own loopback. Removing it leaves no process, mount, control group, socket or
//! file.
//!
//! **What it does not promise.** It shares the host's kernel. It has no disk quota. For an ordinary
//! user, the user's supplementary groups still count when the host's files are read, and limits are
//! enforced only where control groups are delegated; [`Capabilities`] says so.
//!
//! **Why a launcher.** Namespaces are made by a small program with one thread ([`wire`] is its
//! dialogue). The daemon never forks itself, mounts nothing and changes no credentials.

mod arrival;
mod below;
mod cgroup;
mod checkpoint;
mod claims;
mod create;
mod criu;
mod dial;
mod engine;
mod folder;
mod freeze;
mod host_view;
mod launch;
mod members;
mod memory;
mod options;
mod process;
mod prove;
mod record;
mod remove;
mod revive;
mod sandbox;
mod skeleton;
mod standing;
mod sweep;
mod sys;
mod tree;
mod view;
pub mod wire;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentd_client::AgentdClient;
use agentd_client::protocol::IdentityState;
use async_trait::async_trait;

pub use criu::find_criu;
pub use options::{ProcboxOptions, UID_BASE_DEFAULT, UID_COUNT_DEFAULT};
pub use sys::become_subreaper;
pub(crate) use tree::remove_tree;

use crate::backend::{Backend, Removal, Sandbox};
use crate::capabilities::Capabilities;
use crate::error::{
    AdoptError, CreateError, CreateFault, CreateStage, ProbeError, RemoveError, ReviveError,
    SnapshotError,
};
use crate::layers::os;
use crate::snapshot::{
    Disk, Identity, ManifestEntry, ManifestQuery, Revived, Snapshot, SnapshotId,
};
use crate::spec::{GuestPath, SandboxId, SandboxSpec};
use arrival::Arrival;
use create::{Basis, Started};
use engine::Engine;
use process::Process;
use record::Record;
use revive::Prepared;
use sandbox::ProcboxSandbox;

/// How long a sandbox that is being taken over may take to say that it is well. It takes a
/// millisecond, and nothing is lost for one that takes longer: a start need not wait for it.
const ADOPT_WAIT_MAX: Duration = Duration::from_secs(2);

/// The engine. Clones share everything.
#[derive(Clone)]
pub struct Procbox {
    engine: Arc<Engine>,
}

impl fmt::Debug for Procbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Procbox")
            .field("options", &self.engine.options)
            .finish_non_exhaustive()
    }
}

impl Procbox {
    /// Looks at the host, builds the shared layers and makes a trial sandbox (some ten
    /// milliseconds, blocking). What works then is what [`Backend::capabilities`] says.
    ///
    /// # Errors
    ///
    /// A program or folder that cannot be used, or a host on which no sandbox can be made. A full
    /// disk is none: then this opens without a trial and [`Capabilities::degraded`] says so.
    pub fn new(options: ProcboxOptions) -> Result<Self, ProbeError> {
        Ok(Self {
            engine: Arc::new(Engine::open(options)?),
        })
    }

    /// Gives a guest daemon its token, and hands its sandbox out.
    async fn finish(
        &self,
        started: Started,
        spec: &SandboxSpec,
        arrival: Arrival,
    ) -> Result<(Arc<dyn Sandbox>, Option<IdentityState>), CreateError> {
        let watched = Arc::clone(&started.process).watch();
        let watched = watched
            .map_err(|error| launch::os(CreateStage::Bootstrap, "watching its process", error));
        let arrived = match (watched, arrival) {
            (Err(error), _) => Err(error),
            (Ok(()), Arrival::Fresh) => started.bootstrap(spec).await.map(|()| None),
            (Ok(()), Arrival::Back { machine_id }) => {
                started.take_identity(spec, machine_id).await.map(Some)
            }
        };
        let state = match arrived {
            Ok(state) => state,
            Err(error) => {
                blocking(move || started.discard()).await.map_err(lost)?;
                return Err(error);
            }
        };
        let (process, client, record) = started.keep();
        self.engine.hold(spec.id, &process);
        self.engine.stands(&record);
        let held = Held {
            process,
            client,
            cgroups: record.cgroups,
        };
        Ok((self.sandbox(spec.id, held), state))
    }

    fn sandbox(&self, id: SandboxId, held: Held) -> Arc<dyn Sandbox> {
        Arc::new(ProcboxSandbox::new(id, held, Arc::clone(&self.engine)))
    }
}

/// What an open sandbox is made of.
struct Held {
    process: Arc<Process>,
    client: AgentdClient,
    cgroups: Vec<std::path::PathBuf>,
}

#[async_trait]
impl Backend for Procbox {
    fn name(&self) -> &'static str {
        "procbox"
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities.clone()
    }

    async fn create(&self, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, CreateError> {
        let engine = Arc::clone(&self.engine);
        let asked = spec.clone();
        let started = blocking(move || {
            valid(&asked)?;
            let basis = Basis::image(engine.lower(&asked.image)?);
            create::start(&engine, &asked, basis, false)
        });
        let started = started.await.map_err(lost)??;
        let (sandbox, _) = self.finish(started, &spec, Arrival::Fresh).await?;
        Ok(sandbox)
    }

    async fn adopt(&self, id: &SandboxId) -> Result<Arc<dyn Sandbox>, AdoptError> {
        let (id, engine) = (*id, Arc::clone(&self.engine));
        let found = blocking(move || find(&engine, &id)).await;
        let (held, fresh) = found.map_err(|source| AdoptError::Io { id, source })??;
        if fresh {
            let watched = Arc::clone(&held.process).watch();
            watched.map_err(|source| AdoptError::Io { id, source })?;
        }
        let asked = tokio::time::timeout(ADOPT_WAIT_MAX, held.client.health());
        let health = asked
            .await
            .unwrap_or(Err(agentd_client::ClientError::Timeout));
        let health = match health {
            Ok(health) => health,
            Err(_) if !held.process.alive() => {
                let detail = format!("process {} has ended", held.process.pid);
                return Err(AdoptError::Dead { id, detail });
            }
            // Anybody in the sandbox may keep its guest daemon from answering.
            Err(source) => {
                self.engine.hold(id, &held.process);
                let sandbox = self.sandbox(id, held);
                return Err(AdoptError::Unresponsive {
                    id,
                    sandbox,
                    source,
                });
            }
        };
        if !health.bootstrapped {
            let detail = "its guest daemon has no token".to_owned();
            return Err(AdoptError::HalfMade { id, detail });
        }
        self.engine.hold(id, &held.process);
        Ok(self.sandbox(id, held))
    }

    async fn list(&self) -> io::Result<Vec<SandboxId>> {
        let engine = Arc::clone(&self.engine);
        blocking(move || engine.list()).await?
    }

    async fn remove(&self, id: &SandboxId) -> Result<Removal, RemoveError> {
        remove(&self.engine, *id).await
    }

    async fn revive(
        &self,
        spec: SandboxSpec,
        snapshot: &Snapshot,
        identity: Identity,
    ) -> Result<Revived, ReviveError> {
        let (engine, asked, of) = (Arc::clone(&self.engine), spec.clone(), snapshot.clone());
        let prepared = blocking(move || {
            valid(&asked)?;
            revive::prepare(&engine, &asked, &of, identity)
        });
        let prepared = prepared.await.map_err(lost)??;
        let Prepared {
            basis,
            arrival,
            record,
            pin,
        } = prepared;
        let engine = Arc::clone(&self.engine);
        let checked = Arc::clone(&record);
        // The content is looked at while the sandbox is being made. Nobody is told of the sandbox
        // before both are done.
        let verified = tokio::task::spawn_blocking(move || revive::verify(&engine, &checked));
        let (engine, asked) = (Arc::clone(&self.engine), spec.clone());
        let started = blocking(move || create::start(&engine, &asked, basis, false)).await;
        let started = started.map_err(lost)?;
        let verified = verified.await.map_err(io::Error::other).map_err(lost)?;
        if let Err(error) = verified {
            if let Ok(started) = started {
                blocking(move || started.discard()).await.map_err(lost)?;
            }
            return Err(error.into());
        }
        let started = started.map_err(|error| revive::explain(snapshot.id, error))?;
        let (sandbox, state) = self.finish(started, &spec, arrival).await?;
        drop(pin);
        let report = revive::report(state.as_ref(), &record, identity);
        if identity == Identity::Renew
            && let Some(missing) = report.identity_note
        {
            let removed = sandbox.destroy().await;
            removed.map_err(|error| ReviveError::Identity(error.to_string()))?;
            return Err(ReviveError::Identity(missing));
        }
        Ok(Revived { sandbox, report })
    }

    async fn snapshots(&self) -> io::Result<Vec<SnapshotId>> {
        let engine = Arc::clone(&self.engine);
        blocking(move || engine.store.list()).await?
    }

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<bool, SnapshotError> {
        let (engine, id) = (Arc::clone(&self.engine), *id);
        let removed = blocking(move || {
            let removed = engine.store.remove_snapshot(&id);
            engine.checked().remove(&id);
            // Only one whose memory was kept has one.
            let _ = std::fs::remove_file(engine.token_of(&id));
            removed
        });
        let removed = removed.await;
        let removed = removed.and_then(|removed| removed);
        removed.map_err(os(|| format!("removing snapshot {id}")))
    }

    async fn manifest(&self, query: ManifestQuery) -> Result<Vec<ManifestEntry>, SnapshotError> {
        let engine = Arc::clone(&self.engine);
        let listed = blocking(move || view::manifest(&engine, &query)).await;
        listed.map_err(os(|| "waiting for the list".to_owned()))?
    }

    async fn open_file(
        &self,
        disk: &Disk,
        path: &GuestPath,
    ) -> Result<tokio::fs::File, SnapshotError> {
        let (engine, disk, path) = (Arc::clone(&self.engine), disk.clone(), path.clone());
        let opened = blocking(move || view::open_file(&engine, &disk, &path)).await;
        let file = opened.map_err(os(|| "waiting for the file".to_owned()))??;
        Ok(tokio::fs::File::from_std(file))
    }
}

/// Refuses a specification that no engine could honour.
fn valid(spec: &SandboxSpec) -> Result<(), CreateError> {
    spec.validate().map_err(|error| CreateError {
        stage: CreateStage::Spec,
        source: CreateFault::Spec(error),
        hint: None,
    })
}

/// Removes a sandbox; its files go in the background, out of sight already.
async fn remove(engine: &Arc<Engine>, id: SandboxId) -> Result<Removal, RemoveError> {
    let remains = engine.remains(&id);
    let removed = blocking(move || remains.remove()).await;
    let failed = |source| RemoveError {
        id,
        what: "waiting for the removal".to_owned(),
        source,
    };
    let (removal, trash) = removed.map_err(failed)??;
    engine.fell(&id);
    if let Some(trash) = trash {
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = tree::remove_tree(&trash) {
                tracing::warn!(%id, %error, "a removed sandbox's files could not be removed yet");
            }
        }));
    }
    Ok(removal)
}

/// Finds a running sandbox by its record, and whether its process was not held before.
fn find(engine: &Engine, id: &SandboxId) -> Result<(Held, bool), AdoptError> {
    let id = *id;
    let folder = engine.folder(&id);
    if !folder.exists() {
        return Err(AdoptError::Missing(id));
    }
    let half_made = |detail: String| AdoptError::HalfMade { id, detail };
    let record = Record::read(&folder.path)
        .map_err(|error| half_made(error.to_string()))?
        .ok_or_else(|| half_made("it has no record".to_owned()))?;
    let named = record
        .process
        .ok_or_else(|| half_made("it has no first process".to_owned()))?;
    let token = folder
        .read_token()
        .map_err(|error| half_made(format!("its token: {error}")))?;
    let (process, fresh) = match engine.live_process(&id) {
        Some(process) => (process, false),
        None => {
            let found = Process::find(&named, &record.boot_id);
            let found = found.map_err(|source| AdoptError::Io { id, source })?;
            let detail = format!("process {} has ended", named.pid);
            (
                Arc::new(found.ok_or(AdoptError::Dead { id, detail })?),
                true,
            )
        }
    };
    if !process.alive() {
        let detail = format!("process {} has ended", named.pid);
        return Err(AdoptError::Dead { id, detail });
    }
    // A daemon that ended during a capture left it standing still.
    if fresh {
        let thawed = freeze::thaw(&record.cgroups);
        thawed.map_err(|source| AdoptError::Io { id, source })?;
    }
    if engine.standing_of(&id).is_none() {
        engine.stands(&record);
    }
    let connector = dial::connector(engine.users, process.pid, folder.socket());
    let connector = connector.map_err(|source| AdoptError::Io { id, source })?;
    let client = AgentdClient::new(connector, token);
    Ok((
        Held {
            process,
            client,
            cgroups: record.cgroups,
        },
        fresh,
    ))
}

/// Runs something that blocks on a thread made for that.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)
}

fn lost(source: io::Error) -> CreateError {
    let what = "waiting for the thread that makes it".to_owned();
    CreateError {
        stage: CreateStage::Launcher,
        source: CreateFault::Os { what, source },
        hint: None,
    }
}
