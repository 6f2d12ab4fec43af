//! The one thread that owns the chain.
//!
//! It takes whatever has queued up, links it, writes one batch, syncs it, and then, in this order:
//! notes the head, lets the observer follow, moves the watermark and answers. Whoever sees an event
//! through a subscription therefore finds the observer's state at that event or beyond it, and so
//! does a writer who was answered. There is no timer: while one group syncs, the next one gathers.
//!
//! The first error of a commit is the last thing that this thread writes. A sync that failed may
//! succeed when it is tried again without the bytes being on the disk, so nothing is ever tried
//! again.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Instant;

use fluxvm_verify::CommandId;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::merkle::Frontier;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use tokio::sync::watch;

use crate::AppendError;
use crate::Appended;
use crate::BlobDigest;
use crate::Follower;
use crate::Head;
use crate::KeyRotation;
use crate::checkpointer::Checkpointer;
use crate::checkpointer::SignReply;
use crate::checkpointer::writes_of;
use crate::group::Group;
use crate::group::Reply;
use crate::head_file::HeadFile;
use crate::idempotency::Commands;
use crate::keys;
use crate::prepare::Prepared;
use crate::record::Body;
use crate::redact::PreparedRedaction;
use crate::redact::RedactReply;
use crate::rotate::RotateReply;
use crate::seal::Held;
use crate::shared::Shared;
use crate::shred::PreparedShred;
use crate::shred::ShredReply;
use crate::snapshot::Background;
use crate::state::View;
use crate::store::LARGE_BYTES;

/// How many appends may wait. A writer beyond them waits for a place.
pub(crate) const QUEUE_APPENDS_MAX: usize = 4096;

/// What the committer is asked to do.
pub(crate) enum Request {
    /// Append this and answer.
    Append(Prepared, Reply),
    /// Erase this and answer.
    Redact(Box<PreparedRedaction>, RedactReply),
    /// Destroy a stream's key and answer.
    Shred(Box<PreparedShred>, ShredReply),
    /// Sign for what is durable and answer.
    Checkpoint(SignReply),
    /// Sign if it is time, and answer whoever waits.
    Tick(Option<oneshot::Sender<()>>),
    /// Hand the key on and answer.
    Rotate(Box<KeyRotation>, RotateReply),
    /// Commit what has queued up, let go of the store and answer.
    Close(oneshot::Sender<()>),
}

/// What the thread starts with.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: mpsc::Receiver<Request>,
    pub(crate) watermark: watch::Sender<Head>,
    pub(crate) follower: Box<dyn Follower>,
    /// Takes snapshots, if any are to be taken.
    pub(crate) background: Option<Background>,
    pub(crate) commands: Commands,
    pub(crate) head_file: HeadFile,
    pub(crate) head: Head,
    pub(crate) last_recorded_at: RecordedAt,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) key_file: PathBuf,
    /// Who waits for the end.
    pub(crate) closing: Vec<oneshot::Sender<()>>,
}

impl Committer {
    /// Runs until the last writer is gone or the ledger is closed.
    pub(crate) fn run(mut self) {
        let panicked = catch_unwind(AssertUnwindSafe(|| self.serve())).is_err();
        if panicked {
            self.shared.poison("the committer panicked");
            // Appends that still wait are answered by their channel being dropped.
            self.queue.close();
            while self.queue.try_recv().is_ok() {}
        }
        self.finish();
    }

    fn serve(&mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let mut group = Group::new(self.head, self.last_recorded_at);
            let mut request = Some(first);
            while let Some(current) = request.take() {
                self.take(current, &mut group);
                if !group.is_full() {
                    request = self.queue.try_recv().ok();
                }
            }
            self.commit(group);
        }
    }

    fn take(&mut self, request: Request, group: &mut Group) {
        match request {
            Request::Append(append, reply) => {
                let answer = self.admit(append, group);
                group.answers.push((reply, answer));
            }
            Request::Redact(redaction, reply) => {
                // It has a group of its own: what came before it is in the store then.
                let next = Group::new(self.head, self.last_recorded_at);
                self.commit(std::mem::replace(group, next));
                self.redact(*redaction, reply);
                *group = Group::new(self.head, self.last_recorded_at);
            }
            Request::Shred(shred, reply) => {
                let next = Group::new(self.head, self.last_recorded_at);
                self.commit(std::mem::replace(group, next));
                self.shred(*shred, reply);
                *group = Group::new(self.head, self.last_recorded_at);
            }
            Request::Close(reply) => {
                self.queue.close();
                self.closing.push(reply);
            }
            control => {
                // A signature is for durable events only: what came before it is made that.
                let next = Group::new(self.head, self.last_recorded_at);
                self.commit(std::mem::replace(group, next));
                self.take_control(control);
                *group = Group::new(self.head, self.last_recorded_at);
            }
        }
    }

    /// Takes what is about signing. Who no longer waits has it done all the same.
    fn take_control(&mut self, request: Request) {
        match request {
            Request::Checkpoint(reply) => {
                let _ = reply.send(self.checkpoint());
            }
            Request::Tick(reply) => {
                self.tick();
                let _ = reply.map(|reply| reply.send(()));
            }
            Request::Rotate(rotation, reply) => {
                let _ = reply.send(self.rotate(*rotation));
            }
            Request::Append(..) | Request::Redact(..) | Request::Shred(..) | Request::Close(_) => {}
        }
    }

    pub(crate) fn admit(
        &mut self,
        append: Prepared,
        group: &mut Group,
    ) -> Result<Appended, AppendError> {
        if let Some(reason) = self.shared.poisoned() {
            return Err(AppendError::Poisoned { reason });
        }
        if let Some(earlier) = self.earlier_result(append.command_id, group)? {
            return Ok(earlier);
        }
        let mut append = append;
        self.check_seal(&append)?;
        self.keep_files(&append)?;
        let mut attachments = Vec::new();
        let mut sealed = Vec::new();
        for stream in &mut append.streams {
            attachments.append(&mut stream.attachments);
            sealed.extend(stream.seal.take());
        }
        let now = self.shared.environment.clock.now();
        let appended = group.admit(append, now, &self.shared.memory())?;
        if let Some(seals) = self.shared.blobs.seals() {
            let notes = sealed.iter();
            let notes = notes.filter_map(|(stream, key)| seals.note_first(key, stream));
            group.writes.extend(notes);
        }
        let store = self.shared.store().ok_or(AppendError::Closed)?;
        for (key, value) in attachments.into_iter().filter_map(|it| it.write) {
            // Output is often the same as before; the same bytes need not be written again.
            let held = store
                .get(&key)
                .map_err(|e| self.poisoned_by(&e.to_string()))?;
            if held.is_none_or(|held| keys::is_erased_blob(&key, &held)) {
                group.writes.push((key, value));
            }
        }
        for event in &appended {
            self.commands.note(event);
        }
        Ok(appended)
    }

    /// Refuses what is sealed with a key that was destroyed since: nobody could ever read it.
    fn check_seal(&self, append: &Prepared) -> Result<(), AppendError> {
        let Some(seals) = self.shared.blobs.seals() else {
            return Ok(());
        };
        for (stream, key) in append.streams.iter().filter_map(|it| it.seal.as_ref()) {
            if let Some(Held::Destroyed) = seals.get(key.id) {
                let stream = stream.clone();
                return Err(AppendError::KeyDestroyed { stream });
            }
        }
        Ok(())
    }

    /// Stores the files of large payloads and blobs again that were erased since the writer stored
    /// them. From here to the commit nothing is erased.
    fn keep_files(&self, append: &Prepared) -> Result<(), AppendError> {
        let attachments = append.streams.iter().flat_map(|it| &it.attachments);
        for (digest, bytes) in attachments.filter_map(|it| it.file.as_ref()) {
            match bytes {
                Some(bytes) => self.keep_file(digest, bytes)?,
                None if self.shared.blobs.contains(digest) => {}
                None => {
                    let reason = "it was erased before anything named it".into();
                    return Err(AppendError::Blob { reason });
                }
            }
        }
        let events = append.streams.iter().flat_map(|stream| &stream.events);
        for prepared in events {
            // No other event shares the file of a sealed one.
            if let Body::File(digest) = &prepared.body {
                self.keep_file(digest, prepared.event.payload())?;
            }
        }
        Ok(())
    }

    fn keep_file(&self, digest: &BlobDigest, bytes: &[u8]) -> Result<(), AppendError> {
        if !self.shared.blobs.contains(digest) {
            let put = self.shared.put_blob(bytes);
            put.map_err(|e| self.poisoned_by(&e.to_string()))?;
        }
        Ok(())
    }

    /// What the command was answered with the first time, if there was one.
    pub(crate) fn earlier_result(
        &self,
        command_id: CommandId,
        group: &Group,
    ) -> Result<Option<Appended>, AppendError> {
        let Some(mut seq) = self.commands.first_seq(command_id) else {
            return Ok(None);
        };
        if seq.position() > self.head.position {
            return Ok(group.events_of(command_id));
        }
        let mut events = Vec::new();
        while seq.position() <= self.head.position {
            let event = self
                .shared
                .read_one(seq)
                .map_err(|e| self.poisoned_by(&e.to_string()))?;
            if event.header.command_id != command_id {
                break;
            }
            events.push(event);
            seq = seq.next();
        }
        Ok(Some(events).filter(|events| !events.is_empty()))
    }

    pub(crate) fn poisoned_by(&self, reason: &str) -> AppendError {
        self.shared.poison(reason);
        AppendError::Poisoned {
            reason: reason.to_owned(),
        }
    }

    fn commit(&mut self, mut group: Group) {
        let answers = std::mem::take(&mut group.answers);
        let durable = catch_unwind(AssertUnwindSafe(|| self.make_durable(group)));
        let durable = durable.unwrap_or_else(|_| {
            let reason = "the committer or its observer panicked";
            self.shared.poison(reason);
            Err(reason.to_owned())
        });
        let failed = durable.err();
        for (reply, answer) in answers {
            let answer = match &failed {
                Some(reason) => Err(AppendError::Poisoned {
                    reason: reason.clone(),
                }),
                None => answer,
            };
            // A writer who no longer waits has its events all the same.
            let _ = reply.send(answer);
        }
    }

    pub(crate) fn make_durable(&mut self, group: Group) -> Result<(), String> {
        if group.events.is_empty() {
            return Ok(());
        }
        if let Some(reason) = self.shared.poisoned() {
            return Err(reason);
        }
        let store = self.shared.store().ok_or("the store is closed")?;
        let mut group = group;
        let mut growth = {
            let memory = self.shared.memory();
            self.checkpointer.grow(&group.events, memory.leaves())
        };
        group.writes.append(&mut growth.writes);
        let signed = self.sign_with(&mut group, &growth.frontier)?;
        let started = Instant::now();
        let written = store.commit(&group.writes).map_err(|e| e.to_string());
        let noted = written.and_then(|()| {
            self.head_file
                .note(group.head)
                .map_err(|e| format!("the head cannot be noted: {e}"))
        });
        if let Err(reason) = noted {
            self.shared.poison(&reason);
            return Err(reason);
        }
        let took = started.elapsed();
        self.shared
            .sync_times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(took);
        self.head = group.head;
        self.last_recorded_at = group.last_recorded_at;
        self.checkpointer.frontier = growth.frontier;
        {
            let mut memory = self.shared.memory_mut();
            group.events.iter().for_each(|event| memory.push(event));
            for leaf in growth.new_leaves {
                memory.push_leaf(leaf);
            }
            for event in &group.redacted {
                memory.erase(event);
            }
        }
        self.follower.follow(&group.events);
        self.watermark.send_replace(group.head);
        if let Some(background) = &self.background {
            background.wake.tell(group.head.position);
        }
        if let Some(archive) = self.shared.archive() {
            archive.sender.group(group.writes);
        }
        match signed {
            Some(signed) => self.publish(&signed),
            None => self.checkpointer.timer.ask(),
        }
        Ok(())
    }

    /// Signs for the state that the group leads to, where it is time, as a part of the group.
    fn sign_with(
        &self,
        group: &mut Group,
        frontier: &Frontier,
    ) -> Result<Option<Arc<SignedCheckpoint>>, String> {
        let now = self.shared.environment.clock.elapsed();
        if group.is_signed_later || !self.checkpointer.is_due(now) {
            return Ok(None);
        }
        let signed = self.checkpointer.sign(frontier).map_err(|reason| {
            self.shared.poison(reason);
            reason.to_owned()
        })?;
        group.writes.extend(writes_of(&signed));
        Ok(Some(Arc::new(signed)))
    }

    /// Keeps what everything came to, for the next opening.
    fn keep_snapshot(&self) {
        let Some(store) = self.shared.store() else {
            return;
        };
        if self.shared.poisoned().is_some() || self.head.position == Position::START {
            return;
        }
        let view = View {
            memory: &self.shared.memory(),
            commands: &self.commands,
            head: self.head,
            last_recorded_at: self.last_recorded_at,
            frontier: &self.checkpointer.frontier,
            chain: &self.shared.chain(),
        };
        let kept = self.shared.snapshots.keep(&view, &*self.follower, &*store);
        if let Err(error) = kept {
            tracing::warn!(%error, "no snapshot could be taken");
        }
    }

    fn finish(&mut self) {
        if self.checkpointer.is_behind() && self.shared.poisoned().is_none() {
            // A failure has poisoned the ledger, which is how it is told.
            let _ = self.checkpoint();
        }
        if let Some(background) = self.background.take() {
            background.end();
            self.keep_snapshot();
        }
        // Every note is true by itself, so a failure here changes nothing.
        if let Err(e) = self.head_file.sync(&*self.shared.environment.disk) {
            tracing::warn!(error = %e, "the head file does not sync");
        }
        if let Some(archive) = self.shared.archive() {
            archive.close();
        }
        if self.shared.poisoned().is_none()
            && let Some(store) = self.shared.store()
        {
            store.ends_in_order(LARGE_BYTES);
        }
        self.shared.close_store();
        for reply in self.closing.drain(..) {
            let _ = reply.send(());
        }
    }
}
