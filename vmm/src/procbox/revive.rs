//! Making a sandbox from a snapshot: what is checked first, and what it is made on.

use std::path::PathBuf;
use std::sync::Arc;

use agentd_client::protocol::IdentityState;

use super::arrival::{self, Arrival};
use super::create::{Back, Basis};
use super::engine::Engine;
use super::folder::read_token;
use super::memory;
use super::record::boot_id;
use super::view;
use super::wire::MemoryRequest;
use crate::error::{CreateError, CreateStage, ReviveError, SnapshotError};
use crate::layers::{Fold, LayerPath, MemoryRecord, Pin, SnapshotRecord};
use crate::snapshot::{Identity, MemoryKept, RevivalReport, Snapshot, SnapshotId};
use crate::spec::SandboxSpec;

/// Random bytes of a machine id.
const MACHINE_ID_BYTES: usize = 16;

/// A snapshot that may be used, and what a sandbox from it is made on.
pub(super) struct Prepared {
    pub(super) basis: Basis,
    pub(super) arrival: Arrival,
    pub(super) record: Arc<SnapshotRecord>,
    /// Nothing of it is collected meanwhile.
    pub(super) pin: Pin,
}

/// Finds a snapshot and holds its list of paths against the digest that was given out for it. What
/// the paths hold is checked by [`verify`], which takes longer.
pub(super) fn prepare(
    engine: &Engine,
    spec: &SandboxSpec,
    snapshot: &Snapshot,
    identity: Identity,
) -> Result<Prepared, ReviveError> {
    let (record, pin) = engine.store.pinned(&snapshot.id)?;
    if record.image != spec.image {
        let (was, is) = (&record.image, &spec.image);
        let what = format!("it was taken of a sandbox made from {was}, not from {is}");
        return Err(SnapshotError::Unsupported(what).into());
    }
    if record.uid_base != engine.uid_base() {
        let what = "it was taken of a sandbox whose users were others of the host's".to_owned();
        return Err(SnapshotError::Unsupported(what).into());
    }
    let fold = fold(engine, &record)?;
    if fold.digest(engine.owner_base()) != snapshot.disk {
        let detail = "its list of paths has another digest".to_owned();
        return Err(damaged(snapshot.id, detail).into());
    }
    let renewed = identity != Identity::Keep;
    let (mut skeleton, lower) = engine.lower(&spec.image)?;
    let memory = back(engine, &record, snapshot)?;
    if let Some((_, kept)) = &memory {
        // The guest daemon that comes back is the program that it was.
        skeleton.clone_from(&kept.skeleton);
    }
    let fresh = memory.is_none();
    let arrival = match (&memory, renewed) {
        (None, _) => Arrival::Fresh,
        (Some(_), true) => Arrival::Back { machine_id: None },
        (Some(_), false) => Arrival::Back {
            machine_id: view::machine_id(engine, &record)?,
        },
    };
    let basis = Basis {
        skeleton,
        lower,
        layers: record.chain.clone(),
        root: fold
            .paths
            .get(&LayerPath::root())
            .map(|found| found.entry.clone()),
        // A guest daemon that comes back writes both itself.
        name_host: fresh && (renewed || spec.hostname != record.hostname),
        machine_id: (fresh && renewed).then(machine_id).transpose()?,
        memory: memory.map(|(back, _)| back),
    };
    Ok(Prepared {
        basis,
        arrival,
        record,
        pin,
    })
}

/// What brings the processes of a snapshot back, where it has any that can come back. After the
/// machine was started anew they cannot: their clocks and kernel are of another boot, and a fresh
/// guest daemon on the captured disk is what there is.
fn back<'a>(
    engine: &Engine,
    record: &'a SnapshotRecord,
    snapshot: &Snapshot,
) -> Result<Option<(Back, &'a MemoryRecord)>, ReviveError> {
    let Some(kept) = &record.memory else {
        return Ok(None);
    };
    let id = snapshot.id;
    let impossible = |reason: String| ReviveError::Memory { id, reason };
    if boot_id().map_err(|error| impossible(error.to_string()))? != kept.boot_id {
        return Ok(None);
    }
    let criu = engine.criu.clone().map_err(impossible)?;
    let (bytes, digest) = memory::total(kept);
    if snapshot.memory != (MemoryKept::Kept { bytes, digest }) {
        let detail = "its list of memory images has another digest".to_owned();
        return Err(damaged(id, detail).into());
    }
    if !engine.options.sandboxes_dir.join(&kept.skeleton).is_dir() {
        return Err(impossible("its guest daemon's program is gone".to_owned()));
    }
    let token = read_token(&engine.token_of(&id))
        .map_err(|error| impossible(format!("its guest daemon's token: {error}")))?;
    let request = MemoryRequest {
        criu,
        cache: engine.criu_cache(),
        images: images(engine, record),
        log: kept.log.clone(),
        mapped: kept.mapped.clone(),
    };
    Ok(Some((Back { request, token }, kept)))
}

fn images(engine: &Engine, record: &SnapshotRecord) -> PathBuf {
    engine
        .store
        .snapshot_dir(&record.snapshot.id)
        .join(memory::IMAGES)
}

/// The layers of a snapshot as one.
pub(super) fn fold(engine: &Engine, record: &SnapshotRecord) -> Result<Fold, SnapshotError> {
    let id = record.snapshot.id;
    let manifests = record.chain.iter().map(|layer| {
        let loaded = engine.store.load(layer.id);
        loaded
            .map(|loaded| Arc::clone(&loaded.manifest))
            .map_err(|error| damaged(id, error.to_string()))
    });
    Ok(Fold::of(&manifests.collect::<Result<Vec<_>, _>>()?))
}

/// Checks that every stored path of a snapshot is what was captured.
pub(super) fn verify(engine: &Engine, record: &SnapshotRecord) -> Result<(), SnapshotError> {
    let attributes = engine.attributes();
    let id = record.snapshot.id;
    if let Some(kept) = &record.memory {
        let before = engine.checked().get(&id).cloned();
        let checked = memory::verify(&images(engine, record), kept, before.as_ref());
        let checked = checked.map_err(|detail| damaged(id, detail))?;
        engine.checked().insert(id, checked);
    }
    record.chain.iter().try_for_each(|layer| {
        let checked = engine.store.verify(layer.id, attributes);
        checked.map_err(|detail| damaged(record.snapshot.id, detail))
    })
}

/// A failure of the step that brings processes back is one of its own.
pub(super) fn explain(id: SnapshotId, error: CreateError) -> ReviveError {
    if error.stage == CreateStage::Memory && !error.is_out_of_space() {
        let reason = error.to_string();
        return ReviveError::Memory { id, reason };
    }
    error.into()
}

/// What became of a snapshot's content. `state` is the answer of a guest daemon that came back.
pub(super) fn report(
    state: Option<&IdentityState>,
    record: &SnapshotRecord,
    identity: Identity,
) -> RevivalReport {
    let Some(state) = state else {
        return RevivalReport {
            identity_renewed: identity != Identity::Keep,
            ..RevivalReport::default()
        };
    };
    let memory = record.memory.as_ref();
    RevivalReport {
        unconfined: memory.map(|kept| kept.confined.clone()).unwrap_or_default(),
        ..arrival::report(state, identity)
    }
}

pub(super) fn damaged(id: SnapshotId, detail: String) -> SnapshotError {
    SnapshotError::Damaged { id, detail }
}

fn machine_id() -> Result<String, ReviveError> {
    let mut bytes = [0_u8; MACHINE_ID_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| ReviveError::Identity(error.to_string()))?;
    Ok(hex::encode(bytes))
}

impl Engine {
    /// What a record says of the users of a sandbox.
    pub(super) fn uid_base(&self) -> Option<u32> {
        match self.users {
            super::wire::Users::Shifted { base, .. } => Some(base),
            super::wire::Users::Single { .. } => None,
        }
    }
}
