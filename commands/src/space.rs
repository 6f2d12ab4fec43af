//! Room on the disk that the state folder is on.
//!
//! A ledger that meets a full disk is finished: a write that failed is never tried again, and the daemon
//! ends. So room is kept for it. New work is refused while there is less than the reserve, and whoever
//! already runs is watched: where half of the reserve is gone too, the ballast is given up, which leaves
//! room for what is still to be recorded, and the session that grew most since room got short loses
//! its sandbox, as the kernel ends a process when memory is out.
//!
//! What remains: a guest that writes the last half of the reserve between two looks is faster than this,
//! and a program outside of all sandboxes is nobody's to end.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fluxvm_projections::SandboxId;
use fluxvm_projections::SessionId;

use crate::engine::Inner;
use crate::error::CommandError;

/// The most that is kept free, in bytes: outcomes of all that may run at once, and a store that is copied
/// before it is opened, fit into it on any ordinary ledger.
pub const RESERVE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The part of a small disk that is kept free: one in so many.
const RESERVE_PART: u64 = 20;
/// What a session must have grown by since room got short to be the one that fills the disk, in bytes.
const GROWTH_BYTES_MIN: u64 = 1024 * 1024;
/// How often is looked while there is plenty of room.
const LOOK_PLENTY: Duration = Duration::from_millis(500);
/// How often when there is not: at 2 GB/s half of the largest reserve is 64 ms.
const LOOK_NEAR: Duration = Duration::from_millis(20);

/// How much room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What may still be written, in bytes, less what the ballast lacks.
    pub free_bytes: u64,
    /// The size of the whole disk, in bytes.
    pub total_bytes: u64,
}

impl Room {
    /// What is kept free.
    #[must_use]
    pub fn reserve_bytes(&self) -> u64 {
        RESERVE_BYTES_MAX.min(self.total_bytes / RESERVE_PART)
    }

    fn is_short(&self) -> bool {
        self.free_bytes < self.reserve_bytes()
    }

    fn is_critical(&self) -> bool {
        self.free_bytes < self.reserve_bytes() / 2
    }

    /// So little more than the reserve that it is worth looking often.
    fn is_near(&self) -> bool {
        self.free_bytes < self.reserve_bytes().saturating_mul(4)
    }
}

/// The disk that the state folder is on. Each call is quick, except [`Space::used_by`].
pub trait Space: Send + Sync {
    /// How much room there is.
    ///
    /// # Errors
    ///
    /// When the system does not say.
    fn room(&self) -> io::Result<Room>;

    /// How much of it a sandbox takes, in bytes. Reads its folders.
    fn used_by(&self, sandbox: SandboxId) -> u64;

    /// Gives the ballast up, so that what must be recorded has room.
    fn give_up_ballast(&self);

    /// Takes ballast again, where there is room for it.
    fn take_ballast(&self);
}

impl Inner {
    /// Refuses what would need room while the reserve is not there.
    pub(crate) fn check_room(&self) -> Result<(), CommandError> {
        match self.space.room() {
            Ok(room) if room.is_short() => Err(CommandError::InsufficientStorage {
                free_mib: room.free_bytes >> 20,
                reserve_mib: room.reserve_bytes() >> 20,
            }),
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "it is not known how much room there is");
                Ok(())
            }
        }
    }
}

/// Watches until the engine ends.
pub(crate) fn spawn_watcher(inner: &Arc<Inner>) {
    let inner = Arc::clone(inner);
    let mut stopping = inner.stopping();
    tokio::spawn(async move {
        inner.space.take_ballast();
        let mut first = BTreeMap::new();
        let mut pause = LOOK_PLENTY;
        loop {
            tokio::select! {
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return,
                () = next_look(&inner, pause) => {}
            }
            pause = look(&inner, &mut first).await;
        }
    });
}

/// Without a sandbox there is nobody to watch.
async fn next_look(inner: &Inner, pause: Duration) {
    if inner.sandboxes.is_empty() {
        inner.sandbox_made.notified().await;
    }
    tokio::time::sleep(pause).await;
}

/// Looks once, does what is to be done, and says when to look again.
async fn look(inner: &Arc<Inner>, first: &mut BTreeMap<SessionId, u64>) -> Duration {
    let Ok(room) = inner.space.room() else {
        return LOOK_PLENTY;
    };
    if !room.is_near() {
        first.clear();
        inner.space.take_ballast();
        return LOOK_PLENTY;
    }
    if room.is_critical() {
        inner.space.give_up_ballast();
    }
    if room.free_bytes < room.reserve_bytes().saturating_mul(2) {
        let now = measure(inner).await;
        let grown = grown_most(first, &now);
        for (id, bytes) in now {
            first.entry(id).or_insert(bytes);
        }
        if let Some(id) = grown.filter(|_| room.is_critical()) {
            end(inner, id).await;
            first.remove(&id);
        }
    }
    LOOK_NEAR
}

/// How much each living sandbox takes.
async fn measure(inner: &Arc<Inner>) -> BTreeMap<SessionId, u64> {
    let sandboxes: Vec<(SessionId, SandboxId)> = {
        let world = inner.book.world();
        let alive = inner.sandboxes.sessions().into_iter();
        let known = alive.filter_map(|id| Some((id, world.sessions.get(id)?.sandbox_id)));
        known.collect()
    };
    let space = Arc::clone(&inner.space);
    let measured = tokio::task::spawn_blocking(move || {
        let sizes = sandboxes.into_iter();
        sizes
            .map(|(id, sandbox)| (id, space.used_by(sandbox)))
            .collect()
    });
    measured.await.unwrap_or_default()
}

/// The session that grew most since it was first looked at, if one grew so much that it matters. Pure.
fn grown_most(
    before: &BTreeMap<SessionId, u64>,
    now: &BTreeMap<SessionId, u64>,
) -> Option<SessionId> {
    let grown = now.iter().filter_map(|(id, bytes)| {
        let growth = bytes.saturating_sub(*before.get(id)?);
        (growth >= GROWTH_BYTES_MIN).then_some((growth, *id))
    });
    grown.max().map(|(_, id)| id)
}

/// Ends a session's sandbox and gives its room back.
async fn end(inner: &Arc<Inner>, id: SessionId) {
    let Some(sandbox) = inner.sandboxes.take(id) else {
        return;
    };
    tracing::error!(session = %id, "a session fills the disk; its sandbox is ended");
    let reason = "the disk of the host was about to be full, and this session was filling it; its \
                  sandbox was ended"
        .to_owned();
    let sandbox_id = SandboxId(sandbox.id().uuid());
    // Recorded first: should that fail, the daemon ends and the next one finds the sandbox.
    if let Err(error) = inner.sandbox_gone(id, sandbox_id, reason).await {
        tracing::error!(session = %id, %error, "the end of a sandbox was not recorded");
        return;
    }
    if let Err(error) = sandbox.destroy().await {
        tracing::warn!(session = %id, %error, "a sandbox that was ended was not removed");
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn room(free_mib: u64, total_mib: u64) -> Room {
        Room {
            free_bytes: free_mib << 20,
            total_bytes: total_mib << 20,
        }
    }

    #[test]
    fn the_reserve_is_a_twentieth_of_a_small_disk_and_never_more_than_its_limit() {
        assert_eq!(room(0, 100).reserve_bytes(), 5 << 20);
        assert_eq!(room(0, 1 << 20).reserve_bytes(), RESERVE_BYTES_MAX);
        assert!(!room(5, 100).is_short() && room(4, 100).is_short());
        assert!(!room(3, 100).is_critical() && room(2, 100).is_critical());
    }

    #[test]
    fn who_grew_most_is_ended_and_who_is_merely_large_is_not() {
        let id = |n| SessionId(Uuid::from_u128(n));
        let before = BTreeMap::from([(id(1), 900 << 20), (id(2), 0), (id(3), 5 << 20)]);
        let mut now = BTreeMap::from([(id(1), 900 << 20), (id(2), 9 << 20), (id(3), 8 << 20)]);
        assert_eq!(grown_most(&before, &now), Some(id(2)));
        now.insert(id(4), 99 << 20);
        assert_eq!(
            grown_most(&before, &now),
            Some(id(2)),
            "nobody knows since when"
        );
        assert_eq!(grown_most(&now, &now), None);
    }
}
