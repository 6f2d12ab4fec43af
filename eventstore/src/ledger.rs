//! The handle on an open ledger.

mod health;
mod signing;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;

use bytes::Bytes;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::Append;
use crate::AppendError;
use crate::Appended;
use crate::ArchiveOptions;
use crate::BLOB_BYTES_MAX;
use crate::BlobDigest;
use crate::BlobError;
use crate::Environment;
use crate::ExportScope;
use crate::Filter;
use crate::Follower;
use crate::OpenError;
use crate::ReadError;
use crate::SealOptions;
use crate::Shred;
use crate::ShredError;
use crate::SnapshotOptions;
use crate::Subscription;
use crate::archive::Archive;
use crate::committer::Request;
use crate::export;
use crate::open;
use crate::prepare;
use crate::prepare::KeptBlob;
use crate::redact;
use crate::redact::PreparedRedaction;
use crate::redact::RedactError;
use crate::redact::Redaction;
use crate::seal::Held;
use crate::shared::Shared;
use crate::shred::PreparedShred;

pub use health::ArchiveInfo;
pub use health::LedgerInfo;

/// Where a ledger lies and what it may use.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// The folder of the store.
    pub dir: PathBuf,
    /// The folder of the blobs.
    pub blobs_dir: PathBuf,
    /// The signing key. Made with mode 0600 when the ledger is; from then on it must be there.
    pub signing_key_file: PathBuf,
    /// The name that the ledger is founded under. An existing ledger keeps the one that it has.
    pub origin: String,
    /// How much memory the store may use for pages.
    pub cache_bytes: u64,
    /// Where a second copy of everything goes.
    pub archive: Option<ArchiveOptions>,
    /// Whether snapshots of the state are kept, so that an opening reads what is new and not
    /// everything. `None`: each opening reads and checks every event.
    pub snapshots: Option<SnapshotOptions>,
    /// The keys of sealed streams. A ledger that has any does not open without it.
    pub seal: Option<SealOptions>,
}

/// A [`Follower`] without a state: it is shown every event at each opening.
pub type Observer = Box<dyn FnMut(&[Arc<RecordedEvent>]) + Send>;

/// The durable end of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// How many events are durable.
    pub position: Position,
    /// The hash of the last of them, or of the genesis.
    pub hash: EventHash,
}

/// A handle on an open ledger. Clones are handles on the same one; it closes with the last of them.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    dir: PathBuf,
    queue: Option<mpsc::Sender<Request>>,
    checkpoints: watch::Receiver<Option<Arc<SignedCheckpoint>>>,
    restored: Position,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    /// Waits for the committer, so that whoever opens the ledger next finds it free.
    fn drop(&mut self) {
        self.queue = None;
        let committer = self
            .committer
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(committer) = committer.filter(|c| c.thread().id() != thread::current().id()) {
            let _ = committer.join();
        }
    }
}

impl Ledger {
    /// Opens the ledger, or founds it, and checks every link of the chain on the way.
    ///
    /// Blocks for as long as that takes. The observer sees the whole history before this returns.
    pub fn open(options: LedgerOptions, observer: Observer) -> Result<Ledger, OpenError> {
        Ledger::open_in(options, observer, Environment::default())
    }

    /// The same with a clock, a random source and a disk of the caller's.
    pub fn open_in(
        options: LedgerOptions,
        observer: Observer,
        environment: Environment,
    ) -> Result<Ledger, OpenError> {
        Ledger::open_following(options, Box::new(observer), environment)
    }

    /// The same for a follower, which may let the ledger begin with a snapshot of its state.
    pub fn open_following(
        options: LedgerOptions,
        follower: Box<dyn Follower>,
        environment: Environment,
    ) -> Result<Ledger, OpenError> {
        let opened = open::open(&options, follower, environment)?;
        let committer = opened.committer;
        if let Some(archive) = &options.archive {
            let started = Archive::start(archive.clone(), Arc::clone(&opened.shared));
            let started = started.map_err(OpenError::io(&archive.dir))?;
            opened.shared.set_archive(started);
        }
        let thread = thread::Builder::new()
            .name("ledger-committer".to_owned())
            .spawn(move || committer.run())
            .map_err(OpenError::io(&options.dir))?;
        let inner = Inner {
            shared: opened.shared,
            dir: options.dir,
            queue: Some(opened.queue),
            checkpoints: opened.checkpoints,
            restored: opened.restored,
            committer: Mutex::new(Some(thread)),
        };
        Ok(Ledger {
            inner: Arc::new(inner),
        })
    }

    /// Appends to one or more streams at once and returns when all of it is durable.
    ///
    /// The events come back linked, in the order in which they were given. An append whose
    /// `command_id` the ledger knows writes nothing and returns what the first one did. Giving up
    /// the wait does not take an append back.
    pub async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        prepare::check(&append)?;
        let shared = &self.inner.shared;
        if let Some(reason) = shared.poisoned() {
            return Err(AppendError::Poisoned { reason });
        }
        let prepared = if prepare::is_heavy(&append, shared) {
            let shared = Arc::clone(shared);
            let prepared = tokio::task::spawn_blocking(move || prepare::prepare(append, &shared));
            prepared.await.map_err(|_| AppendError::Closed)??
        } else {
            prepare::prepare(append, shared)?
        };
        let (reply, answer) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or(AppendError::Closed)?;
        let request = Request::Append(prepared, reply);
        queue.send(request).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Erases the payloads of events and blobs, and records that in the same instant. Returns the
    /// events that record it.
    ///
    /// Headers, links and hashes stay, so that every proof still verifies. What is overwritten goes
    /// from the store's files when the ledger is next opened; see [`LedgerInfo::erasure_pending`].
    pub async fn redact(&self, redaction: Redaction) -> Result<Appended, RedactError> {
        redact::check(&redaction)?;
        prepare::check(&redaction.append)?;
        let shared = Arc::clone(&self.inner.shared);
        if let Some(reason) = shared.poisoned() {
            return Err(AppendError::Poisoned { reason }.into());
        }
        let append = redaction.append;
        let prepared = tokio::task::spawn_blocking(move || prepare::prepare(append, &shared));
        let append = prepared.await.map_err(|_| AppendError::Closed)??;
        let prepared = PreparedRedaction {
            seqs: redaction.seqs,
            blobs: redaction.blobs,
            looked_until: redaction.looked_until,
            append,
        };
        let (reply, answer) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or(AppendError::Closed)?;
        let request = Request::Redact(Box::new(prepared), reply);
        queue.send(request).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Destroys the key that a stream is sealed with, and records that first. Returns the events that
    /// record it.
    ///
    /// From then on everything that was sealed with the key reads as erased, here and in every copy of
    /// the store and of the archive.
    pub async fn shred(&self, shred: Shred) -> Result<Appended, ShredError> {
        prepare::check(&shred.append)?;
        let shared = Arc::clone(&self.inner.shared);
        if let Some(reason) = shared.poisoned() {
            return Err(AppendError::Poisoned { reason }.into());
        }
        let append = shred.append;
        let prepared = tokio::task::spawn_blocking(move || prepare::prepare(append, &shared));
        let append = prepared.await.map_err(|_| AppendError::Closed)??;
        let stream = shred.stream;
        let (reply, answer) = oneshot::channel();
        let queue = self.inner.queue.as_ref().ok_or(AppendError::Closed)?;
        let request = Request::Shred(Box::new(PreparedShred { stream, append }), reply);
        queue.send(request).await.map_err(|_| self.gone())?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Whether the stream is sealed, and its key is there.
    pub fn is_sealed(&self, stream: &StreamName) -> bool {
        let seals = self.inner.shared.blobs.seals();
        let held = seals.and_then(|seals| seals.get(seals.id_of(stream)));
        matches!(held, Some(Held::Alive(_)))
    }

    /// Why nobody answers.
    fn gone(&self) -> AppendError {
        match self.inner.shared.poisoned() {
            Some(reason) => AppendError::Poisoned { reason },
            None => AppendError::Closed,
        }
    }

    /// The durable end: the watermark that no reader sees beyond.
    pub fn head(&self) -> Head {
        self.inner.shared.head()
    }

    /// The version that the stream has reached, as far as it is durable; none where there is none.
    pub fn stream_version(&self, stream: &StreamName) -> Option<StreamVersion> {
        let until = self.head().position;
        self.inner.shared.memory().version(stream, until)
    }

    /// Durable events behind `after`, at most `limit` of them, fewer where they are large.
    ///
    /// Only an empty answer means that there are no more. Blocks where the events are not in
    /// memory.
    pub fn read(
        &self,
        after: Position,
        limit: usize,
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        self.inner.shared.read(after, limit)
    }

    /// Durable events of one stream behind version `after`, in the same way. A stream that does not
    /// exist has no events.
    pub fn read_stream(
        &self,
        stream: &StreamName,
        after: Option<StreamVersion>,
        limit: usize,
    ) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        self.inner.shared.read_stream(stream, after, limit)
    }

    /// All events behind `after`, those that are there and those to come, without gap or repeat.
    pub fn subscribe(&self, filter: Filter, after: Position) -> Subscription {
        Subscription::new(Arc::clone(&self.inner.shared), filter, after)
    }

    /// Stores bytes in a file of their own, durable when this returns. The same bytes are one blob.
    pub async fn put_blob(&self, bytes: Bytes) -> Result<BlobDigest, BlobError> {
        if bytes.len() > BLOB_BYTES_MAX {
            let bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            return Err(BlobError::TooLarge { bytes });
        }
        let shared = Arc::clone(&self.inner.shared);
        let put = tokio::task::spawn_blocking(move || shared.put_blob(&bytes));
        put.await.map_err(|_| BlobError::Closed)?
    }

    /// Makes bytes durable that belong to `stream`, sealed if it is, at most [`BLOB_BYTES_MAX`] of them. An
    /// append that is sealed for the same stream, or for none where this is for none, takes them up: before
    /// that nobody finds them.
    pub async fn keep_blob(
        &self,
        stream: Option<StreamName>,
        bytes: Bytes,
    ) -> Result<KeptBlob, AppendError> {
        let shared = Arc::clone(&self.inner.shared);
        let keep = move || prepare::keep(stream.as_ref(), &bytes, &shared);
        let kept = tokio::task::spawn_blocking(keep).await;
        kept.map_err(|_| AppendError::Closed)?
    }

    /// The bytes with this digest, whether they were attached to an append or put, checked against
    /// it.
    pub fn blob(&self, digest: &BlobDigest) -> Result<Option<Bytes>, BlobError> {
        self.inner.shared.blob(digest)
    }

    /// The same for content that belongs to a stream, whether or not it is sealed. `None` where it was
    /// erased, or there never was any.
    pub fn blob_of(
        &self,
        stream: &StreamName,
        digest: &BlobDigest,
    ) -> Result<Option<Bytes>, BlobError> {
        self.inner.shared.blob_of_stream(stream, digest)
    }

    /// Whether the content that belongs to an event is where it should be, or was erased. Its bytes are
    /// not read, so that damage is not seen.
    pub fn has_blob_of_event(
        &self,
        seq: GlobalSeq,
        digest: &BlobDigest,
    ) -> Result<bool, BlobError> {
        self.inner.shared.has_blob_of_event(seq, digest)
    }

    /// The lines of an export, each with its line feed, up to the head of this instant.
    ///
    /// Blocks while it is iterated. Stops at the first error.
    pub fn export(
        &self,
        scope: ExportScope,
    ) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, ReadError> {
        export::lines(Arc::clone(&self.inner.shared), scope)
    }

    /// How many events the opening took from a snapshot instead of reading them.
    pub fn restored(&self) -> Position {
        self.inner.restored
    }

    /// Becomes `Some` with the reason when the ledger took harm. It then takes nothing more for as
    /// long as the process runs; opening it anew shows what really is on the disk.
    pub fn poisoned(&self) -> watch::Receiver<Option<String>> {
        self.inner.shared.poison.subscribe()
    }

    /// Commits what has queued up and lets go of the files. Everything afterwards is refused.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if let Some(queue) = &self.inner.queue
            && queue.send(Request::Close(reply)).await.is_ok()
        {
            // No answer means that the committer is gone, which is what was wanted.
            let _ = closed.await;
        }
    }
}
