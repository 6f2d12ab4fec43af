//! The thread that writes the archive.

use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;

use super::ArchiveFailure;
use super::ArchiveOptions;
use super::END_KEY;
use super::Message;
use super::Sender;
use super::bytes_of;
use super::catch_up;
use super::erase;
use crate::blobs::BlobDigest;
use crate::blobs::BlobStore;
use crate::keys;
use crate::record;
use crate::redact;
use crate::shared::Shared;
use crate::store::StoreError;
use crate::store::Write;
use crate::store::file_system::FileSystem;
use crate::store::log;
use crate::store::log::Log;
use crate::store::log::Mode;

/// What has queued up goes into frames of about this size.
const FRAME_BYTES: usize = 8 * 1024 * 1024;

/// What the thread starts with.
pub(crate) struct Worker {
    /// Where the ledger ended when it was opened. What came later is in the queue.
    pub(crate) opened_at: Position,
    pub(crate) shared: Arc<Shared>,
    pub(crate) options: ArchiveOptions,
    pub(crate) messages: mpsc::Receiver<Message>,
    pub(crate) sender: Arc<Sender>,
}

impl Worker {
    /// Runs until it is told to close or the archive fails.
    pub(crate) fn run(self) {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let panicked = |_| Err(StoreError("its thread panicked".to_owned()));
        if let Err(StoreError(reason)) = served.unwrap_or_else(panicked) {
            let dir = self.options.dir.display();
            tracing::error!(%reason, %dir, "the archive failed: nothing more is archived");
            if self.options.on_failure == ArchiveFailure::Stop {
                self.shared.poison(&format!("the archive failed: {reason}"));
            }
            let note = |status: &mut super::ArchiveStatus| status.failed = Some(reason);
            self.sender.status.send_modify(note);
        }
    }

    fn serve(&self) -> Result<(), StoreError> {
        let mut archive = OpenArchive::open(self)?;
        let note = |status: &mut super::ArchiveStatus| status.is_open = true;
        self.sender.status.send_modify(note);
        archive.catch_up_after_start()?;
        // The channel stays open for as long as this thread holds its own sender.
        while let Ok(first) = self.messages.recv() {
            archive.check_there()?;
            let mut message = Some(first);
            let mut closing = false;
            while let Some(current) = message.take() {
                closing |= archive.take(current)?;
                if archive.body.len() < FRAME_BYTES {
                    message = self.messages.try_recv().ok();
                }
            }
            archive.flush()?;
            archive.erase()?;
            if self.sender.behind.swap(false, Ordering::SeqCst) {
                archive.catch_up()?;
                archive.erase()?;
            }
            if closing {
                return archive.finish();
            }
        }
        Ok(())
    }
}

impl Worker {
    /// How many redactions the ledger's store has at this instant.
    pub(super) fn redactions(&self) -> Result<u64, StoreError> {
        let store = self.shared.store();
        let store = store.ok_or_else(|| StoreError("the ledger is closed".to_owned()))?;
        redact::count(&*store, keys::REDACTIONS)
    }
}

/// The archive's files.
pub(super) struct OpenArchive<'a> {
    pub(super) worker: &'a Worker,
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) blobs: BlobStore,
    /// How many events are in the archive or in `body`.
    pub(super) archived: Position,
    /// How often the log was written anew.
    pub(super) generation: u64,
    /// Something was erased that is still in the log.
    erases: bool,
    /// Blobs whose files were erased with it.
    pub(super) erased_blobs: Vec<BlobDigest>,
    /// What goes into the next frame.
    body: Vec<u8>,
    pub(super) log: Log,
    found: Found,
    _lock: Option<File>,
}

/// What was in the archive when it was opened.
#[derive(Default)]
struct Found {
    genesis: Option<Vec<u8>>,
    last_record: Option<(GlobalSeq, Vec<u8>)>,
    /// How many redactions it knows of.
    redactions: Option<Vec<u8>>,
    /// How often it was told of one.
    redactions_told: u64,
    /// The last thing in it, if that is the note of an orderly end.
    end: Option<Vec<u8>>,
}

impl<'a> OpenArchive<'a> {
    fn open(worker: &'a Worker) -> Result<OpenArchive<'a>, StoreError> {
        let environment = &worker.shared.environment;
        let files = Arc::clone(&environment.archive_files);
        let dir = worker.options.dir.as_path();
        files.create_dir(dir).map_err(|e| failed(dir, &e))?;
        let lock = files.lock(dir).map_err(|e| failed(dir, &e))?;
        let disk = Arc::clone(&environment.disk);
        let blobs = BlobStore::open(&dir.join(BLOBS), disk).map_err(|e| failed(dir, &e))?;
        let mut found = Found::default();
        let generation = erase::generation(&*files, dir).map_err(|e| failed(dir, &e))?;
        erase::remove_leftovers(&*files, dir, generation).map_err(|e| failed(dir, &e))?;
        let log = Log::open(
            Arc::clone(&files),
            &erase::folder(dir, generation),
            Mode::Append,
            &mut |key, value, _| found.take(key, value),
        )?;
        Ok(OpenArchive {
            worker,
            files,
            blobs,
            archived: Position::START,
            generation,
            erases: false,
            erased_blobs: Vec::new(),
            body: Vec::new(),
            log,
            found,
            _lock: lock,
        })
    }

    /// Holds what is in the archive against the ledger, and adds what it lacks.
    fn catch_up_after_start(&mut self) -> Result<(), StoreError> {
        let found = std::mem::take(&mut self.found);
        let shared = &self.worker.shared;
        if found
            .genesis
            .is_some_and(|found| found != shared.genesis.encode())
        {
            return Err(StoreError("it is the archive of another ledger".to_owned()));
        }
        if let Some((seq, archived)) = found.last_record {
            let head = shared.head().position;
            if seq.position() > head {
                return Err(StoreError(format!(
                    "it goes up to event {seq}, and the ledger only to {head}: the ledger has lost \
                     its end, or is an older copy"
                )));
            }
            let archived = record::decode(&archived.into());
            let archived = archived.map_err(|e| StoreError(format!("event {seq} in it: {e}")))?;
            let ours = shared
                .read_one(seq)
                .map_err(|e| StoreError(e.to_string()))?;
            if ours.hash != archived.hash {
                return Err(StoreError(format!(
                    "event {seq} in it is not the one in the ledger"
                )));
            }
            self.archived = seq.position();
        }
        self.publish();
        let redactions = self.worker.redactions()?;
        let known = found.redactions.as_deref().unwrap_or(&[0; 8]);
        // A log that was written anew is told once. Told of more than that, it was not written anew
        // for the last of them: what it had held before is still in it.
        let is_written_anew = found.redactions_told <= u64::from(self.generation > 0);
        // Events are compared by number, so that the log does not show which of them were erased.
        self.erases = known != redactions.to_be_bytes() || !is_written_anew;
        if !self.erases {
            self.note_erased(redactions);
        }
        let is_complete = self.archived == self.worker.opened_at && found.end == Some(self.end());
        match is_complete {
            true => {}
            false => self.catch_up()?,
        }
        self.erase()
    }

    /// Writes the log anew, if something was erased that is still in it.
    fn erase(&mut self) -> Result<(), StoreError> {
        match std::mem::take(&mut self.erases) {
            true => self.write_anew(),
            false => Ok(()),
        }
    }

    /// Takes one message; whether it was the last.
    fn take(&mut self, message: Message) -> Result<bool, StoreError> {
        match message {
            Message::Group(writes) => {
                let bytes = bytes_of(&writes);
                self.worker
                    .sender
                    .queued_bytes
                    .fetch_sub(bytes, Ordering::SeqCst);
                if !self.has(&writes) {
                    for (key, value) in &writes {
                        self.push(key, value)?;
                    }
                }
            }
            Message::Blob(digest) => self.copy_blob(&digest)?,
            Message::Wake => {}
            Message::Close => return Ok(true),
        }
        Ok(false)
    }

    /// Whether all of a group is in the log already, as a log that was written anew has more than
    /// what had been taken from the queue. Pushing it again could bring back what was erased since.
    fn has(&self, writes: &[Write]) -> bool {
        let seqs = writes.iter().filter_map(|(key, _)| keys::event_seq(key));
        let last = seqs.max().map(GlobalSeq::position);
        let erases = writes.iter().any(|(key, _)| key == keys::REDACTIONS);
        !erases && last.is_some_and(|last| last <= self.archived)
    }

    /// Puts one write into the next frame.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if key == keys::UNLINK {
            // What a ledger has still to do is no business of one that is made of this archive.
            let (digests, _) = value.as_chunks::<32>();
            let digests = digests.iter().map(|digest| BlobDigest::from_bytes(*digest));
            self.erased_blobs.extend(digests);
            return Ok(());
        }
        self.erases |= key == keys::REDACTIONS;
        if self.body.len() + value.len() > 2 * FRAME_BYTES {
            self.flush()?;
        }
        log::push_write(&mut self.body, key, value);
        if let Some(seq) = keys::event_seq(key) {
            self.archived = self.archived.max(seq.position());
        }
        Ok(())
    }

    /// Makes durable what was pushed.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        if !self.body.is_empty() {
            self.log.append(&self.body)?;
            self.body.clear();
            self.publish();
        }
        Ok(())
    }

    /// Copies a blob file, unless it is gone by now.
    pub(super) fn copy_blob(&self, digest: &BlobDigest) -> Result<(), StoreError> {
        let bytes = self.worker.shared.blobs.get(digest);
        let bytes = bytes.map_err(|e| StoreError(e.to_string()))?;
        if let Some(bytes) = bytes {
            let put = self.blobs.put(&bytes);
            put.map_err(|e| StoreError(format!("blob {digest}: {e}")))?;
        }
        Ok(())
    }

    fn catch_up(&mut self) -> Result<(), StoreError> {
        catch_up::catch_up(self)?;
        self.flush()
    }

    /// Notes that nothing is lacking.
    fn finish(&mut self) -> Result<(), StoreError> {
        let end = self.end();
        self.push(END_KEY, &end)?;
        self.flush()
    }

    fn end(&self) -> Vec<u8> {
        self.archived.get().to_be_bytes().to_vec()
    }

    /// Fails where the log is no longer to be found under its name.
    fn check_there(&self) -> Result<(), StoreError> {
        let is_filled = self.log.bytes() > 0;
        erase::check_there(&*self.files, &self.worker.options.dir, is_filled)
    }

    /// Says that nothing is left of so many redactions.
    pub(super) fn note_erased(&self, redactions: u64) {
        let note = |status: &mut super::ArchiveStatus| status.redactions_done = Some(redactions);
        self.worker.sender.status.send_modify(note);
    }

    pub(super) fn publish(&self) {
        let archived = self.archived;
        let note = |status: &mut super::ArchiveStatus| status.archived = archived;
        self.worker.sender.status.send_modify(note);
    }
}

impl Found {
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.end = (key == END_KEY).then(|| value.to_vec());
        if key == keys::REDACTIONS {
            self.redactions = Some(value.to_vec());
            self.redactions_told += 1;
        }
        if key == keys::GENESIS {
            self.genesis = Some(value.to_vec());
        }
        let Some(seq) = keys::event_seq(key) else {
            return Ok(());
        };
        let next = self
            .last_record
            .as_ref()
            .map_or(GlobalSeq::FIRST, |(last, _)| last.next());
        if seq > next {
            return Err(StoreError(format!("it lacks event {next}")));
        }
        if seq == next {
            self.last_record = Some((seq, value.to_vec()));
        }
        Ok(())
    }
}

/// The folder of the archive's blob files.
pub(super) const BLOBS: &str = "blobs";

fn failed(dir: &Path, error: &dyn std::fmt::Display) -> StoreError {
    StoreError(format!("{}: {error}", dir.display()))
}
