//! Whoever follows a ledger and folds its events into a state of his own.

use std::sync::Arc;

use fluxvm_verify::RecordedEvent;

/// Sees every event once and in order: at opening pages of checked history, later each group after
/// it became durable and before its writers are answered. It runs on the committer's thread, so it
/// must be quick and must not wait for the ledger.
///
/// One that can give its state as bytes lets the ledger open from a snapshot,
/// and then sees the events behind it only. Everything but [`Follower::follow`] may be left out:
/// then it is shown the whole history at each opening.
pub trait Follower: Send {
    /// Takes the next events.
    fn follow(&mut self, events: &[Arc<RecordedEvent>]);

    /// Names what the bytes of [`Follower::save`] mean and how they came about. It has to change
    /// whenever the fold does: snapshots of another version are not used. `None` where there are
    /// no such bytes.
    fn version(&self) -> Option<[u8; 32]> {
        None
    }

    /// The state as bytes; `None` where it cannot be given.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Becomes the state that was saved. `false` where the bytes are none: then nothing is changed.
    fn restore(&mut self, _saved: &[u8]) -> bool {
        false
    }

    /// Forgets everything: becomes the state before the first event.
    fn reset(&mut self) {}

    /// Another one that folds in the same way and has seen nothing. It is fed on a thread of its
    /// own.
    fn fresh(&self) -> Option<Box<dyn Follower>> {
        None
    }
}

impl<F> Follower for F
where
    F: FnMut(&[Arc<RecordedEvent>]) + Send,
{
    fn follow(&mut self, events: &[Arc<RecordedEvent>]) {
        self(events);
    }
}
