//! Decisions on one session take turns.
//!
//! The ledger's expected versions already keep two decisions from both winning. Turns keep a burst of
//! commands from racing for the same stream over and over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use fluxvm_projections::SessionId;
use tokio::sync::Mutex as AsyncMutex;
use tokio::sync::OwnedMutexGuard;

/// The turns of all sessions on which something is being decided.
#[derive(Default)]
pub(crate) struct Turns {
    by_session: Mutex<HashMap<SessionId, Arc<AsyncMutex<()>>>>,
}

impl Turns {
    /// Waits for this session's turn. It ends when the guard is dropped.
    pub(crate) async fn take(&self, id: SessionId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut by_session = self
                .by_session
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            // Whatever only the map holds is waited for by nobody.
            by_session.retain(|other, turn| *other == id || Arc::strong_count(turn) > 1);
            Arc::clone(by_session.entry(id).or_default())
        };
        turn.lock_owned().await
    }
}
