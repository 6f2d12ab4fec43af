//! Destroy the key that a session was sealed with.

use std::collections::HashSet;
use std::sync::Arc;

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::Shred;
use fluxvm_eventstore::ShredError;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::Hold;
use fluxvm_projections::LedgerShredRefused;
use fluxvm_projections::LedgerShredded;
use fluxvm_projections::SessionId;

use super::READ_PAGE;
use super::blocking;
use super::decide;
use super::decide::Refusal;
use super::events_of;
use super::forget_answers;
use super::open_append;
use super::remains;
use super::stream_append;
use crate::answer::ShredAnswer;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::holds::ledger_stream;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::reason;
use crate::request::ShredSession;
use crate::snapshots;

/// Destroys. Asking again is answered with what was done the first time.
pub(super) async fn shred(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: ShredSession,
) -> Result<ShredAnswer, CommandError> {
    let reason = reason::check(&request.reason)?;
    let id = request.session;
    inner.expire_if_due(caller, id).await?;
    if let Some(done) = done_before(inner, id).await? {
        inner.book.session(caller, id)?;
        return Ok(done);
    }
    let mut answers_are_forgotten = false;
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let session = inner.book.session(caller, id)?;
        let is_sealed = inner.book.ledger().is_sealed(&id.stream());
        let (decided, holds_version) = {
            let world = inner.book.world();
            let decided = decide::shred(&session, is_sealed, &world.holds);
            (decided, world.holds.version())
        };
        match decided {
            Ok(()) => {}
            Err(Refusal::Rule(error)) => return Err(error),
            Err(Refusal::Held(hold)) => return Err(refuse(inner, caller, id, reason, hold).await),
        }
        if !answers_are_forgotten {
            // No key seals the state of a machine: it is removed. What cannot be is removed at the next
            // start, because nothing needs it.
            snapshots::forget_all(inner, &session).await;
            let requests = blocking(inner, move |ledger| {
                let events = events_of(ledger, id)?;
                let requests = events.iter().map(|event| event.header.correlation_id);
                Ok(requests.collect::<HashSet<_>>())
            });
            forget_answers(inner, caller, requests.await?).await?;
            answers_are_forgotten = true;
            crash::point("shred.answers");
        }
        let shredded = Event::LedgerShredded(LedgerShredded {
            session: id,
            reason: reason.clone(),
        });
        let streams = vec![
            stream_append(ledger_stream()?, holds_version, shredded)?,
            stream_append(id.stream(), Some(session.version), remains(&session))?,
        ];
        let shred = Shred {
            stream: id.stream(),
            append: open_append(caller, streams),
        };
        match inner.book.ledger().shred(shred).await {
            Err(ShredError::Append(AppendError::Conflict { .. })) => {}
            Err(ShredError::NoKey { .. }) => return Err(CommandError::NotSealed(id)),
            Err(ShredError::Append(error)) => return Err(error.into()),
            Ok(recorded) => {
                crash::point("shred.done");
                let seq = recorded.first().map_or(0, |event| event.header.seq.get());
                return Ok(ShredAnswer {
                    seq,
                    session: id,
                    reason,
                });
            }
        }
    }
    Err(CommandError::TooMany {
        what: "decisions on the ledger",
        limit: DECIDE_ATTEMPTS_MAX,
    })
}

/// What was answered when the key was destroyed.
async fn done_before(inner: &Inner, id: SessionId) -> Result<Option<ShredAnswer>, CommandError> {
    let is_erased = {
        let world = inner.book.world();
        world.sessions.get(id).is_some_and(|session| session.erased)
    };
    if !is_erased {
        return Ok(None);
    }
    let stream = ledger_stream()?;
    blocking(inner, move |ledger| {
        let mut after = None;
        loop {
            let page = ledger.read_stream(&stream, after, READ_PAGE)?;
            let Some(last) = page.last() else {
                return Ok::<_, ReadError>(None);
            };
            after = Some(last.header.version);
            for event in &page {
                if let Ok(Event::LedgerShredded(done)) =
                    Envelope::decode(event).map(|envelope| envelope.event)
                    && done.session == id
                {
                    let seq = event.header.seq.get();
                    return Ok(Some(ShredAnswer {
                        seq,
                        session: id,
                        reason: done.reason,
                    }));
                }
            }
        }
    })
    .await
}

/// The error that a refusal under a hold is answered with, which is recorded first.
async fn refuse(
    inner: &Inner,
    caller: &Caller,
    session: SessionId,
    reason: String,
    hold: Hold,
) -> CommandError {
    let refused = Event::LedgerShredRefused(LedgerShredRefused {
        session,
        reason,
        because: format!("hold {}", hold.seq),
    });
    let stream = match ledger_stream() {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let entry = Entry::new(refused);
    let recorded = inner
        .book
        .append(caller, stream, ExpectedVersion::Any, entry);
    match recorded.await {
        Ok(recorded) => CommandError::UnderHold {
            hold: hold.seq,
            reason: hold.reason,
            refusal: recorded.header.seq.get(),
        },
        Err(error) => error,
    }
}
