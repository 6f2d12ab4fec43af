//! Reading the ledger, all of it or from a snapshot on, with every link checked.
//!
//! As many threads as there are cores take stripes of records out of the store, take them apart and
//! check each by itself (hash, payload). The caller's thread takes the stripes in their order,
//! holds each event against its neighbours and feeds the observer. A link can be checked alone
//! because a record names its predecessor's hash.
//!
//! Of 2 µs for taking out an event of a kilobyte, 2 µs for checking it and 1 µs for all the rest,
//! only the last is left in one line.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::KeyChain;
use fluxvm_verify::NoteVerdict;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;

use crate::Head;
use crate::OpenError;
use crate::blobs::BlobStore;
use crate::shared::event_of_record;
use crate::state::State;
use crate::store::Store;

/// How many events go from thread to thread, and to the observer, at a time.
const PAGE_EVENTS: usize = 512;
/// A page ends early at so many bytes.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many pages of one thread may wait.
const PAGES_AHEAD: usize = 2;
/// How many events one thread takes in a row: enough for finding their place to cost nothing.
const STRIPE_EVENTS: u64 = 4096;
/// More threads than this would wait for the one that takes the stripes.
const THREADS_MAX: usize = 8;

type EventPage = Vec<Arc<RecordedEvent>>;

/// What a reading thread passes on.
enum Part {
    /// Some events of the stripe, each checked by itself.
    Events(EventPage),
    /// The stripe is over.
    StripeEnd,
    /// So is the ledger.
    End,
}

type PartSender = mpsc::SyncSender<Result<Part, OpenError>>;

/// What the ledger is known to have held, beside its events.
#[derive(Clone, Copy, Default)]
pub(crate) struct Expected<'a> {
    /// What the head file says: that event must be met on the way.
    pub(crate) noted: Option<Head>,
    /// The newest checkpoint: so must the state that it was signed for.
    pub(crate) signed: Option<&'a SignedCheckpoint>,
}

/// A walk over the events, and what it may cost.
pub(crate) struct Walk<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) blobs: &'a BlobStore,
    /// Where it ends; records behind this point are not looked at.
    pub(crate) until: Position,
    /// How many threads read and check.
    pub(crate) threads: usize,
    /// Ends it early, with [`OpenError::Stopped`].
    pub(crate) stop: &'a AtomicBool,
}

impl<'a> Walk<'a> {
    /// A walk over all that is there, as fast as this machine can.
    pub(crate) fn everything(
        store: &'a dyn Store,
        blobs: &'a BlobStore,
        stop: &'a AtomicBool,
    ) -> Walk<'a> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Walk {
            store,
            blobs,
            until: Position::new(u64::MAX),
            threads: threads.min(THREADS_MAX),
            stop,
        }
    }

    /// Reads and checks all events behind `state`, shows them to the observer and returns the state
    /// that they lead to.
    pub(crate) fn run(
        &self,
        state: State,
        expected: Expected<'_>,
        observer: &mut dyn FnMut(&[Arc<RecordedEvent>]),
    ) -> Result<State, OpenError> {
        let start = state.head.position;
        let mut fold = Fold { state, expected };
        thread::scope(|scope| {
            let readers = (0..self.threads).map(|first| {
                let (sender, parts) = mpsc::sync_channel(PAGES_AHEAD);
                scope.spawn(move || self.read_stripes(start, first, &sender));
                parts
            });
            let readers: Vec<mpsc::Receiver<_>> = readers.collect();
            // Each reader has every so manieth stripe, so that their turns go round.
            let mut stripes = readers.iter().cycle();
            let mut stripe = stripes.next();
            while let Some(parts) = stripe {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(OpenError::Stopped);
                }
                // A reader that is gone without a word has panicked, which the scope passes on.
                let Ok(part) = parts.recv() else { break };
                match part? {
                    Part::Events(page) => {
                        for event in &page {
                            fold.take(event)?;
                        }
                        observer(&page);
                    }
                    Part::StripeEnd => stripe = stripes.next(),
                    Part::End => break,
                }
            }
            Ok(())
        })?;
        fold.finish()
    }

    /// Reads the stripes of one thread: the first one and then every so manieth.
    fn read_stripes(&self, start: Position, first: usize, parts: &PartSender) {
        for stripe in (first..).step_by(self.threads) {
            let stripe = u64::try_from(stripe).unwrap_or(u64::MAX);
            let after = stripe.saturating_mul(STRIPE_EVENTS);
            let after = Position::new(start.get().saturating_add(after));
            let last = match self.read_stripe(after, parts) {
                Ok(Stripe::Over) => Ok(Part::StripeEnd),
                Ok(Stripe::BehindTheEnd) => Ok(Part::End),
                Ok(Stripe::NotWanted) => return,
                Err(e) => Err(e),
            };
            let is_last = !matches!(last, Ok(Part::StripeEnd));
            if parts.send(last).is_err() || is_last {
                return;
            }
        }
    }

    /// Reads and checks the records of the stripe behind `after`. Whether one is missing is for the
    /// fold to see.
    fn read_stripe(&self, after: Position, parts: &PartSender) -> Result<Stripe, OpenError> {
        if after >= self.until {
            return Ok(Stripe::BehindTheEnd);
        }
        let until = Position::new(after.get().saturating_add(STRIPE_EVENTS)).min(self.until);
        let mut page = Vec::with_capacity(PAGE_EVENTS);
        let mut bytes = 0;
        let mut end = Stripe::BehindTheEnd;
        for record in self.store.records(after) {
            let (seq, record) = record?;
            end = Stripe::Over;
            if seq.position() > until {
                break;
            }
            let event = check_record(seq, &record, self.blobs)?;
            bytes += record.len() + event.payload_bytes().map_or(0, <[u8]>::len);
            page.push(event);
            if page.len() >= PAGE_EVENTS || bytes >= PAGE_BYTES_MAX {
                bytes = 0;
                let full = std::mem::replace(&mut page, Vec::with_capacity(PAGE_EVENTS));
                if parts.send(Ok(Part::Events(full))).is_err() {
                    return Ok(Stripe::NotWanted);
                }
            }
        }
        if !page.is_empty() && parts.send(Ok(Part::Events(page))).is_err() {
            return Ok(Stripe::NotWanted);
        }
        Ok(end)
    }
}

/// How the reading of a stripe ended.
enum Stripe {
    Over,
    /// There is no record in it, and none behind it either.
    BehindTheEnd,
    /// Nobody takes events any more, because a fault was found.
    NotWanted,
}

fn check_record(
    seq: GlobalSeq,
    record: &Bytes,
    blobs: &BlobStore,
) -> Result<Arc<RecordedEvent>, OpenError> {
    let event =
        event_of_record(record, blobs).map_err(|reason| OpenError::Damaged { seq, reason })?;
    match event.seq() == seq {
        true => Ok(Arc::new(event)),
        false => Err(damaged(seq, "another event lies in its place")),
    }
}

fn damaged(seq: GlobalSeq, reason: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        seq,
        reason: reason.into(),
    }
}

/// Holds each event against those before it and against what is known of the ledger.
struct Fold<'a> {
    state: State,
    expected: Expected<'a>,
}

impl Fold<'_> {
    fn take(&mut self, event: &Arc<RecordedEvent>) -> Result<(), OpenError> {
        self.state.take(event)?;
        let position = self.state.head.position;
        let noted = self.expected.noted;
        if let Some(noted) = noted.filter(|noted| noted.position == position)
            && noted.hash != event.hash
        {
            return Err(OpenError::HeadDiffers { seq: event.seq() });
        }
        self.check_signed()
    }

    /// Holds the state reached against the one that was signed for, if it is that one.
    fn check_signed(&self) -> Result<(), OpenError> {
        let State {
            frontier, chain, ..
        } = &self.state;
        let size = frontier.size();
        let signed = self.expected.signed;
        let Some(signed) = signed.filter(|signed| signed.size() == size) else {
            return Ok(());
        };
        match is_signed_for(signed, &frontier.root(), chain) {
            true => Ok(()),
            false => Err(OpenError::CheckpointDiffers { size }),
        }
    }

    fn finish(self) -> Result<State, OpenError> {
        let found = self.state.head.position;
        if found == Position::START {
            self.check_signed()?;
        }
        let Expected { noted, signed } = self.expected;
        let known = [
            signed.map(SignedCheckpoint::size),
            noted.map(|noted| noted.position),
        ];
        match known.into_iter().flatten().find(|known| *known > found) {
            Some(recorded) => Err(OpenError::TailMissing { recorded, found }),
            None => Ok(self.state),
        }
    }
}

/// Whether the checkpoint is of the tree with this root and by the key that may sign for it.
pub(crate) fn is_signed_for(signed: &SignedCheckpoint, root: &TreeHash, chain: &KeyChain) -> bool {
    let key = chain.key_at(signed.size());
    let is_ours = key.is_some_and(|key| signed.note().verdict(key) == NoteVerdict::Signed);
    is_ours && signed.root() == *root
}
