//! What each sandbox stands on, and what its next capture is compared with.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::engine::Engine;
use super::record::Record;
use crate::error::SnapshotError;
use crate::layers::{Chain, Fold, LayerId, Store};
use crate::spec::SandboxId;

/// One sandbox's. Held for the whole of a capture: there is one at a time.
pub(super) struct Standing {
    pub(super) chain: Chain,
    /// The layers that the store holds for this sandbox.
    held: Vec<LayerId>,
    /// The sandbox's own layers as one. Read when it is first needed, and again after a failure.
    own: Option<Fold>,
}

/// Shared between a sandbox's captures and its removal.
pub(super) type Shared = Arc<Mutex<Standing>>;

impl Standing {
    /// Notes what a record says, so that none of it is collected.
    pub(super) fn of(record: &Record, store: &Store) -> Self {
        let held = record.layers();
        store.hold(&held);
        Self {
            chain: record.chain.clone(),
            held,
            own: None,
        }
    }

    /// The sandbox's own layers as one. Given back with [`Self::advance`]; lost otherwise, and then
    /// read anew.
    pub(super) fn take_own(&mut self, store: &Arc<Store>) -> Result<Fold, SnapshotError> {
        if let Some(own) = self.own.take() {
            return Ok(own);
        }
        let layers = self.chain.own.iter();
        let manifests = layers.map(|layer| store.load(layer.id).map(|l| Arc::clone(&l.manifest)));
        Ok(Fold::of(&manifests.collect::<Result<Vec<_>, _>>()?))
    }

    /// The next capture stands on this.
    pub(super) fn advance(&mut self, record: &Record, own: Fold, store: &Store) {
        let held = record.layers();
        store.hold(&held);
        store.release(&std::mem::replace(&mut self.held, held));
        self.chain = record.chain.clone();
        self.own = Some(own);
    }

    /// Nothing stands on anything any more.
    pub(super) fn leave(&mut self, store: &Store) {
        store.release(&std::mem::take(&mut self.held));
        self.own = None;
    }
}

impl Engine {
    /// Takes note of a sandbox that exists.
    pub(super) fn stands(&self, record: &Record) {
        let standing = Standing::of(record, &self.store);
        let before = self
            .standing()
            .insert(record.id, Arc::new(Mutex::new(standing)));
        if let Some(before) = before {
            self.leaves(&before);
        }
    }

    pub(super) fn standing_of(&self, id: &SandboxId) -> Option<Shared> {
        self.standing().get(id).map(Arc::clone)
    }

    /// A sandbox is gone: what only it stood on is collected.
    pub(super) fn fell(&self, id: &SandboxId) {
        let standing = self.standing().remove(id);
        if let Some(standing) = standing {
            self.leaves(&standing);
        }
    }

    fn leaves(&self, standing: &Shared) {
        match standing.try_lock() {
            Ok(mut standing) => standing.leave(&self.store),
            // A capture of it is just failing for want of the sandbox.
            Err(_) => {
                let (standing, store) = (Arc::clone(standing), Arc::clone(&self.store));
                let wait = move || standing.blocking_lock().leave(&store);
                drop(std::thread::Builder::new().spawn(wait));
            }
        }
    }
}
