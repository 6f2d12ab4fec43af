//! Decisions on one session take turns.
//!
//! The ledger's expected versions already keep two decisions from both winning. Turns keep a burst of
//! commands from racing for the same stream over and over.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use fluxvm_projections::SessionId;
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::OwnedMutexGuard;

/// The turns of all things on which something is being done: sessions, unless said otherwise.
pub(crate) struct Turns<K = SessionId> {
    by_key: Mutex<HashMap<K, Arc<AsyncMutex<()>>>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self {
            by_key: Mutex::new(HashMap::new()),
        }
    }
}

impl<K: Copy + Eq + Hash> Turns<K> {
    /// Waits for this one's turn. It ends when the guard is dropped.
    pub(crate) async fn take(&self, id: K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
            // Whatever only the map holds is waited for by nobody.
            by_key.retain(|other, turn| *other == id || Arc::strong_count(turn) > 1);
            Arc::clone(by_key.entry(id).or_default())
        };
        turn.lock_owned().await
    }
}
