//! Taking a snapshot of a running sandbox. Blocking: it runs on a thread that may wait.

use std::collections::HashSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::freeze::freeze;
use super::members;
use super::memory;
use super::process::Process;
use super::record::Record;
use super::standing::Standing;
use super::wire::{GRAFTS, UPPER, Users};
use crate::error::SnapshotError;
use crate::layers::{
    Attributes, Draft, Fold, Known, LayerPath, MemoryRecord, Owners, Pin, SnapshotRecord, Source,
    capture, compact, os, remove_later, times_tell_at,
};
use crate::snapshot::{ContentDigest, MemoryKept, Snapshot, SnapshotId};

/// The folder of a snapshot that is being put together. Dropping it removes it.
struct Putting {
    folder: PathBuf,
    kept: bool,
}

impl Putting {
    fn begin(folder: PathBuf) -> Result<Self, SnapshotError> {
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(os(|| format!("making {}", folder.display())))?;
        Ok(Self {
            folder,
            kept: false,
        })
    }
}

impl Drop for Putting {
    fn drop(&mut self) {
        if !self.kept {
            remove_later(vec![std::mem::take(&mut self.folder)]);
        }
    }
}

/// What is to become of the processes.
pub(super) enum Plan {
    /// Nothing of them is kept, for this reason.
    Leave(MemoryKept),
    /// They are kept, or there is no snapshot.
    Insist,
    /// They are kept where that can be done.
    Try,
}

/// What was captured while the sandbox stood still.
struct Taken {
    captured: Captured,
    kept: MemoryKept,
    memory: Option<MemoryRecord>,
}

/// Captures a sandbox. On failure the sandbox runs on and nothing is left.
pub(super) fn take(
    engine: &Engine,
    process: &Process,
    record: &mut Record,
    standing: &mut Standing,
    id: SnapshotId,
    plan: Plan,
) -> Result<Snapshot, SnapshotError> {
    if let Some(why) = &engine.no_snapshots {
        return Err(SnapshotError::Unsupported(why.clone()));
    }
    engine.store.free(&id)?;
    let mut putting = Putting::begin(engine.store.snapshot_draft(&id))?;
    let mut own = standing.take_own(&engine.store)?;
    let taken = memory_and_disk(engine, process, record, &own, &putting, plan)?;
    if !process.alive() {
        return Err(SnapshotError::SandboxGone);
    }
    let Captured { draft, pause } = taken.captured;
    let kept = keep(engine, record, &mut own, draft)?;
    let memory_bytes = match &taken.kept {
        MemoryKept::Kept { bytes, .. } => *bytes,
        _ => 0,
    };
    let snapshot = Snapshot {
        id,
        memory: taken.kept,
        disk: kept.disk,
        stored_paths: kept.stored_paths,
        stored_bytes: kept.stored_bytes.saturating_add(memory_bytes),
        layers: u32::try_from(record.chain.all().len()).unwrap_or(u32::MAX),
        pause,
    };
    let written = SnapshotRecord {
        format: SnapshotRecord::format(),
        snapshot: snapshot.clone(),
        image: record.image.clone(),
        uid_base: record.uid_base,
        hostname: record.hostname.clone(),
        chain: record.chain.all(),
        memory: taken.memory,
    };
    if written.memory.is_some() {
        let token = engine.folder(&record.id).keep_token(&engine.token_of(&id));
        token.map_err(os(|| "keeping the guest daemon's token".to_owned()))?;
    }
    engine.store.publish_snapshot(&putting.folder, written)?;
    putting.kept = true;
    // Should the record not be written, the next daemon compares with the capture before: it stores
    // more than it had to, and nothing wrong.
    if let Err(error) = record.write(&engine.folder(&record.id).path) {
        tracing::warn!(%error, id = %record.id, "the record of a sandbox could not be renewed");
    }
    standing.advance(record, own, &engine.store);
    Ok(snapshot)
}

/// Captures the disk, and the processes where that is planned and can be done.
fn memory_and_disk(
    engine: &Engine,
    process: &Process,
    record: &Record,
    own: &Fold,
    putting: &Putting,
    plan: Plan,
) -> Result<Taken, SnapshotError> {
    let draft = || engine.store.draft(engine.owners(), engine.attributes());
    let insist = matches!(plan, Plan::Insist);
    let kept = match plan {
        Plan::Leave(kept) => kept,
        Plan::Insist | Plan::Try => {
            let began = Instant::now();
            let folder = &putting.folder;
            let dumped = memory::dump(engine, process, record, folder, || {
                let mut draft = draft()?;
                capture_all(engine, process, record, own, &mut draft)?;
                Ok(draft)
            })?;
            match dumped {
                Ok((draft, memory)) => {
                    let (bytes, digest) = memory::total(&memory);
                    let images = putting.folder.join(memory::IMAGES);
                    let pause = memory::pause(&images).unwrap_or_else(|| began.elapsed());
                    return Ok(Taken {
                        captured: Captured { draft, pause },
                        kept: MemoryKept::Kept { bytes, digest },
                        memory: Some(memory),
                    });
                }
                Err(reason) if insist => return Err(SnapshotError::Memory(reason)),
                Err(reason) => MemoryKept::Impossible { reason },
            }
        }
    };
    Ok(Taken {
        captured: stand_still_for(engine, process, record, own, draft()?)?,
        kept,
        memory: None,
    })
}

struct Captured {
    draft: Draft,
    pause: Duration,
}

/// The part for which the sandbox stands still.
fn stand_still_for(
    engine: &Engine,
    process: &Process,
    record: &Record,
    own: &Fold,
    mut draft: Draft,
) -> Result<Captured, SnapshotError> {
    let started = Instant::now();
    let frozen = match freeze(&record.cgroups) {
        Ok(frozen) => frozen,
        Err(_) if !process.alive() => return Err(SnapshotError::SandboxGone),
        Err(error) => return Err(os(|| "having the sandbox stand still".to_owned())(error)),
    };
    capture_all(engine, process, record, own, &mut draft)?;
    let pause = match frozen {
        Some(frozen) => {
            drop(frozen);
            started.elapsed()
        }
        None => Duration::ZERO,
    };
    Ok(Captured { draft, pause })
}

/// Puts what changed of the disk into a draft. Nothing inside runs meanwhile, where that can be had.
fn capture_all(
    engine: &Engine,
    process: &Process,
    record: &Record,
    own: &Fold,
    draft: &mut Draft,
) -> Result<(), SnapshotError> {
    let sources = sources(engine, record);
    let times_tell = sources
        .first()
        .is_some_and(|source| times_tell_at(&source.folder));
    let mapped = mapped(process, record, &sources)?;
    let known = Known {
        own,
        mapped: &mapped,
        times_tell,
        attributes: engine.attributes(),
    };
    capture(&sources, known, draft)
}

/// The folders in which a sandbox's changes lie.
fn sources(engine: &Engine, record: &Record) -> Vec<Source> {
    let folder = engine.folder(&record.id).path;
    let root = Source {
        folder: folder.join(UPPER),
        at: LayerPath::root(),
    };
    let grafts = record
        .grafts
        .iter()
        .enumerate()
        .map(|(number, graft)| Source {
            folder: folder.join(format!("{GRAFTS}/{number}/upper")),
            at: LayerPath::from(graft.to_string_lossy().as_ref()),
        });
    std::iter::once(root).chain(grafts).collect()
}

/// Files that programs can change through a mapping. Their pages are written out, so that the next
/// change through one shows in the time of change.
fn mapped(
    process: &Process,
    record: &Record,
    sources: &[Source],
) -> Result<HashSet<LayerPath>, SnapshotError> {
    let pids = match members::of(process.pid, &record.cgroups) {
        Ok(pids) => pids,
        Err(_) if !process.alive() => return Err(SnapshotError::SandboxGone),
        Err(error) => return Err(os(|| "looking at its processes".to_owned())(error)),
    };
    let mapped = members::mapped_files(&pids);
    for path in &mapped {
        for source in sources {
            write_out(source, path);
        }
    }
    Ok(mapped)
}

/// A file that is not there, or cannot be opened, is compared by content anyway.
fn write_out(source: &Source, path: &LayerPath) {
    use crate::layers::{Tree, write_back_mapped};
    let file = Tree::open(&source.folder).ok().and_then(|tree| {
        let inside = path.below(&source.at)?;
        tree.file(&LayerPath::from(inside)).ok()
    });
    if let Some(file) = file
        && let Err(error) = write_back_mapped(&file)
    {
        tracing::debug!(%error, %path, "a mapped file could not be written out");
    }
}

/// What was kept of the disk.
struct Kept {
    disk: ContentDigest,
    stored_paths: u64,
    stored_bytes: u64,
    _pins: Vec<Pin>,
}

/// Makes the layer, and a record whose chain ends with it.
fn keep(
    engine: &Engine,
    record: &mut Record,
    own: &mut Fold,
    draft: Draft,
) -> Result<Kept, SnapshotError> {
    let mut pins = Vec::new();
    let (mut stored_paths, mut stored_bytes) = (0, 0);
    if draft.paths().next().is_some() {
        let published = engine.store.publish(draft)?;
        own.put_over(&published.manifest);
        record.chain.own.push(published.layer);
        (stored_paths, stored_bytes) = (published.layer.paths, published.stored_bytes);
        pins.push(published.pin);
    }
    let (owners, attributes) = (engine.owners(), engine.attributes());
    for part in [&mut record.chain.base, &mut record.chain.own] {
        pins.extend(compact(&engine.store, part, owners, attributes)?);
    }
    let disk = match record.chain.base.is_empty() {
        true => own.digest(engine.owner_base()),
        false => whole(engine, record)?.digest(engine.owner_base()),
    };
    Ok(Kept {
        disk,
        stored_paths,
        stored_bytes,
        _pins: pins,
    })
}

/// Everything that a sandbox has captured and was made from.
fn whole(engine: &Engine, record: &Record) -> Result<Fold, SnapshotError> {
    let layers = record.chain.all();
    let manifests = layers.iter().map(|layer| {
        let loaded = engine.store.load(layer.id)?;
        Ok(Arc::clone(&loaded.manifest))
    });
    Ok(Fold::of(
        &manifests.collect::<Result<Vec<_>, SnapshotError>>()?,
    ))
}

impl Engine {
    /// Whom the files of layers belong to.
    pub(super) fn owners(&self) -> Owners {
        match self.users {
            Users::Shifted { base, .. } => Owners::Range { base },
            Users::Single { uid, gid } => Owners::Daemon { uid, gid },
        }
    }

    /// Where overlays keep their own attributes here.
    pub(super) fn attributes(&self) -> Attributes {
        match self.users {
            Users::Shifted { .. } => Attributes::Trusted,
            Users::Single { .. } => Attributes::User,
        }
    }

    /// The host's id of root inside.
    pub(super) fn owner_base(&self) -> u32 {
        match self.users {
            Users::Shifted { base, .. } => base,
            Users::Single { uid, .. } => uid,
        }
    }
}
