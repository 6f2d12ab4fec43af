//! The living sandboxes that this daemon holds, by session.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;
use fluxvm_vmm::SandboxId;

/// The living sandboxes.
#[derive(Default)]
pub(crate) struct Sandboxes {
    by_session: Mutex<HashMap<SessionId, Arc<dyn Sandbox>>>,
    /// Those of them whose guest daemon has not answered since this daemon started.
    unheard: Mutex<HashSet<SandboxId>>,
}

impl Sandboxes {
    pub(crate) fn insert(&self, id: SessionId, sandbox: Arc<dyn Sandbox>) {
        self.lock().insert(id, sandbox);
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<Arc<dyn Sandbox>> {
        self.lock().get(&id).cloned()
    }

    /// Takes the sandbox out: whoever gets it is the one who ends it.
    pub(crate) fn take(&self, id: SessionId) -> Option<Arc<dyn Sandbox>> {
        self.lock().remove(&id)
    }

    /// Puts another sandbox in place of the session's. Answers the one that it replaces.
    pub(crate) fn replace(
        &self,
        id: SessionId,
        sandbox: Arc<dyn Sandbox>,
    ) -> Option<Arc<dyn Sandbox>> {
        self.lock().insert(id, sandbox)
    }

    /// Takes the sandbox out if it is still this one.
    pub(crate) fn take_this(&self, id: SessionId, sandbox: &SandboxId) -> Option<Arc<dyn Sandbox>> {
        let mut by_session = self.lock();
        by_session.get(&id).filter(|held| held.id() == sandbox)?;
        by_session.remove(&id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.lock().keys().copied().collect()
    }

    /// Takes note that a sandbox runs and its guest daemon does not answer, until [`Self::heard`].
    pub(crate) fn unheard(&self, sandbox: &SandboxId) {
        self.lock_unheard().insert(*sandbox);
    }

    pub(crate) fn heard(&self, sandbox: &SandboxId) {
        self.lock_unheard().remove(sandbox);
    }

    /// Whether a session has a sandbox whose guest daemon does not answer.
    pub(crate) fn is_unheard(&self, id: SessionId) -> bool {
        let held = self.get(id);
        held.is_some_and(|sandbox| self.lock_unheard().contains(sandbox.id()))
    }

    fn lock_unheard(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<dyn Sandbox>>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
