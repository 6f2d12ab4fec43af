//! Erase all that a session said: by the destruction of its key, or event by event.
//!
//! Either way the session's own stream gets one event that holds what is left of it, so that a fold of
//! the erased ledger and one that saw it before agree. Only what has ended is erased.

mod decide;
mod found;
mod retention;
mod shred;

use std::collections::HashSet;
use std::sync::Arc;

use fluxvm_eventstore::Append;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::StreamAppend;
use fluxvm_eventstore::StreamName;
use fluxvm_eventstore::StreamVersion;
use fluxvm_projections::Event;
use fluxvm_projections::IdempotencyErased;
use fluxvm_projections::Session;
use fluxvm_projections::SessionErased;
use fluxvm_projections::SessionId;
use uuid::Uuid;

pub(crate) use found::record as record_found;
pub(crate) use retention::resume;

use crate::answer::RetentionAnswer;
use crate::answer::ShredAnswer;
use crate::book;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::request::Retain;
use crate::request::ShredSession;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

/// Streams that one append reaches at most.
const STREAMS_AT_ONCE: usize = 256;

/// The kind of the answers that are kept for idempotency keys.
const ANSWERED: &str = "idempotency.answered";

impl Engine {
    /// Destroys the key that an ended session was sealed with: all that it said is erased, here and in
    /// every copy. Whoever may do that is the server's matter.
    ///
    /// # Errors
    ///
    /// `Invalid` for the reason, `NotFound`, `NotEnded`, `NotSealed`, `UnderHold`, which is recorded,
    /// `Read` and `Ledger`.
    pub async fn shred_session(
        &self,
        caller: &Caller,
        request: ShredSession,
    ) -> Result<ShredAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            shred::shred(&inner, &caller, request).await
        })
        .await
    }

    /// Erases what ended sessions said before a signed checkpoint. Headers and hashes stay.
    ///
    /// # Errors
    ///
    /// `Invalid` for the reason, `CheckpointNotFound`, `UnderHold`, which is recorded, `TooMany` while
    /// another one is under way, `Read` and `Ledger`.
    pub async fn retain(
        &self,
        caller: &Caller,
        request: Retain,
    ) -> Result<RetentionAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            retention::retain(&inner, &caller, request).await
        })
        .await
    }
}

/// Runs what blocks off the request's thread.
async fn blocking<T: Send + 'static>(
    inner: &Inner,
    read: impl FnOnce(&Ledger) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, CommandError> {
    let ledger = inner.book.ledger().clone();
    let read = tokio::task::spawn_blocking(move || read(&ledger)).await;
    Ok(read.map_err(|error| CommandError::Internal(error.to_string()))??)
}

/// All events of a session. Blocks.
fn events_of(ledger: &Ledger, id: SessionId) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
    let mut events = Vec::new();
    let mut after: Option<StreamVersion> = None;
    loop {
        let page = ledger.read_stream(&id.stream(), after, READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(events);
        };
        after = Some(last.header.version);
        events.extend(page);
    }
}

/// What is left of a session.
fn remains(session: &Session) -> Event {
    Event::SessionErased(SessionErased {
        tenant: session.tenant.clone(),
        status: session.status,
        revision: session.revision,
        created_at: session.created_at,
        sandbox_id: session.sandbox_id,
        backend: session.backend.clone(),
        usage: session.usage,
    })
}

/// What is appended to a stream so that it is readable for good.
fn stream_append(
    stream: StreamName,
    version: Option<StreamVersion>,
    event: Event,
) -> Result<StreamAppend, CommandError> {
    Ok(StreamAppend {
        stream,
        expected: ExpectedVersion::at(version),
        events: vec![book::encode(&Entry::new(event))?],
        attachments: Vec::new(),
        kept: Vec::new(),
        sealed_for: None,
    })
}

fn open_append(caller: &Caller, streams: Vec<StreamAppend>) -> Append {
    Append {
        command_id: CommandId::new(Uuid::now_v7()),
        correlation_id: caller.request,
        actor: caller.actor.clone(),
        streams,
    }
}

/// Has the answers forgotten that are kept for the requests of a session. Their keys stay used. What the
/// state had of them is gone before their content is, which harms nobody if it then stays.
async fn forget_answers(
    inner: &Inner,
    caller: &Caller,
    requests: HashSet<CorrelationId>,
) -> Result<(), CommandError> {
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let kept: Vec<(StreamName, StreamVersion)> = {
            let world = inner.book.world();
            let kept = world.idempotency.answered();
            let kept = kept.filter(|(_, key)| requests.contains(&key.request));
            kept.filter_map(|(name, key)| Some((StreamName::parse(name).ok()?, key.version)))
                .take(STREAMS_AT_ONCE)
                .collect()
        };
        if kept.is_empty() {
            return Ok(());
        }
        let mut streams = Vec::with_capacity(kept.len());
        for (stream, version) in kept {
            let name = stream.clone();
            let seq = blocking(inner, move |ledger| answer_in(ledger, &name)).await?;
            let erased = Event::IdempotencyErased(IdempotencyErased { seq });
            streams.push(stream_append(stream, Some(version), erased)?);
        }
        let append = open_append(caller, streams);
        match inner.book.ledger().append(append).await {
            // A key was taken anew meanwhile: its state has nothing of the session any more.
            Ok(_) | Err(AppendError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CommandError::TooMany {
        what: "answers of one session",
        limit: DECIDE_ATTEMPTS_MAX * STREAMS_AT_ONCE,
    })
}

/// The event that holds a key's latest answer. Blocks.
fn answer_in(ledger: &Ledger, stream: &StreamName) -> Result<u64, ReadError> {
    let mut found = 0;
    let mut after = None;
    loop {
        let page = ledger.read_stream(stream, after, READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(found);
        };
        after = Some(last.header.version);
        let mut answers = page.iter().filter(|it| it.header.kind.as_str() == ANSWERED);
        found = answers.next_back().map_or(found, |it| it.header.seq.get());
    }
}
