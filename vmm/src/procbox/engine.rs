//! What all sandboxes of one engine share: where things are, what this host can do, what is
//! running.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::unistd::{AccessFlags, access, getegid, geteuid};

use super::cgroup::Cgroups;
use super::claims::capabilities;
use super::criu;
use super::folder::{Folder, agents_dir, private_folder};
use super::host_view::{FolderPlan, hidden_paths, plan_folders};
use super::launch::os;
use super::memory::Checked;
use super::options::ProcboxOptions;
use super::process::Process;
use super::remove::Remains;
use super::skeleton::{self, Below};
use super::standing::Shared;
use super::wire::{Lower, MOUNT_POINT, Users};
use crate::capabilities::Capabilities;
use crate::error::{CreateError, CreateFault, CreateStage, ProbeError, means_out_of_space};
use crate::layers::{LayerRef, Store, TREE};
use crate::snapshot::SnapshotId;
use crate::spec::{ImageRef, SandboxId};

/// Tokens that belong to a snapshot, beside those of sandboxes, begin with this.
pub(super) const TOKEN_PREFIX: &str = "snapshot-";

/// The shared part of a [`Procbox`](super::Procbox) and its sandboxes.
pub(super) struct Engine {
    pub(super) options: ProcboxOptions,
    pub(super) users: Users,
    pub(super) cgroups: Cgroups,
    pub(super) capabilities: Capabilities,
    pub(super) image_skeleton: String,
    pub(super) host_skeleton: String,
    pub(super) plan: Option<FolderPlan>,
    /// Why the host's root cannot be taken here.
    pub(super) no_host_root: Option<String>,
    /// A trial sandbox was made.
    pub(super) tried: bool,
    live: Mutex<HashMap<SandboxId, Weak<Process>>>,
    pub(super) store: Arc<Store>,
    /// The program that keeps processes, or why there is none.
    pub(super) criu: Result<PathBuf, String>,
    /// Why no snapshots can be taken here.
    pub(super) no_snapshots: Option<String>,
    standing: Mutex<HashMap<SandboxId, Shared>>,
    checked: Mutex<HashMap<SnapshotId, Checked>>,
}

impl Engine {
    /// Looks at the host, builds the shared layers and proves with a trial sandbox that all of it
    /// works.
    pub(super) fn open(mut options: ProcboxOptions) -> Result<Self, ProbeError> {
        let agentd = fs::read(&options.agentd)
            .map_err(|source| program("the guest daemon", &options.agentd, source))?;
        access(&options.launcher, AccessFlags::X_OK)
            .map_err(|errno| program("the launcher", &options.launcher, errno.into()))?;
        options.sandboxes_dir = usable_folder(&options.sandboxes_dir)?;
        options.layers_dir = usable_folder(&options.layers_dir)?;
        options.snapshots_dir = usable_folder(&options.snapshots_dir)?;
        options.images_dir = usable_folder(&options.images_dir)?;
        options.secrets_dir = usable_folder(&options.secrets_dir)?;
        usable_folder(&agents_dir(&options.secrets_dir))?;
        usable_folder(&options.sandboxes_dir.join(MOUNT_POINT))?;
        let (base, count) = (options.uid_base, options.uid_count);
        if base == 0 || count < 2 || base.checked_add(count).is_none() {
            return Err(ProbeError::UserRange { base, count });
        }
        let users = match geteuid().as_raw() {
            0 => Users::Shifted {
                base: options.uid_base,
                count: options.uid_count,
            },
            uid => Users::Single {
                uid,
                gid: getegid().as_raw(),
            },
        };
        let mut masked = options.masked_paths.clone();
        masked.extend(
            [
                &options.sandboxes_dir,
                &options.layers_dir,
                &options.snapshots_dir,
                &options.images_dir,
                &options.secrets_dir,
            ]
            .map(Clone::clone),
        );
        let hidden = hidden_paths(&masked);
        let plan = matches!(users, Users::Single { .. })
            .then(|| plan_folders(&hidden, &options.sandboxes_dir));
        let below = match &plan {
            None => Below::HostRoot { hidden },
            Some(plan) => Below::HostFolders {
                hidden,
                plan: plan.clone(),
            },
        };
        let dir = &options.sandboxes_dir;
        let image_skeleton = build_or_go_without(dir, &agentd, users, &Below::Image)?;
        let host_skeleton = build_or_go_without(dir, &agentd, users, &below)?;
        let cgroups = Cgroups::detect();
        let capabilities = capabilities(users, &cgroups);
        let live = Mutex::default();
        let store = Store::open(options.layers_dir.clone(), options.snapshots_dir.clone());
        let store = store.map_err(|source| ProbeError::Folder {
            path: options.snapshots_dir.clone(),
            source,
        })?;
        let criu = match (&options.criu, users) {
            (_, Users::Single { .. }) => {
                Err("processes of an ordinary user's sandbox cannot be kept".to_owned())
            }
            (None, _) => Err("CRIU is not installed (`make setup` brings it)".into()),
            (Some(program), _) => criu::usable(program).map(|()| program.clone()),
        };
        let mut engine = Self {
            options,
            users,
            cgroups,
            capabilities,
            image_skeleton,
            host_skeleton,
            plan,
            no_host_root: None,
            tried: false,
            live,
            store: Arc::new(store),
            criu,
            no_snapshots: None,
            standing: Mutex::default(),
            checked: Mutex::default(),
        };
        engine.sweep();
        engine.prove()?;
        engine.prove_snapshots();
        Ok(engine)
    }

    /// The skeleton and the lower file system of an image.
    pub(super) fn lower(&self, image: &ImageRef) -> Result<(String, Lower), CreateError> {
        self.with_skeleton(self.lower_of(image)?)
    }

    /// Refuses a skeleton for which there was no space when this engine was opened.
    pub(super) fn with_skeleton(
        &self,
        parts: (String, Lower),
    ) -> Result<(String, Lower), CreateError> {
        if self.options.sandboxes_dir.join(&parts.0).is_dir() {
            return Ok(parts);
        }
        let what = "the shared layer could not be made (free space, then start the daemon again)";
        let source = io::Error::from_raw_os_error(libc::ENOSPC);
        Err(os(CreateStage::Folder, what, source))
    }

    fn lower_of(&self, image: &ImageRef) -> Result<(String, Lower), CreateError> {
        let name = match image {
            ImageRef::HostRoot => return self.host_root(),
            ImageRef::Named(name) => name,
        };
        let path = self.options.images_dir.join(name.as_str()).join("rootfs");
        if path.is_dir() {
            return Ok((self.image_skeleton.clone(), Lower::Image(path)));
        }
        Err(CreateError {
            stage: CreateStage::Image,
            source: CreateFault::ImageMissing {
                name: name.clone(),
                path,
            },
            hint: Some("an image is a root file system's folder in <images>/<name>/rootfs".into()),
        })
    }

    pub(super) fn host_root(&self) -> Result<(String, Lower), CreateError> {
        if let Some(why) = &self.no_host_root {
            let source = io::Error::new(io::ErrorKind::Unsupported, why.clone());
            return Err(os(
                CreateStage::Image,
                "taking the host's root (use a named image)",
                source,
            ));
        }
        let lower = match &self.plan {
            Some(plan) => Lower::HostFolders(plan.grafts.clone()),
            None => Lower::HostRoot,
        };
        Ok((self.host_skeleton.clone(), lower))
    }

    /// The trees of layers.
    pub(super) fn trees(&self, layers: &[LayerRef]) -> Vec<PathBuf> {
        let tree = |layer: &LayerRef| self.store.layer_dir(layer.id).join(TREE);
        layers.iter().map(tree).collect()
    }

    pub(super) fn standing(&self) -> MutexGuard<'_, HashMap<SandboxId, Shared>> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory images whose content was checked in this daemon's life.
    pub(super) fn checked(&self) -> MutexGuard<'_, HashMap<SnapshotId, Checked>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the token of a guest daemon is kept whose memory a snapshot has.
    pub(super) fn token_of(&self, id: &SnapshotId) -> PathBuf {
        agents_dir(&self.options.secrets_dir).join(format!("{TOKEN_PREFIX}{id}"))
    }

    pub(super) fn folder(&self, id: &SandboxId) -> Folder {
        Folder::new(&self.options.sandboxes_dir, &self.options.secrets_dir, id)
    }

    pub(super) fn remains(&self, id: &SandboxId) -> Remains {
        Remains {
            id: *id,
            folder: self.folder(id),
            cgroups: self.cgroups.folders(id),
            process: self.live_process(id),
        }
    }

    /// The process of a sandbox that this engine already holds.
    pub(super) fn live_process(&self, id: &SandboxId) -> Option<Arc<Process>> {
        self.live
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .and_then(Weak::upgrade)
    }

    pub(super) fn hold(&self, id: SandboxId, process: &Arc<Process>) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|_, held| held.strong_count() > 0);
        live.insert(id, Arc::downgrade(process));
    }

    /// Every folder that bears a sandbox's name.
    pub(super) fn list(&self) -> io::Result<Vec<SandboxId>> {
        let mut found: BTreeSet<SandboxId> = BTreeSet::new();
        for entry in fs::read_dir(&self.options.sandboxes_dir)? {
            found.extend(
                entry?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<SandboxId>().ok()),
            );
        }
        Ok(found.into_iter().collect())
    }
}

/// Builds a skeleton. Without space for it there is only its name: what runs stands on skeletons of
/// its own, and can be deleted.
fn build_or_go_without(
    dir: &Path,
    agentd: &[u8],
    users: Users,
    below: &Below,
) -> Result<String, ProbeError> {
    match skeleton::build(dir, agentd, users, below) {
        Ok(name) => Ok(name),
        Err(error) if error.raw_os_error().is_some_and(means_out_of_space) => {
            tracing::warn!(%error, "a shared layer could not be made: going on without");
            Ok(skeleton::name(agentd, users, below))
        }
        Err(source) => Err(ProbeError::Folder {
            path: dir.to_owned(),
            source,
        }),
    }
}

fn program(what: &'static str, path: &Path, source: io::Error) -> ProbeError {
    ProbeError::Program {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Makes the folder unless it is there, and names it without links.
fn usable_folder(path: &Path) -> Result<PathBuf, ProbeError> {
    let failed = |source| ProbeError::Folder {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    match private_folder(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    fs::canonicalize(path).map_err(failed)
}
