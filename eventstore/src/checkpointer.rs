//! The committer's side of the tree: its nodes go into each batch, and its state is signed.
//!
//! A signature is a promise that cannot be taken back, so it is given for durable events only and
//! is itself durable before anyone sees it. For one size there is one signature; a smaller tree
//! than the last one is never signed. Under load a checkpoint rides in the batch of a group and
//! costs no sync of its own; after the last events of a burst a timer asks for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::Duration;

use fluxvm_verify::Checkpoint;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle::Frontier;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::OpenError;
use crate::committer::Committer;
use crate::committer::Request;
use crate::keys;
use crate::pruning::CHECKPOINTS_KEPT_MAX;
use crate::pruning::Kept;
use crate::signing_key::Signer;
use crate::store::Write;
use crate::tree::Growth;

/// How long events may go unsigned.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the timer asks while there are unsigned events: the interval is kept to a quarter.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// Why nothing was signed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SignError {
    /// The ledger took harm and signs nothing more.
    #[error("the ledger is poisoned: {reason}")]
    Poisoned {
        /// The first error.
        reason: String,
    },
    /// The new key could not be made or put in its place. The old one still speaks.
    #[error("the new key cannot be made: {reason}")]
    Key {
        /// What went wrong.
        reason: String,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

/// Where an answer goes.
pub(crate) type SignReply = oneshot::Sender<Result<Arc<SignedCheckpoint>, SignError>>;

/// What the committer signs with and what it has signed.
pub(crate) struct Checkpointer {
    pub(crate) signer: Signer,
    pub(crate) frontier: Frontier,
    pub(crate) latest: watch::Sender<Option<Arc<SignedCheckpoint>>>,
    /// The clock's reading at the last signature, or at opening.
    pub(crate) signed_at: Duration,
    pub(crate) timer: Timer,
    /// Those that are stored; looked up when the first one is signed.
    pub(crate) kept: Option<Kept>,
    /// See [`Environment`][crate::Environment]: nothing is done here.
    pub(crate) is_off: bool,
}

impl Checkpointer {
    /// The tree with these events in it, whose newest block has these leaves so far.
    pub(crate) fn grow(&self, events: &[Arc<RecordedEvent>], leaves: &[TreeHash]) -> Growth {
        let mut growth = Growth::of(self.frontier.clone(), leaves);
        let events = if self.is_off { &[] } else { events };
        for event in events {
            growth.push(&event.hash);
        }
        growth
    }

    /// Whether so much time has gone by that the next events are to be signed at once.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        !self.is_off && now.saturating_sub(self.signed_at) >= CHECKPOINT_INTERVAL
    }

    /// Whether there are events that nobody has signed for.
    pub(crate) fn is_behind(&self) -> bool {
        let size = self.frontier.size();
        if self.is_off {
            return false;
        }
        let signed = self.latest.borrow().as_ref().map(|latest| latest.size());
        signed.map_or(size.get() > 0, |signed| signed < size)
    }

    /// Signs for the state of `frontier`. An error is a state that must never be signed.
    pub(crate) fn sign(&self, frontier: &Frontier) -> Result<SignedCheckpoint, &'static str> {
        let checkpoint = Checkpoint {
            origin: self.signer.vkey().name().to_owned(),
            size: frontier.size(),
            root: frontier.root(),
        };
        if let Some(latest) = &*self.latest.borrow() {
            if latest.size() > checkpoint.size {
                return Err("a larger tree was signed before");
            }
            if latest.size() == checkpoint.size && latest.root() != checkpoint.root {
                return Err("another root was signed for this size before");
            }
        }
        let note = self.signer.sign_note(checkpoint.to_string());
        SignedCheckpoint::of_note(note).map_err(|_| "the checkpoint cannot be written")
    }
}

/// What has to be written for a checkpoint to be kept.
pub(crate) fn writes_of(signed: &SignedCheckpoint) -> [Write; 2] {
    let size = signed.size().get().to_be_bytes().to_vec();
    let key = keys::checkpoint(signed.size()).to_vec();
    [
        (key, signed.to_string().into_bytes()),
        (keys::LAST_CHECKPOINT.to_vec(), size),
    ]
}

impl Committer {
    /// The checkpoint of all that is durable: the one there is, or a new one.
    pub(crate) fn checkpoint(&mut self) -> Result<Arc<SignedCheckpoint>, SignError> {
        if let Some(reason) = self.shared.poisoned() {
            return Err(SignError::Poisoned { reason });
        }
        let size = self.checkpointer.frontier.size();
        let latest = self.checkpointer.latest.borrow().clone();
        if let Some(latest) = latest.filter(|latest| latest.size() == size) {
            return Ok(latest);
        }
        let harmed = |this: &Self, reason: &str| {
            this.shared.poison(reason);
            let reason = reason.to_owned();
            SignError::Poisoned { reason }
        };
        let signed = self.checkpointer.sign(&self.checkpointer.frontier);
        let signed = Arc::new(signed.map_err(|reason| harmed(self, reason))?);
        let store = self.shared.store().ok_or(SignError::Closed)?;
        let writes = writes_of(&signed);
        let written = store.commit(&writes).map_err(|e| e.to_string());
        written.map_err(|reason| harmed(self, &reason))?;
        if let Some(archive) = self.shared.archive() {
            archive.sender.group(writes.to_vec());
        }
        self.publish(&signed);
        Ok(signed)
    }

    /// Shows a checkpoint that is durable.
    pub(crate) fn publish(&mut self, signed: &Arc<SignedCheckpoint>) {
        self.checkpointer.signed_at = self.shared.environment.clock.elapsed();
        self.checkpointer
            .latest
            .send_replace(Some(Arc::clone(signed)));
        self.checkpointer.timer.rest();
        if let Err(error) = self.prune_checkpoints(signed) {
            // They only take space; what is really wrong with the store shows where it is needed.
            tracing::warn!(%error, "checkpoints that are too many cannot be removed");
        }
    }

    fn prune_checkpoints(&mut self, signed: &SignedCheckpoint) -> Result<(), OpenError> {
        let store = self.shared.store().ok_or(OpenError::Stopped)?;
        let kept = match &mut self.checkpointer.kept {
            Some(kept) => kept,
            none => none.insert(Kept::load(&*store, CHECKPOINTS_KEPT_MAX)?),
        };
        kept.note(signed.size());
        kept.prune(&*store, &self.shared.chain())
    }

    /// Signs if there is something to sign and it is time.
    pub(crate) fn tick(&mut self) {
        let now = self.shared.environment.clock.elapsed();
        if !self.checkpointer.is_behind() || self.shared.poisoned().is_some() {
            self.checkpointer.timer.rest();
        } else if self.checkpointer.is_due(now) {
            // A failure has poisoned the ledger, which is how it is told.
            let _ = self.checkpoint();
        }
    }
}

/// The committer's end of the timer. The timer ends when this is dropped.
pub(crate) struct Timer {
    wake: std_mpsc::Sender<()>,
    is_awake: Arc<AtomicBool>,
}

impl Timer {
    /// Starts a timer that asks by way of `queue` and keeps nothing open.
    pub(crate) fn start(queue: mpsc::WeakSender<Request>) -> std::io::Result<Timer> {
        let (wake, woken) = std_mpsc::channel();
        let is_awake = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_awake);
        thread::Builder::new()
            .name("ledger-timer".to_owned())
            .spawn(move || run_timer(&woken, &flag, &queue))?;
        Ok(Timer { wake, is_awake })
    }

    /// Makes it ask from now on.
    pub(crate) fn ask(&self) {
        if !self.is_awake.swap(true, Ordering::Relaxed) {
            let _ = self.wake.send(());
        }
    }

    /// Lets it rest until there is something to sign.
    fn rest(&self) {
        self.is_awake.store(false, Ordering::Relaxed);
    }
}

fn run_timer(
    woken: &std_mpsc::Receiver<()>,
    is_awake: &AtomicBool,
    queue: &mpsc::WeakSender<Request>,
) {
    while woken.recv().is_ok() {
        while is_awake.load(Ordering::Relaxed) {
            if let Err(std_mpsc::RecvTimeoutError::Disconnected) = woken.recv_timeout(TICK_INTERVAL)
            {
                return;
            }
            let Some(queue) = queue.upgrade() else { return };
            if queue.blocking_send(Request::Tick(None)).is_err() {
                return;
            }
        }
    }
}
