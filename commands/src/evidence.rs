//! What a third party checks the ledger with: checkpoints, proofs and keys.
//!
//! Nothing here decides anything. Whoever asks gets what the ledger signed; the only change is the key's
//! being handed on, which is an event.

use std::sync::Arc;

use fluxvm_eventstore::BlobDigest;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::ConsistencyProof;
use fluxvm_eventstore::Content;
use fluxvm_eventstore::EvidenceOptions;
use fluxvm_eventstore::ExportScope;
use fluxvm_eventstore::GlobalSeq;
use fluxvm_eventstore::InclusionProof;
use fluxvm_eventstore::KeyRotation;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::SignedCheckpoint;
use fluxvm_eventstore::StreamName;
use fluxvm_eventstore::StreamVersion;
use fluxvm_eventstore::VerifierKey;
use fluxvm_projections::SessionId;
use tokio::sync::watch;
use uuid::Uuid;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::CommandError;
use crate::redaction::blobs_of;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

/// Events whose content is looked for at once: some tens of milliseconds' worth.
const CONTENT_LOOK_EVENTS_MAX: u64 = 20_000;

impl Engine {
    /// The signed checkpoint of all that is durable now.
    ///
    /// # Errors
    ///
    /// `Sign`.
    pub async fn checkpoint(&self) -> Result<Arc<SignedCheckpoint>, CommandError> {
        Ok(self.inner.book.ledger().checkpoint().await?)
    }

    /// The newest signed checkpoint, and each one after it.
    #[must_use]
    pub fn checkpoints(&self) -> watch::Receiver<Option<Arc<SignedCheckpoint>>> {
        self.inner.book.ledger().checkpoints()
    }

    /// The checkpoint that was signed at this size.
    ///
    /// # Errors
    ///
    /// `CheckpointNotFound` when none was, `Read`.
    pub async fn checkpoint_at(&self, size: u64) -> Result<SignedCheckpoint, CommandError> {
        let found = self
            .blocking(move |ledger| ledger.checkpoint_at(Position::new(size)))
            .await?;
        found.ok_or(CommandError::CheckpointNotFound(size))
    }

    /// That an event is in the ledger as it is now.
    ///
    /// # Errors
    ///
    /// `EventNotFound`, `Sign`, `Read`.
    pub async fn inclusion_proof(&self, seq: u64) -> Result<InclusionProof, CommandError> {
        let checkpoint = self.checkpoint().await?;
        let event = GlobalSeq::new(seq).filter(|it| it.position() <= checkpoint.size());
        let event = event.ok_or(CommandError::EventNotFound(seq))?;
        self.blocking(move |ledger| ledger.inclusion_proof(event, &checkpoint))
            .await
    }

    /// That the ledger at one size begins with what it was at another. `to` is the size of a checkpoint
    /// that was signed; without it, of one that is signed now.
    ///
    /// # Errors
    ///
    /// `Invalid` when `from` lies behind `to`, `CheckpointNotFound`, `Sign`, `Read`.
    pub async fn consistency_proof(
        &self,
        from: u64,
        to: Option<u64>,
    ) -> Result<ConsistencyProof, CommandError> {
        let newest = self.checkpoint().await?;
        let checkpoint = match to.filter(|to| *to != newest.size().get()) {
            Some(to) => Arc::new(self.checkpoint_at(to).await?),
            None => newest,
        };
        let from = Position::new(from);
        if from > checkpoint.size() {
            let size = checkpoint.size();
            return Err(CommandError::Invalid {
                field: "from",
                message: format!(
                    "must be at most {size}, the size that it is to be consistent with"
                ),
            });
        }
        self.blocking(move |ledger| ledger.consistency_proof(from, &checkpoint))
            .await
    }

    /// The keys that spoke for the ledger, the oldest first, each with the size from which on it does.
    #[must_use]
    pub fn keys(&self) -> Vec<(Position, VerifierKey)> {
        self.inner.book.ledger().keys()
    }

    /// Hands the ledger's key on to a new one.
    ///
    /// # Errors
    ///
    /// `Sign`.
    pub async fn rotate_key(&self, caller: &Caller) -> Result<Arc<RecordedEvent>, CommandError> {
        let rotation = KeyRotation {
            command_id: CommandId::new(Uuid::now_v7()),
            correlation_id: caller.request,
            actor: caller.actor.clone(),
        };
        self.run(caller, move |inner, _| async move {
            Ok(inner.book.ledger().rotate_key(rotation).await?)
        })
        .await
    }

    /// A session's events as evidence, line by line: each proven to be in a checkpoint that is signed now.
    /// Reading blocks.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Sign`, `Read`.
    pub async fn session_evidence(
        &self,
        caller: &Caller,
        id: SessionId,
        content: Content,
    ) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, CommandError> {
        self.inner.book.session(caller, id)?;
        self.evidence(ExportScope::Stream(id.stream()), content)
            .await
    }

    /// The whole ledger as evidence, in the same way. Whoever may see it is the server's matter.
    ///
    /// # Errors
    ///
    /// `Sign`, `Read`.
    pub async fn ledger_evidence(
        &self,
        content: Content,
    ) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, CommandError> {
        self.evidence(ExportScope::WholeLedger, content).await
    }

    /// Looks whether the content that the newest events stand for is there. Its bytes are not read.
    ///
    /// # Errors
    ///
    /// `Read`.
    pub async fn look_at_content(&self) -> Result<ContentLook, CommandError> {
        self.blocking(|ledger| {
            let head = ledger.head().position.get();
            let mut after = Position::new(head.saturating_sub(CONTENT_LOOK_EVENTS_MAX));
            let mut look = ContentLook::default();
            loop {
                let page = ledger.read(after, READ_PAGE)?;
                let Some(last) = page.last() else {
                    return Ok(look);
                };
                after = last.header.seq.position();
                for event in &page {
                    look.take(&ledger, event)?;
                }
                if look.events >= CONTENT_LOOK_EVENTS_MAX {
                    return Ok(look);
                }
            }
        })
        .await
    }

    async fn evidence(
        &self,
        scope: ExportScope,
        content: Content,
    ) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, CommandError> {
        let checkpoint = self.checkpoint().await?;
        let options = EvidenceOptions {
            scope,
            content,
            required: required_blobs,
        };
        Ok(self.inner.book.ledger().evidence(options, checkpoint)?)
    }

    /// The events of the whole ledger or of one stream, from a number on and up to the head of this instant.
    /// Reading blocks. Whoever may see them is the server's matter.
    pub fn ledger_events(
        &self,
        from: u64,
        stream: Option<StreamName>,
    ) -> impl Iterator<Item = Result<Arc<RecordedEvent>, ReadError>> + Send + use<> {
        let ledger = self.inner.book.ledger().clone();
        Pages {
            until: ledger.head().position,
            after: Position::new(from.saturating_sub(1)),
            version: None,
            ledger,
            stream,
            page: Vec::new().into_iter(),
            done: false,
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(Ledger) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, CommandError> {
        let ledger = self.inner.book.ledger().clone();
        let read = tokio::task::spawn_blocking(move || read(ledger)).await;
        Ok(read.map_err(|error| CommandError::Internal(error.to_string()))??)
    }
}

/// What is there of the content that events stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentLook {
    /// How many events were looked at: the newest ones.
    pub events: u64,
    /// How many pieces of content they stand for.
    pub pieces: u64,
    /// How many of those are missing.
    pub missing: u64,
    /// The first event that one is missing of.
    pub first_missing: Option<u64>,
}

impl ContentLook {
    fn take(&mut self, ledger: &Ledger, event: &RecordedEvent) -> Result<(), ReadError> {
        let seq = event.header.seq;
        self.events += 1;
        for digest in required_blobs(event) {
            let is_there = ledger.has_blob_of_event(seq, &digest);
            let is_there = is_there.map_err(|error| ReadError::Store {
                reason: error.to_string().into(),
            })?;
            self.pieces += 1;
            if !is_there {
                self.missing += 1;
                self.first_missing.get_or_insert(seq.get());
            }
        }
        Ok(())
    }
}

/// The content that an event stands for.
fn required_blobs(event: &RecordedEvent) -> Vec<BlobDigest> {
    let blobs = blobs_of(event);
    blobs.iter().filter_map(|blob| blob.parse().ok()).collect()
}

/// Events, read page by page.
struct Pages {
    ledger: Ledger,
    stream: Option<StreamName>,
    after: Position,
    /// Up to where the stream was read, if it is one.
    version: Option<StreamVersion>,
    until: Position,
    page: std::vec::IntoIter<Arc<RecordedEvent>>,
    done: bool,
}

impl Pages {
    fn read(&mut self) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let Some(stream) = &self.stream else {
            let page = self.ledger.read(self.after, READ_PAGE)?;
            if let Some(last) = page.last() {
                self.after = last.header.seq.position();
            }
            return Ok(page);
        };
        let page = self.ledger.read_stream(stream, self.version, READ_PAGE)?;
        if let Some(last) = page.last() {
            self.version = Some(last.header.version);
        }
        Ok(page)
    }
}

impl Iterator for Pages {
    type Item = Result<Arc<RecordedEvent>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            if let Some(event) = self.page.next() {
                let at = event.header.seq.position();
                if at > self.until {
                    break;
                }
                // A stream is read from its beginning, whatever lies before the number.
                if self.stream.is_none() || at > self.after {
                    return Some(Ok(event));
                }
                continue;
            }
            match self.read() {
                Ok(page) if page.is_empty() => break,
                Ok(page) => self.page = page.into_iter(),
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        self.done = true;
        None
    }
}
