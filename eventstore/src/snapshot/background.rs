//! The thread that takes snapshots while the ledger is in use, and looks through what the opening
//! skipped.
//!
//! It never touches what the committer works with. It does what an opening does: begins with the
//! newest snapshot, reads the events behind it out of the store and folds them, with a follower of
//! its own. So writers wait for nothing but the store's own locks, a snapshot costs the events
//! since the one before, and what it holds was read back from the disk and checked.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::thread::JoinHandle;

use fluxvm_verify::Position;

use super::Ground;
use super::SnapshotOptions;
use crate::Follower;
use crate::OpenError;
use crate::rebuild::Expected;
use crate::rebuild::Walk;
use crate::shared::Shared;
use crate::state::State;
use crate::tree;
use crate::tree::StoredTree;

/// One thread, so that the writers have the other cores.
const THREADS: usize = 1;

/// The committer's end: it tells how far the ledger is, and waits for nothing.
#[derive(Clone)]
pub(crate) struct Wake {
    due_at: Arc<AtomicU64>,
    wake: mpsc::SyncSender<()>,
}

impl Wake {
    /// Wakes the thread where it is time for a snapshot.
    pub(crate) fn tell(&self, head: Position) {
        if head.get() >= self.due_at.load(Ordering::Relaxed) {
            self.due_at.store(u64::MAX, Ordering::Relaxed);
            // It is awake already if there is no place.
            let _ = self.wake.try_send(());
        }
    }
}

/// The running thread.
pub(crate) struct Background {
    pub(crate) wake: Wake,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts it for a ledger that opened from a snapshot at `from`, or from the start.
    pub(crate) fn start(
        shared: Arc<Shared>,
        follower: Box<dyn Follower>,
        options: SnapshotOptions,
        from: Position,
    ) -> std::io::Result<Background> {
        let (wake, woken) = mpsc::sync_channel(1);
        let due_at = from.get().saturating_add(options.every_events.max(1));
        let wake = Wake {
            due_at: Arc::new(AtomicU64::new(due_at)),
            wake,
        };
        wake.tell(shared.head().position);
        let stop = Arc::new(AtomicBool::new(false));
        let work = Work {
            shared,
            follower,
            options,
            due_at: Arc::clone(&wake.due_at),
            stop: Arc::clone(&stop),
        };
        let thread = thread::Builder::new().name("ledger-snapshots".to_owned());
        let thread = thread.spawn(move || work.run(from, &woken))?;
        Ok(Background {
            wake,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Ends it, at once, and waits until it has let go of the store.
    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.wake.wake.try_send(());
        let thread = self.thread.lock();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Its panic has been printed, and snapshots are a cache.
            let _ = thread.join();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

struct Work {
    shared: Arc<Shared>,
    follower: Box<dyn Follower>,
    options: SnapshotOptions,
    due_at: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn run(mut self, skipped: Position, woken: &mpsc::Receiver<()>) {
        if self.options.checks_behind && skipped > Position::START {
            self.check_behind(skipped);
        }
        while woken.recv().is_ok() && !self.stop.load(Ordering::Relaxed) {
            let at = match self.take() {
                Ok(at) => at,
                Err(OpenError::Stopped) => return,
                Err(error) => {
                    // The next opening reads more than it would have to, and that is all.
                    tracing::warn!(%error, "no snapshot could be taken");
                    self.shared.head().position
                }
            };
            let next = at.get().saturating_add(self.options.every_events.max(1));
            self.due_at.store(next, Ordering::Relaxed);
        }
    }

    /// Reads and checks what the opening did not.
    fn check_behind(&self, until: Position) {
        let checked = self.shared.check_history(until, &self.stop);
        match checked {
            Ok(()) => tracing::info!(events = until.get(), "the history was read and holds"),
            Err(OpenError::Stopped) => {}
            Err(error) => {
                // The next opening is not to skip it again: it shall say what is wrong.
                if let Err(error) = self.shared.snapshots.forget_all() {
                    tracing::error!(%error, "the snapshots cannot be removed");
                }
                self.shared
                    .poison(&format!("the history does not hold: {error}"));
            }
        }
    }

    fn take(&mut self) -> Result<Position, OpenError> {
        let store = self.shared.store().ok_or(OpenError::Stopped)?;
        let head = self.shared.head().position;
        let Shared {
            snapshots,
            blobs,
            genesis,
            ..
        } = &*self.shared;
        self.follower.reset();
        let ground = Ground {
            store: &*store,
            blobs,
            genesis,
            expected: Expected::default(),
        };
        let (state, unusable) = snapshots.restore(&ground, &mut *self.follower);
        snapshots.remove(&unusable);
        let state = match state {
            Some(state) => state,
            None => State::at_genesis(genesis)?,
        };
        let walk = Walk {
            store: &*store,
            blobs,
            until: head,
            threads: THREADS,
            stop: &self.stop,
        };
        let follower = &mut *self.follower;
        let state = walk.run(state, Expected::default(), &mut |page| {
            follower.follow(page)
        })?;
        let at = state.head.position;
        let kept = snapshots.keep(&state.view(), &*self.follower, &*store);
        kept.map_err(OpenError::io("snapshots"))?;
        self.follower.reset();
        Ok(at)
    }
}

impl Shared {
    /// Reads and checks every event up to `until`, which must be durable, with every link, the tree
    /// and what was signed.
    pub(crate) fn check_history(
        &self,
        until: Position,
        stop: &AtomicBool,
    ) -> Result<(), OpenError> {
        let store = self.store().ok_or(OpenError::Stopped)?;
        let signed = tree::latest_checkpoint(&*store)?;
        let walk = Walk {
            store: &*store,
            blobs: &self.blobs,
            until,
            threads: THREADS,
            stop,
        };
        let expected = Expected {
            noted: None,
            signed: signed.as_ref().filter(|signed| signed.size() <= until),
        };
        let start = State::at_genesis(&self.genesis)?;
        let state = walk.run(start, expected, &mut |_| {})?;
        let stored = StoredTree::at(&*store, until)?.frontier()?;
        match stored == state.frontier && state.head.position == until {
            true => Ok(()),
            false => Err(OpenError::TreeDamaged { size: until }),
        }
    }
}
