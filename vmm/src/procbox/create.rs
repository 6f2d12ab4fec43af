//! Making one sandbox: the blocking part up to a running guest daemon, then its bootstrap.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use agentd_client::{AgentToken, AgentdClient};

use super::arrival;
use super::dial;
use super::engine::Engine;
use super::launch::{Launch, os};
use super::process::Process;
use super::record::{Record, boot_id};
use super::remove::Remains;
use super::tree::remove_tree;
use super::wire::{LISTEN_FD, LaunchFacts, LaunchRequest, Lower, MemoryRequest, Request, Users};
use crate::error::{CreateError, CreateFault, CreateStage};
use crate::layers::{Chain, Entry, LayerRef};
use crate::spec::SandboxSpec;

/// Output of one command kept for readers that come back: what a fast command prints in a few
/// milliseconds, so that a short pause of the daemon loses nothing.
const STREAM_BUFFER_BYTES: &str = "4194304";
/// The size of `/dev/shm` in bytes where no memory limit is set: enough for what programs share
/// through it (browsers and databases are usually given this much), and little enough that one
/// sandbox that fills it does not take the host's memory.
const SHM_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// What a sandbox is made on.
pub(super) struct Basis {
    pub(super) skeleton: String,
    pub(super) lower: Lower,
    /// Captured layers between the skeleton and the upper, the lowest first.
    pub(super) layers: Vec<LayerRef>,
    /// The root folder's own attributes, where they were captured.
    pub(super) root: Option<Entry>,
    /// `/etc/hostname` and `/etc/hosts` are written.
    pub(super) name_host: bool,
    /// What `/etc/machine-id` is to say, where it is to be another one.
    pub(super) machine_id: Option<String>,
    /// Processes that come back, instead of a fresh guest daemon.
    pub(super) memory: Option<Back>,
}

/// Processes that come back.
pub(super) struct Back {
    pub(super) request: MemoryRequest,
    /// The token that their guest daemon still has.
    pub(super) token: AgentToken,
}

impl Basis {
    /// Nothing but an image.
    pub(super) fn image((skeleton, lower): (String, Lower)) -> Self {
        Self {
            skeleton,
            lower,
            layers: Vec::new(),
            root: None,
            name_host: true,
            machine_id: None,
            memory: None,
        }
    }
}

/// A sandbox whose guest daemon was started. Unless it is kept, dropping it removes everything.
pub(super) struct HalfMade {
    remains: Option<Remains>,
}

impl HalfMade {
    fn new(remains: Remains) -> Self {
        Self {
            remains: Some(remains),
        }
    }

    /// It is whole: nothing is removed any more.
    pub(super) fn keep(mut self) {
        self.remains = None;
    }

    /// Removes everything now, blocking.
    pub(super) fn remove_now(mut self) {
        if let Some(remains) = self.remains.take() {
            clean(&remains);
        }
    }

    fn holds(&mut self, process: &Arc<Process>) {
        if let Some(remains) = &mut self.remains {
            remains.process = Some(Arc::clone(process));
        }
    }
}

impl Drop for HalfMade {
    fn drop(&mut self) {
        let Some(remains) = self.remains.take() else {
            return;
        };
        // Dropped because nobody waits for it any more: then nobody's thread may be blocked for it.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || clean(&remains))),
            Err(_) => clean(&remains),
        }
    }
}

fn clean(remains: &Remains) {
    let removed = remains
        .remove()
        .map_err(|error| error.to_string())
        .and_then(|(_, trash)| {
            trash.map_or(Ok(()), |path| {
                remove_tree(&path).map_err(|error| error.to_string())
            })
        });
    if let Err(error) = removed {
        tracing::warn!(id = %remains.id, %error, "a half-made sandbox could not be removed yet");
    }
}

/// What the blocking part hands over.
pub(super) struct Started {
    half_made: HalfMade,
    pub(super) process: Arc<Process>,
    pub(super) client: AgentdClient,
    record: Record,
    facts: LaunchFacts,
    pub(super) token: AgentToken,
    launch: Launch,
}

/// Makes everything up to the started guest daemon. On failure everything is gone when this
/// returns.
pub(super) fn start(
    engine: &Engine,
    spec: &SandboxSpec,
    basis: Basis,
    trial: bool,
) -> Result<Started, CreateError> {
    let remains = engine.remains(&spec.id);
    remains
        .folder
        .create()
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => CreateError {
                stage: CreateStage::Folder,
                source: CreateFault::AlreadyExists(spec.id),
                hint: None,
            },
            _ => os(CreateStage::Folder, "making the sandbox's folder", error),
        })?;
    let mut half_made = HalfMade::new(remains);
    match start_in_folder(engine, spec, basis, trial, &mut half_made) {
        Ok(parts) => Ok(parts.with(half_made)),
        Err(error) => {
            half_made.remove_now();
            Err(error)
        }
    }
}

struct Parts {
    process: Arc<Process>,
    client: AgentdClient,
    record: Record,
    facts: LaunchFacts,
    token: AgentToken,
    launch: Launch,
}

impl Parts {
    fn with(self, half_made: HalfMade) -> Started {
        let Self {
            process,
            client,
            record,
            facts,
            token,
            launch,
        } = self;
        Started {
            half_made,
            process,
            client,
            record,
            facts,
            token,
            launch,
        }
    }
}

fn start_in_folder(
    engine: &Engine,
    spec: &SandboxSpec,
    basis: Basis,
    trial: bool,
    half_made: &mut HalfMade,
) -> Result<Parts, CreateError> {
    let folder = engine.folder(&spec.id);
    let in_folder = |what: &'static str| move |error| os(CreateStage::Folder, what, error);
    let mut record = record(engine, spec, &basis).map_err(in_folder("reading the boot's id"))?;
    record
        .write_first(&folder.path)
        .map_err(in_folder("writing its record"))?;
    let log = folder.create_log().map_err(in_folder("making its log"))?;
    let copy = log.try_clone().map_err(in_folder("sharing its log"))?;
    let mut launch = Launch::start(&engine.options.launcher, copy)?;
    engine
        .cgroups
        .create(spec)
        .map_err(|(what, error)| os(CreateStage::Cgroup, what, error))?;
    folder
        .create_layers(engine.users, basis.root.as_ref())
        .map_err(in_folder("making its layers"))?;
    let old_token = basis.memory.as_ref().map(|back| back.token.clone());
    let request = request(engine, spec, &record, basis, trial);
    launch.request(&Request::Launch(Box::new(request)), &log)?;
    let token = folder
        .create_token()
        .map_err(in_folder("writing its token"))?;
    let process = Arc::new(launch.spawned()?);
    half_made.holds(&process);
    let named = process.record();
    if let Ok(named) = &named {
        record.process = Some(*named);
        record
            .write(&folder.path)
            .map_err(in_folder("writing its record"))?;
    }
    // A first process that cannot be looked at has failed already; the launcher says how.
    if named.is_ok() {
        launch.go()?
    } else {
        launch.give_up()
    }
    let facts = launch.ready()?;
    named.map_err(in_folder("looking at its first process"))?;
    let connector = dial::connector(engine.users, process.pid, folder.socket())
        .map_err(in_folder("finding the way to the guest daemon"))?;
    let shown = old_token.unwrap_or_else(|| token.clone());
    let client = AgentdClient::new(connector, shown);
    Ok(Parts {
        process,
        client,
        record,
        facts,
        token,
        launch,
    })
}

fn record(engine: &Engine, spec: &SandboxSpec, basis: &Basis) -> io::Result<Record> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(Record {
        format: Record::format(),
        id: spec.id,
        image: spec.image.clone(),
        uid_base: match engine.users {
            Users::Shifted { base, .. } => Some(base),
            Users::Single { .. } => None,
        },
        skeleton: basis.skeleton.clone(),
        grafts: match &basis.lower {
            Lower::HostFolders(folders) => folders.clone(),
            Lower::HostRoot | Lower::Image(_) => Vec::new(),
        },
        cgroups: engine.cgroups.folders(&spec.id),
        boot_id: boot_id()?,
        created_at_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        hostname: spec.hostname.clone(),
        mounted: basis.layers.iter().map(|layer| layer.id).collect(),
        chain: Chain {
            base: basis.layers.clone(),
            own: Vec::new(),
        },
        process: None,
    })
}

fn request(
    engine: &Engine,
    spec: &SandboxSpec,
    record: &Record,
    basis: Basis,
    trial: bool,
) -> LaunchRequest {
    LaunchRequest {
        folder: engine.folder(&spec.id).path,
        skeleton: basis.skeleton,
        lower: basis.lower,
        layers: engine.trees(&basis.layers),
        name_host: basis.name_host,
        machine_id: basis.machine_id,
        users: engine.users,
        cgroup_procs: record
            .cgroups
            .iter()
            .map(|group| group.join("cgroup.procs"))
            .collect(),
        hostname: spec.hostname.clone(),
        workspace: spec.workspace.as_str().to_owned(),
        env: agentd_env(),
        shm_bytes: shm_bytes(spec.memory_mb),
        // The right to be spared passes on to whatever runs inside. Below a limit that costs the
        // host no more than the limit; without one, a sandbox could take all memory and have the
        // host's own processes end for it.
        spare_first_process: spec.memory_mb.is_some() && engine.capabilities.memory_limit,
        trial,
        memory: basis.memory.map(|back| back.request),
    }
}

/// The size of `/dev/shm`. Its files count as memory and no process's end frees them: they may take
/// half of a limit, so that the guest daemon and whoever removes them always have the other half.
fn shm_bytes(memory_mb: Option<u64>) -> u64 {
    memory_mb.map_or(SHM_BYTES_DEFAULT, |mb| mb.saturating_mul(1024 * 1024) / 2)
}

/// The guest daemon's own environment; that of commands goes with the token.
fn agentd_env() -> Vec<(String, String)> {
    let own = [
        ("AGENTD_LISTEN_FD", LISTEN_FD.to_string()),
        // Who could look into the guest daemon could answer in its place.
        ("AGENTD_GUARD_SELF", "true".to_owned()),
        ("AGENTD_REPAIR_IDENTITY", "false".to_owned()),
        ("AGENTD_STREAM_BUFFER_BYTES", STREAM_BUFFER_BYTES.to_owned()),
    ];
    let own = own
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    own.chain(arrival::GUEST_ENV.map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

impl Started {
    /// Lets go of what only creation needed; the sandbox stays.
    pub(super) fn keep(self) -> (Arc<Process>, AgentdClient, Record) {
        let Self {
            half_made,
            process,
            client,
            record,
            launch,
            ..
        } = self;
        half_made.keep();
        // The launcher is ending; waiting for it is nobody's hurry. From then on the first process
        // is this daemon's own child: had it ended already, it would have to be waited for now.
        let orphan = Arc::clone(&process);
        drop(tokio::task::spawn_blocking(move || {
            drop(launch);
            orphan.reap();
        }));
        (process, client, record)
    }

    /// The end of the guest daemon's log.
    pub(super) fn log_tail(&self) -> String {
        let remains = self.half_made.remains.as_ref();
        remains
            .map(|remains| remains.folder.log_tail())
            .unwrap_or_default()
    }

    /// What the launcher had to do without.
    pub(super) fn facts(&self) -> &LaunchFacts {
        &self.facts
    }

    /// Removes everything, blocking.
    pub(super) fn discard(self) {
        let Self {
            half_made, launch, ..
        } = self;
        drop(launch);
        half_made.remove_now();
    }
}
