//! Making a sandbox from a snapshot: what is checked first, and what it is made on.

use std::sync::Arc;

use super::create::Basis;
use super::engine::Engine;
use crate::error::{ReviveError, SnapshotError};
use crate::layers::{Fold, LayerPath, Pin, SnapshotRecord};
use crate::snapshot::{Identity, Snapshot, SnapshotId};
use crate::spec::SandboxSpec;

/// Random bytes of a machine id.
const MACHINE_ID_BYTES: usize = 16;

/// A snapshot that may be used, and what a sandbox from it is made on.
pub(super) struct Prepared {
    pub(super) basis: Basis,
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
    let (skeleton, lower) = engine.lower(&spec.image)?;
    let basis = Basis {
        skeleton,
        lower,
        layers: record.chain.clone(),
        root: fold
            .paths
            .get(&LayerPath::root())
            .map(|found| found.entry.clone()),
        name_host: renewed || spec.hostname != record.hostname,
        machine_id: renewed.then(machine_id).transpose()?,
    };
    Ok(Prepared { basis, record, pin })
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
    record.chain.iter().try_for_each(|layer| {
        let checked = engine.store.verify(layer.id, attributes);
        checked.map_err(|detail| damaged(record.snapshot.id, detail))
    })
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
