//! The folders of layers and snapshots, and who stands on what.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::draft::{Draft, Owners};
use super::manifest::Manifest;
use super::record::SnapshotRecord;
use super::tree::Tree;
use super::verify::{self, Signature};
use super::xattr::Attributes;
use super::{LayerId, LayerRef, MANIFEST, TREE, os, remove_tree, sync};
use crate::error::SnapshotError;
use crate::snapshot::SnapshotId;

/// What is being made or removed begins with this.
const HIDDEN: &str = ".";
/// Paths of manifests kept in memory: some hundred bytes each.
const CACHED_PATHS_MAX: usize = 200_000;

/// A layer's manifest in memory, and how the layer looked when it was last found whole.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) manifest: Arc<Manifest>,
    signature: Mutex<Option<Signature>>,
}

#[derive(Default)]
struct Inner {
    /// How many records and pins stand on each layer.
    uses: HashMap<LayerId, usize>,
    snapshots: HashMap<SnapshotId, Arc<SnapshotRecord>>,
    cache: VecDeque<(LayerId, Arc<Loaded>)>,
    /// Something on disk could not be read: nothing is collected, for it may stand on anything.
    blind: bool,
}

/// The layers and snapshots of one engine.
pub(crate) struct Store {
    layers_dir: PathBuf,
    snapshots_dir: PathBuf,
    inner: Mutex<Inner>,
}

/// A fresh layer.
pub(crate) struct Published {
    pub(crate) layer: LayerRef,
    pub(crate) manifest: Arc<Manifest>,
    /// Bytes that it had to store.
    pub(crate) stored_bytes: u64,
    pub(crate) pin: Pin,
}

/// Keeps layers from being collected.
pub(crate) struct Pin {
    store: Arc<Store>,
    layers: Vec<LayerId>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.release(&self.layers);
    }
}

impl Store {
    /// Opens the folders, reads every record and removes what was half made.
    pub(crate) fn open(layers_dir: PathBuf, snapshots_dir: PathBuf) -> io::Result<Self> {
        let mut inner = Inner::default();
        for entry in fs::read_dir(&snapshots_dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match SnapshotRecord::read(&entry.path()) {
                Ok(record) => {
                    for layer in &record.chain {
                        *inner.uses.entry(layer.id).or_default() += 1;
                    }
                    inner.snapshots.insert(id, Arc::new(record));
                }
                Err(error) => {
                    tracing::warn!(%id, %error, "the record of a snapshot cannot be read");
                    inner.blind = true;
                }
            }
        }
        Ok(Self {
            layers_dir,
            snapshots_dir,
            inner: Mutex::new(inner),
        })
    }

    /// What no record stands on, once all sandboxes have said what they stand on, and what was half
    /// made. The caller removes it.
    pub(crate) fn leftovers(&self) -> io::Result<Vec<PathBuf>> {
        let inner = self.inner();
        let mut left = Vec::new();
        for dir in [&self.layers_dir, &self.snapshots_dir] {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let unused = |id: LayerId| !inner.blind && !inner.uses.contains_key(&id);
                let layer = dir == &self.layers_dir && name.parse().is_ok_and(unused);
                if name.starts_with(HIDDEN) || layer {
                    left.push(entry.path());
                }
            }
        }
        Ok(left)
    }

    /// Skeletons that memory images need.
    pub(crate) fn skeletons(&self) -> Vec<String> {
        let inner = self.inner();
        let memory = inner
            .snapshots
            .values()
            .filter_map(|record| record.memory.as_ref());
        memory.map(|memory| memory.skeleton.clone()).collect()
    }

    /// A sandbox's record could not be read.
    pub(crate) fn be_careful(&self) {
        self.inner().blind = true;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn layer_dir(&self, id: LayerId) -> PathBuf {
        self.layers_dir.join(id.to_string())
    }

    pub(crate) fn snapshot_dir(&self, id: &SnapshotId) -> PathBuf {
        self.snapshots_dir.join(id.to_string())
    }

    /// Notes that something stands on these layers.
    pub(crate) fn hold(&self, layers: &[LayerId]) {
        let mut inner = self.inner();
        for layer in layers {
            *inner.uses.entry(*layer).or_default() += 1;
        }
    }

    /// The same, until the pin is dropped.
    pub(crate) fn pin(self: &Arc<Self>, layers: Vec<LayerId>) -> Pin {
        self.hold(&layers);
        Pin {
            store: Arc::clone(self),
            layers,
        }
    }

    /// Notes that something no longer stands on these layers, and collects those on which nothing
    /// does.
    pub(crate) fn release(&self, layers: &[LayerId]) {
        let mut unused = Vec::new();
        {
            let mut inner = self.inner();
            for layer in layers {
                let Some(uses) = inner.uses.get_mut(layer) else {
                    continue;
                };
                *uses -= 1;
                if *uses == 0 {
                    inner.uses.remove(layer);
                    unused.push(*layer);
                }
            }
            if inner.blind {
                return;
            }
            let gone: HashSet<LayerId> = unused.iter().copied().collect();
            inner.cache.retain(|(id, _)| !gone.contains(id));
        }
        let hidden = unused.iter().filter_map(|layer| {
            let trash = self.layers_dir.join(format!("{HIDDEN}trash-{layer}"));
            fs::rename(self.layer_dir(*layer), &trash)
                .ok()
                .map(|()| trash)
        });
        remove_later(hidden.collect());
    }

    /// A layer to be filled.
    pub(crate) fn draft(
        &self,
        owners: Owners,
        attributes: Attributes,
    ) -> Result<Draft, SnapshotError> {
        let dir = self
            .layers_dir
            .join(format!("{HIDDEN}new-{}", LayerId::random()));
        Draft::create(&dir, owners, attributes)
    }

    /// Finishes a layer and gives it its name. Nobody but the pin stands on it yet.
    pub(crate) fn publish(self: &Arc<Self>, draft: Draft) -> Result<Published, SnapshotError> {
        let (draft, finished) = draft.finish()?;
        let id = LayerId::random();
        let manifest = Arc::new(finished.manifest);
        let paths = u64::try_from(manifest.entries.len()).unwrap_or(u64::MAX);
        let pin = self.pin(vec![id]);
        draft.publish(&self.layer_dir(id))?;
        let loaded = Loaded {
            manifest: Arc::clone(&manifest),
            signature: Mutex::default(),
        };
        self.remember(id, Arc::new(loaded));
        Ok(Published {
            layer: LayerRef { id, paths },
            manifest,
            stored_bytes: finished.stored_bytes,
            pin,
        })
    }

    /// The manifest of a layer.
    pub(crate) fn load(&self, id: LayerId) -> Result<Arc<Loaded>, SnapshotError> {
        let cached = {
            let inner = self.inner();
            let mut cache = inner.cache.iter();
            cache
                .find(|(held, _)| *held == id)
                .map(|(_, loaded)| Arc::clone(loaded))
        };
        if let Some(loaded) = cached {
            return Ok(loaded);
        }
        let path = self.layer_dir(id).join(MANIFEST);
        let manifest =
            Manifest::read(&path).map_err(os(|| format!("reading {}", path.display())))?;
        let loaded = Arc::new(Loaded {
            manifest: Arc::new(manifest),
            signature: Mutex::default(),
        });
        self.remember(id, Arc::clone(&loaded));
        Ok(loaded)
    }

    fn remember(&self, id: LayerId, loaded: Arc<Loaded>) {
        let mut inner = self.inner();
        inner.cache.push_back((id, loaded));
        let paths = |cache: &VecDeque<(LayerId, Arc<Loaded>)>| -> usize {
            cache
                .iter()
                .map(|(_, l)| l.manifest.entries.len() + 1)
                .sum()
        };
        while inner.cache.len() > 1 && paths(&inner.cache) > CACHED_PATHS_MAX {
            inner.cache.pop_front();
        }
    }

    /// Checks that a layer still is what was captured. An error is a sentence.
    pub(crate) fn verify(&self, id: LayerId, attributes: Attributes) -> Result<(), String> {
        let loaded = self.load(id).map_err(|error| error.to_string())?;
        let tree = Tree::open(&self.layer_dir(id).join(TREE)).map_err(|error| error.to_string())?;
        let held = || {
            loaded
                .signature
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let before = held().clone();
        let signature = verify::check(&tree, &loaded.manifest, attributes, before.as_ref())?;
        *held() = Some(signature);
        Ok(())
    }

    /// The record of a snapshot.
    pub(crate) fn snapshot(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>, SnapshotError> {
        if let Some(record) = self.inner().snapshots.get(id) {
            return Ok(Arc::clone(record));
        }
        match self.snapshot_dir(id).symlink_metadata() {
            Ok(_) => Err(SnapshotError::Damaged {
                id: *id,
                detail: "its record cannot be read".to_owned(),
            }),
            Err(_) => Err(SnapshotError::Missing(*id)),
        }
    }

    /// The record of a snapshot, with its layers kept from being collected.
    pub(crate) fn pinned(
        self: &Arc<Self>,
        id: &SnapshotId,
    ) -> Result<(Arc<SnapshotRecord>, Pin), SnapshotError> {
        let record = self.snapshot(id)?;
        let pin = self.pin(record.chain.iter().map(|layer| layer.id).collect());
        // Whoever removed it meanwhile may have collected its layers before the pin.
        self.snapshot(id).map(|record| (record, pin))
    }

    /// Whether nothing bears that id.
    pub(crate) fn free(&self, id: &SnapshotId) -> Result<(), SnapshotError> {
        match self.snapshot_dir(id).symlink_metadata() {
            Ok(_) => Err(SnapshotError::AlreadyExists(*id)),
            Err(_) => Ok(()),
        }
    }

    /// A folder in which a snapshot is put together. Removed by whoever made it, or at the next
    /// start.
    pub(crate) fn snapshot_draft(&self, id: &SnapshotId) -> PathBuf {
        self.snapshots_dir.join(format!("{HIDDEN}new-{id}"))
    }

    /// The snapshot gets its name, and with its layers becomes durable.
    pub(crate) fn publish_snapshot(
        &self,
        draft: &Path,
        record: SnapshotRecord,
    ) -> Result<(), SnapshotError> {
        let id = record.snapshot.id;
        let what = || format!("writing the record of snapshot {id}");
        record.write(draft).map_err(os(what))?;
        match fs::rename(draft, self.snapshot_dir(&id)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                return Err(SnapshotError::AlreadyExists(id));
            }
            other => other.map_err(os(what))?,
        }
        let layers: Vec<LayerId> = record.chain.iter().map(|layer| layer.id).collect();
        self.hold(&layers);
        self.inner().snapshots.insert(id, Arc::new(record));
        let synced =
            sync::folder(&self.layers_dir).and_then(|()| sync::folder(&self.snapshots_dir));
        synced.map_err(|source| {
            // What may not be there after a loss of power was not taken.
            let _ = self.remove_snapshot(&id);
            os(what)(source)
        })
    }

    /// Every snapshot of which anything is on disk.
    pub(crate) fn list(&self) -> io::Result<Vec<SnapshotId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.snapshots_dir)? {
            let name = entry?.file_name();
            found.extend(
                name.to_str()
                    .and_then(|name| name.parse::<SnapshotId>().ok()),
            );
        }
        found.sort();
        Ok(found)
    }

    /// Forgets a snapshot, and collects the layers that only it needed.
    pub(crate) fn remove_snapshot(&self, id: &SnapshotId) -> io::Result<bool> {
        let trash = self
            .snapshots_dir
            .join(format!("{HIDDEN}trash-{}", LayerId::random()));
        match fs::rename(self.snapshot_dir(id), &trash) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        let record = self.inner().snapshots.remove(id);
        if let Some(record) = record {
            let layers: Vec<LayerId> = record.chain.iter().map(|layer| layer.id).collect();
            self.release(&layers);
        }
        remove_later(vec![trash]);
        Ok(true)
    }
}

/// Removes folders that nobody sees any more on a thread that may take its time.
pub(crate) fn remove_later(paths: Vec<PathBuf>) {
    if paths.is_empty() {
        return;
    }
    let work = move || {
        for path in &paths {
            if let Err(error) = remove_tree(path) {
                tracing::warn!(%error, path = %path.display(), "a leftover is not removed yet");
            }
        }
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}
