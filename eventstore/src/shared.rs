//! What the handles, the subscriptions and the committer share, and how events are read.

mod content;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;

use bytes::Bytes;
use fluxvm_verify::Genesis;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::KeyChain;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use tokio::sync::watch;

use crate::Environment;
use crate::Head;
use crate::ReadError;
use crate::archive::Archive;
use crate::blobs::BlobDigest;
use crate::blobs::BlobError;
use crate::blobs::BlobStore;
use crate::blobs::PutError;
use crate::keys;
use crate::memory::Memory;
use crate::record;
use crate::record::Body;
use crate::seal::Held;
use crate::snapshot::Snapshots;
use crate::store::Store;
use crate::sync_times::SyncTimes;
use crate::tree::Block;

/// The most events that one read returns.
const READ_EVENTS_MAX: usize = 4096;
/// How many bytes of payload one read gathers before it returns.
const READ_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(crate) struct Shared {
    pub(crate) genesis: Genesis,
    pub(crate) environment: Environment,
    pub(crate) blobs: BlobStore,
    pub(crate) snapshots: Snapshots,
    pub(crate) watermark: watch::Receiver<Head>,
    pub(crate) poison: watch::Sender<Option<String>>,
    pub(crate) sync_times: Mutex<SyncTimes>,
    /// None once the ledger is closed.
    store: RwLock<Option<Arc<dyn Store>>>,
    /// The block of the tree that was read last.
    block: RwLock<Option<Arc<Block>>>,
    memory: RwLock<Memory>,
    /// The keys that spoke for the ledger. Changed by the committer only.
    chain: RwLock<KeyChain>,
    /// Set once at opening, if there is to be one.
    archive: OnceLock<Archive>,
}

impl Shared {
    #[allow(
        clippy::too_many_arguments,
        reason = "the parts of one thing, each of a type of its own"
    )]
    pub(crate) fn new(
        genesis: Genesis,
        environment: Environment,
        store: Arc<dyn Store>,
        blobs: BlobStore,
        snapshots: Snapshots,
        memory: Memory,
        chain: KeyChain,
        watermark: watch::Receiver<Head>,
    ) -> Shared {
        Shared {
            genesis,
            environment,
            blobs,
            snapshots,
            watermark,
            poison: watch::Sender::new(None),
            sync_times: Mutex::default(),
            store: RwLock::new(Some(store)),
            block: RwLock::default(),
            memory: RwLock::new(memory),
            chain: RwLock::new(chain),
            archive: OnceLock::new(),
        }
    }

    /// The durable end of the ledger.
    pub(crate) fn head(&self) -> Head {
        *self.watermark.borrow()
    }

    /// Ends all writing for good. The first reason stays.
    pub(crate) fn poison(&self, reason: &str) {
        self.poison.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                tracing::error!(reason, "the ledger is poisoned");
                *current = Some(reason.to_owned());
            }
            first
        });
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        self.poison.borrow().clone()
    }

    // A lock is poisoned only where a holder panicked, and none of them leaves half a change behind
    // that a reader could see: the watermark is moved last.
    pub(crate) fn memory(&self) -> RwLockReadGuard<'_, Memory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory_mut(&self) -> RwLockWriteGuard<'_, Memory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chain(&self) -> RwLockReadGuard<'_, KeyChain> {
        self.chain.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chain_mut(&self) -> RwLockWriteGuard<'_, KeyChain> {
        self.chain.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> Option<Arc<dyn Store>> {
        self.store
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn latest_block(&self) -> Option<Arc<Block>> {
        self.block
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn keep_block(&self, block: Block) {
        let mut latest = self.block.write().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(Arc::new(block));
    }

    /// Lets `archive` have everything from now on.
    pub(crate) fn set_archive(&self, archive: Archive) {
        // It is called once, by whoever opens the ledger.
        let _ = self.archive.set(archive);
    }

    /// Where a second copy of everything goes, if anywhere.
    pub(crate) fn archive(&self) -> Option<&Archive> {
        self.archive.get()
    }

    /// Takes the store away from all readers.
    pub(crate) fn close_store(&self) {
        self.store
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Whether everything behind `after` can be read without the store.
    pub(crate) fn is_in_memory(&self, after: Position) -> bool {
        after >= self.memory().tail_start()
    }

    /// Durable events behind `after`, at least one where there is one, at most `limit`.
    pub(crate) fn read(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let until = self.head().position;
        let limit = limit.min(READ_EVENTS_MAX);
        if after >= until || limit == 0 {
            return Ok(Vec::new());
        }
        {
            let memory = self.memory();
            if after >= memory.tail_start() {
                return Ok(memory.tail_events(after, until, limit));
            }
        }
        self.read_from_store(after, until, limit)
    }

    fn read_from_store(
        &self,
        after: Position,
        until: Position,
        limit: usize,
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let store = self.store().ok_or(ReadError::Closed)?;
        let mut events = Vec::new();
        let mut bytes = 0;
        let mut next = after.next_seq();
        for record in store.records(after) {
            if next.position() > until || events.len() >= limit || bytes >= READ_BYTES_MAX {
                break;
            }
            let (seq, record) = record.map_err(store_failed)?;
            if seq != next {
                return Err(damaged(next, &"its record is missing"));
            }
            let event = self.event_of(seq, &record)?;
            bytes += record.len() + event.payload_bytes().map_or(0, <[u8]>::len);
            events.push(Arc::new(event));
            next = next.next();
        }
        match events.is_empty() {
            true => Err(damaged(next, &"its record is missing")),
            false => Ok(events),
        }
    }

    /// Durable events of one stream.
    pub(crate) fn read_stream(
        &self,
        stream: &StreamName,
        after: Option<StreamVersion>,
        limit: usize,
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let until = self.head().position;
        let limit = limit.min(READ_EVENTS_MAX);
        let seqs = self
            .memory()
            .stream_seqs_after_version(stream, after, until, limit);
        self.read_seqs(&seqs)
    }

    /// The events with these numbers, all of which must be durable. Stops early at the byte limit.
    pub(crate) fn read_seqs(
        &self,
        seqs: &[GlobalSeq],
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let mut events = Vec::with_capacity(seqs.len());
        let mut bytes = 0;
        for seq in seqs {
            if bytes >= READ_BYTES_MAX {
                break;
            }
            let event = self.read_one(*seq)?;
            bytes += event.payload_bytes().map_or(0, <[u8]>::len);
            events.push(event);
        }
        Ok(events)
    }

    /// One committed event.
    pub(crate) fn read_one(&self, seq: GlobalSeq) -> Result<Arc<RecordedEvent>, ReadError> {
        if let Some(event) = self.memory().tail_event(seq) {
            return Ok(Arc::clone(event));
        }
        let store = self.store().ok_or(ReadError::Closed)?;
        let record = store.get(&keys::event(seq)).map_err(store_failed)?;
        let record = record.ok_or_else(|| damaged(seq, &"its record is missing"))?;
        self.event_of(seq, &record).map(Arc::new)
    }

    fn event_of(&self, seq: GlobalSeq, record: &Bytes) -> Result<RecordedEvent, ReadError> {
        let event = event_of_record(record, &self.blobs).map_err(|reason| damaged(seq, &reason))?;
        if event.seq() == seq {
            Ok(event)
        } else {
            Err(damaged(seq, &"another event lies in its place"))
        }
    }

    /// Stores a blob; a sync that fails poisons the ledger.
    pub(crate) fn put_blob(&self, bytes: &[u8]) -> Result<BlobDigest, BlobError> {
        if let Some(reason) = self.poisoned() {
            return Err(BlobError::Poisoned { reason });
        }
        match self.blobs.put(bytes) {
            Ok(digest) => {
                if let Some(archive) = self.archive() {
                    archive.sender.blob(digest);
                }
                Ok(digest)
            }
            Err(PutError::Write(e)) => Err(e.into()),
            Err(e @ PutError::Sync(_)) => {
                self.poison(&e.to_string());
                Err(BlobError::Poisoned {
                    reason: e.to_string(),
                })
            }
        }
    }
}

/// The event of a record, hash and payload checked.
pub(crate) fn event_of_record(record: &Bytes, blobs: &BlobStore) -> Result<RecordedEvent, String> {
    let mut record = record::decode(record).map_err(|e| e.to_string())?;
    let file = |digest: &BlobDigest| {
        let found = blobs.get(digest).map_err(|e| e.to_string())?;
        found.ok_or_else(|| format!("the file {digest} of its payload is missing"))
    };
    let (id, sealed) = match &record.body {
        Body::Inline(payload) => {
            let payload = Some(payload.clone());
            return record.into_event(payload).map_err(|e| e.to_string());
        }
        Body::Redacted => return record.into_event(None).map_err(|e| e.to_string()),
        Body::File(digest) => {
            let payload = Some(file(digest)?);
            return record.into_event(payload).map_err(|e| e.to_string());
        }
        Body::Sealed(id, sealed) => (*id, Ok(sealed.clone())),
        Body::SealedFile(id, digest) => (*id, Err(*digest)),
    };
    let payload = match blobs.seals().and_then(|seals| seals.get(id)) {
        None => return Err("nothing is known of the key that it is sealed with".to_owned()),
        Some(Held::Destroyed) => None,
        Some(Held::Alive(key)) => {
            let sealed = sealed.or_else(|digest| file(&digest))?;
            let opened = key.open_event(&record.header.payload_commitment, &sealed);
            let (salt, payload) =
                opened.ok_or("its sealed payload is not the one of this event")?;
            record.salt = salt;
            Some(payload)
        }
    };
    record.into_event(payload).map_err(|e| e.to_string())
}

fn store_failed(error: crate::store::StoreError) -> ReadError {
    ReadError::Store {
        reason: error.to_string().into(),
    }
}

fn damaged(seq: GlobalSeq, reason: &(impl ToString + ?Sized)) -> ReadError {
    ReadError::Damaged {
        seq,
        reason: reason.to_string().into(),
    }
}
