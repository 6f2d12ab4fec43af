//! A second copy of the ledger in plain files, for the day on which the store does not open.
//!
//! Every committed group goes to the archive *after* it is durable in the ledger and its writers
//! are on their way to being answered: no answer ever waits for the archive. The price is a lag. In
//! ordinary work it is one group; where the archive's disk is slower than the ledger's, up to 64
//! MiB are held in memory, and beyond that nothing is held: the archive then reads what it lacks
//! from the ledger itself. The same happens at each opening behind an end that was not orderly. A
//! crash can therefore leave the archive some groups behind the ledger, never ahead of it.
//!
//! What is erased in the ledger is erased here too: the archive is written anew, at once and by its
//! own thread.
//!
//! An archive that is ahead of the ledger, or another ledger's, is left alone and is a failure. So
//! is every error of its disk. A failure ends the archiving until the next opening; whether it ends
//! the daemon too is for the operator to say.

mod catch_up;
mod erase;
mod salvage;
mod unfinished;
mod worker;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::thread::JoinHandle;

use fluxvm_verify::Position;
use tokio::sync::watch;

pub use salvage::RebuildError;
pub use salvage::RebuiltLedger;
pub use salvage::rebuild_from_archive;
pub(crate) use unfinished::is_unfinished;

use crate::blobs::BlobDigest;
use crate::shared::Shared;
use crate::store::StoreError;
use crate::store::Write;
use crate::store::file_system::FileSystem;
use worker::Worker;

/// How many groups and blobs may wait for the archive's disk.
const QUEUE_MESSAGES_MAX: usize = 1024;
/// How many bytes the waiting groups may hold in memory.
const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The key of the note that an archive was brought to an orderly end: its value is the number of
/// events. No key of a ledger begins like this one.
const END_KEY: &[u8] = b"aend";

/// Where the archive lies, and what its failure means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// The archive's folder, best on another disk. Made if it is not there.
    pub dir: PathBuf,
    /// What happens when it fails.
    pub on_failure: ArchiveFailure,
}

/// What happens when the archive cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveFailure {
    /// The ledger is poisoned and the daemon ends: no work without its copy.
    Stop,
    /// It is reported, and the ledger goes on without its copy until it is opened again.
    Report,
}

/// How the archive is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveStatus {
    /// How many events are durable in it. The ledger's head minus this is the lag.
    pub archived: Position,
    /// Why nothing more is archived.
    pub failed: Option<String>,
    /// Its folder is made and read: before that there may be none.
    pub(crate) is_open: bool,
    /// How many of the ledger's redactions it holds nothing of any more; `None` as long as that is
    /// not known, and for ever where it cannot be read.
    pub(crate) redactions_done: Option<u64>,
}

pub(crate) enum Message {
    Group(Vec<Write>),
    Blob(BlobDigest),
    /// Something could not be queued: see what is lacking.
    Wake,
    /// Archive what has queued up and end.
    Close,
}

/// The end of the queue that the committer and the writers hold. Nothing here ever waits, except
/// for [`Sender::close`].
pub(crate) struct Sender {
    queue: SyncSender<Message>,
    queued_bytes: AtomicUsize,
    /// Set where something was not queued; the worker takes it back and looks for itself.
    behind: AtomicBool,
    status: watch::Sender<ArchiveStatus>,
}

impl Sender {
    pub(crate) fn new() -> (Sender, mpsc::Receiver<Message>) {
        let (queue, messages) = mpsc::sync_channel(QUEUE_MESSAGES_MAX);
        let status = ArchiveStatus {
            archived: Position::START,
            failed: None,
            is_open: false,
            redactions_done: None,
        };
        let sender = Sender {
            queue,
            queued_bytes: AtomicUsize::new(0),
            behind: AtomicBool::new(false),
            status: watch::Sender::new(status),
        };
        (sender, messages)
    }

    /// Hands over a group that is durable in the ledger and below its watermark.
    pub(crate) fn group(&self, writes: Vec<Write>) {
        let bytes = bytes_of(&writes);
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::SeqCst);
        let fits = !self.behind.load(Ordering::SeqCst) && queued + bytes <= QUEUE_BYTES_MAX;
        if !fits || self.queue.try_send(Message::Group(writes)).is_err() {
            self.queued_bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.fall_behind();
        }
    }

    /// Says that there is a new blob in a file of its own.
    pub(crate) fn blob(&self, digest: BlobDigest) {
        if self.queue.try_send(Message::Blob(digest)).is_err() {
            self.fall_behind();
        }
    }

    /// Has the archive brought up to the ledger's end, and lets it end.
    pub(crate) fn close(&self) {
        // An error means that the worker has ended already.
        let _ = self.queue.send(Message::Close);
    }

    pub(crate) fn status(&self) -> watch::Receiver<ArchiveStatus> {
        self.status.subscribe()
    }

    fn fall_behind(&self) {
        if !self.behind.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        // If there is no place for this, what fills the queue wakes the worker just as well.
        let _ = self.queue.try_send(Message::Wake);
    }
}

/// The running archive.
pub(crate) struct Archive {
    pub(crate) sender: Arc<Sender>,
    pub(crate) dir: PathBuf,
    files: Arc<dyn FileSystem>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Archive {
    /// Starts archiving into `options.dir`, before anything new is committed. Errors are the
    /// archive's own business from here on.
    pub(crate) fn start(options: ArchiveOptions, shared: Arc<Shared>) -> io::Result<Archive> {
        let (sender, messages) = Sender::new();
        let sender = Arc::new(sender);
        let dir = options.dir.clone();
        let files = Arc::clone(&shared.environment.archive_files);
        let worker = Worker {
            opened_at: shared.head().position,
            shared,
            options,
            messages,
            sender: Arc::clone(&sender),
        };
        let thread = thread::Builder::new().name("ledger-archive".to_owned());
        let thread = Mutex::new(Some(thread.spawn(move || worker.run())?));
        Ok(Archive {
            sender,
            dir,
            files,
            thread,
        })
    }

    /// How it is at this instant. Where its folder is gone and the worker had no reason to look yet,
    /// it is woken to find that out and say it.
    pub(crate) fn look(&self) -> ArchiveStatus {
        let mut status = self.sender.status().borrow().clone();
        let is_filled = status.archived > Position::START;
        if status.is_open
            && status.failed.is_none()
            && let Err(StoreError(reason)) = erase::check_there(&*self.files, &self.dir, is_filled)
        {
            self.sender.wake();
            status.failed = Some(reason);
        }
        status
    }

    /// Waits until everything that is durable in the ledger is in the archive, or it has failed.
    pub(crate) fn close(&self) {
        self.sender.close();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // The worker reports its own panic.
            let _ = thread.join();
        }
    }
}

fn bytes_of(writes: &[Write]) -> usize {
    writes
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}
