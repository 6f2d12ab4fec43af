//! Reading the whole ledger at opening, with every link checked.
//!
//! A line of three: one thread takes records out of the store, one takes them apart and checks each
//! by itself (hash, payload), and the caller's holds each against its neighbours and feeds the
//! observer. Each link can be checked alone because a record names its predecessor's hash.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use fluxvm_verify::EventHash;
use fluxvm_verify::Genesis;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::KeyChain;
use fluxvm_verify::NoteVerdict;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::is_rotation;
use fluxvm_verify::merkle::Frontier;

use crate::Head;
use crate::Observer;
use crate::OpenError;
use crate::blobs::BlobStore;
use crate::idempotency::Commands;
use crate::memory::Memory;
use crate::shared::event_of_record;
use crate::store::Store;

/// How many events go from thread to thread, and to the observer, at a time.
const PAGE_EVENTS: usize = 512;
/// A page ends early at so many bytes.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many pages may wait between two threads.
const PAGES_AHEAD: usize = 4;

/// What the events come to.
pub(crate) struct Rebuilt {
    pub(crate) memory: Memory,
    pub(crate) commands: Commands,
    pub(crate) head: Head,
    pub(crate) last_recorded_at: RecordedAt,
    /// The tree over the events, computed from them.
    pub(crate) frontier: Frontier,
    /// The keys that spoke for the ledger.
    pub(crate) chain: KeyChain,
}

type RecordPage = Vec<(GlobalSeq, Bytes)>;
type EventPage = Vec<Arc<RecordedEvent>>;

/// Reads and checks all events behind the genesis and shows them to the observer.
///
/// `noted` is what the head file says: that event must be met on the way. So must the state that
/// was `signed` for last.
pub(crate) fn rebuild(
    store: &dyn Store,
    blobs: &BlobStore,
    genesis: &Genesis,
    noted: Option<Head>,
    signed: Option<&SignedCheckpoint>,
    observer: &mut Observer,
) -> Result<Rebuilt, OpenError> {
    let chain = KeyChain::new(genesis).map_err(|e| OpenError::GenesisDamaged {
        reason: e.to_string(),
    })?;
    let mut fold = Fold::new(genesis.hash(), chain, noted, signed);
    thread::scope(|scope| {
        let (record_sender, records) = mpsc::sync_channel(PAGES_AHEAD);
        let (event_sender, events) = mpsc::sync_channel(PAGES_AHEAD);
        scope.spawn(move || read_records(store, &record_sender));
        scope.spawn(move || check_records(&records, blobs, &event_sender));
        for page in events {
            let page: EventPage = page?;
            for event in &page {
                fold.take(event)?;
            }
            if !page.is_empty() {
                observer(&page);
            }
        }
        Ok::<(), OpenError>(())
    })?;
    fold.finish()
}

fn read_records(store: &dyn Store, pages: &mpsc::SyncSender<Result<RecordPage, OpenError>>) {
    let mut page = Vec::with_capacity(PAGE_EVENTS);
    let mut bytes = 0;
    for record in store.records(Position::START) {
        match record {
            Ok((seq, record)) => {
                bytes += record.len();
                page.push((seq, record));
            }
            Err(e) => {
                let _ = pages.send(Ok(page));
                let _ = pages.send(Err(OpenError::Store {
                    reason: e.to_string(),
                }));
                return;
            }
        }
        if page.len() >= PAGE_EVENTS || bytes >= PAGE_BYTES_MAX {
            bytes = 0;
            let full = std::mem::replace(&mut page, Vec::with_capacity(PAGE_EVENTS));
            // Nobody takes pages any more once a fault was found.
            if pages.send(Ok(full)).is_err() {
                return;
            }
        }
    }
    let _ = pages.send(Ok(page));
}

fn check_records(
    pages: &mpsc::Receiver<Result<RecordPage, OpenError>>,
    blobs: &BlobStore,
    checked: &mpsc::SyncSender<Result<EventPage, OpenError>>,
) {
    for page in pages {
        let page = page.and_then(|page| check_page(&page, blobs));
        let failed = page.is_err();
        if checked.send(page).is_err() || failed {
            return;
        }
    }
}

fn check_page(page: &RecordPage, blobs: &BlobStore) -> Result<EventPage, OpenError> {
    let check = |(seq, record): &(GlobalSeq, Bytes)| {
        let seq = *seq;
        let event =
            event_of_record(record, blobs).map_err(|reason| OpenError::Damaged { seq, reason })?;
        match event.seq() == seq {
            true => Ok(Arc::new(event)),
            false => Err(damaged(seq, "another event lies in its place")),
        }
    };
    page.iter().map(check).collect()
}

fn damaged(seq: GlobalSeq, reason: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        seq,
        reason: reason.into(),
    }
}

/// Holds each event against those before it.
struct Fold<'a> {
    memory: Memory,
    commands: Commands,
    head: Head,
    last_recorded_at: RecordedAt,
    noted: Option<Head>,
    signed: Option<&'a SignedCheckpoint>,
    frontier: Frontier,
    chain: KeyChain,
}

impl<'a> Fold<'a> {
    fn new(
        genesis: EventHash,
        chain: KeyChain,
        noted: Option<Head>,
        signed: Option<&'a SignedCheckpoint>,
    ) -> Fold<'a> {
        Fold {
            memory: Memory::default(),
            commands: Commands::default(),
            head: Head {
                position: Position::START,
                hash: genesis,
            },
            last_recorded_at: RecordedAt::default(),
            noted,
            signed,
            frontier: Frontier::default(),
            chain,
        }
    }

    fn take(&mut self, event: &Arc<RecordedEvent>) -> Result<(), OpenError> {
        let expected = self.head.position.next_seq();
        let header = &event.header;
        if header.seq != expected {
            return Err(damaged(expected, "its record is missing"));
        }
        if event.prev != self.head.hash {
            return Err(damaged(
                expected,
                "it does not follow from the event before it",
            ));
        }
        let version = StreamVersion::after(self.memory.latest_version(&header.stream));
        if header.version != version {
            return Err(damaged(
                expected,
                format!("its stream is at version {version}"),
            ));
        }
        if header.recorded_at < self.last_recorded_at {
            return Err(damaged(
                expected,
                "it was recorded before the event before it",
            ));
        }
        self.head = Head {
            position: header.seq.position(),
            hash: event.hash,
        };
        self.last_recorded_at = header.recorded_at;
        if let Some(noted) = self
            .noted
            .filter(|noted| noted.position == self.head.position)
            && noted.hash != event.hash
        {
            return Err(OpenError::HeadDiffers { seq: header.seq });
        }
        if is_rotation(event) {
            let followed = self.chain.follow(event);
            followed.map_err(|e| OpenError::KeyChain {
                seq: header.seq,
                reason: e.to_string(),
            })?;
        }
        self.frontier.push(&event.hash, |_, _| {});
        self.check_signed()?;
        self.memory.push(event);
        self.commands.note(event);
        Ok(())
    }

    /// Holds the state reached against the one that was signed for, if it is that one.
    fn check_signed(&self) -> Result<(), OpenError> {
        let size = self.frontier.size();
        let Some(signed) = self.signed.filter(|signed| signed.size() == size) else {
            return Ok(());
        };
        let key = self.chain.key_at(size);
        let is_ours = key.is_some_and(|key| signed.note().verdict(key) == NoteVerdict::Signed);
        match is_ours && signed.root() == self.frontier.root() {
            true => Ok(()),
            false => Err(OpenError::CheckpointDiffers { size }),
        }
    }

    fn finish(self) -> Result<Rebuilt, OpenError> {
        let found = self.head.position;
        if found == Position::START {
            self.check_signed()?;
        }
        if let Some(signed) = self.signed.filter(|signed| signed.size() > found) {
            return Err(OpenError::TailMissing {
                recorded: signed.size(),
                found,
            });
        }
        if let Some(noted) = self.noted.filter(|noted| noted.position > found) {
            return Err(OpenError::TailMissing {
                recorded: noted.position,
                found,
            });
        }
        let Fold {
            memory,
            commands,
            head,
            last_recorded_at,
            frontier,
            chain,
            ..
        } = self;
        Ok(Rebuilt {
            memory,
            commands,
            head,
            last_recorded_at,
            frontier,
            chain,
        })
    }
}
