//! Erase what a command said and wrote.
//!
//! The command's intent, its outcome, the answer that was kept for it, and the content that only these name
//! go in one batch with the events that say so: `ledger.redacted`, and one in each stream whose state the
//! erased events were part of. Asking again is answered with what was done the first time.

mod decide;
mod gather;

use std::sync::Arc;

use fluxvm_eventstore::Append;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::Appended;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::GlobalSeq;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::RedactError;
use fluxvm_eventstore::Redaction;
use fluxvm_eventstore::StreamAppend;
use fluxvm_eventstore::StreamName;
use fluxvm_eventstore::StreamVersion;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::Hold;
use fluxvm_projections::IdempotencyErased;
use fluxvm_projections::LedgerRedactRefused;
use fluxvm_projections::LedgerRedacted;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionRedacted;
use fluxvm_projections::World;
use uuid::Uuid;

pub(crate) use self::gather::blobs_of;

use self::decide::Refusal;
use self::gather::Gathered;
use crate::answer::RedactAnswer;
use crate::book;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::holds::ledger_stream;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::reason;
use crate::request::Redact;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

/// Erases.
pub(crate) async fn redact(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: Redact,
) -> Result<RedactAnswer, CommandError> {
    let reason = reason::check(&request.reason)?;
    let ledger = inner.book.ledger().clone();
    let gathered = tokio::task::spawn_blocking(move || gather::gather(&ledger, request.seq));
    let gathered = gathered
        .await
        .map_err(|error| CommandError::Internal(error.to_string()))??;
    // A tenant's caller may not know what is in the whole ledger.
    let gathered = gathered.filter(|_| caller.tenant.is_none());
    let gathered = gathered.ok_or(CommandError::EventNotFound(request.seq))?;
    let session = gathered.target.session;
    if session.is_some_and(|id| is_erased(inner, id)) {
        return Err(CommandError::NotRedactable {
            seq: request.seq,
            kind: gathered.target.kind,
            why: "all that its session said is erased",
        });
    }
    if gathered.event.payload_bytes().is_none()
        && let Some(done) = done_before(inner, request.seq).await?
    {
        return Ok(done);
    }
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let (decided, streams) = {
            let world = inner.book.world();
            let decided = decide::decide(&gathered.target, &world.holds);
            (decided, streams(&world, &gathered, &reason)?)
        };
        if let Err(refusal) = decided {
            return Err(refuse(inner, caller, &gathered, reason, refusal).await);
        }
        match erase(inner, caller, &gathered, streams).await {
            Err(CommandError::Ledger(AppendError::Conflict { .. })) => {}
            Err(error) => return Err(error),
            Ok(recorded) => {
                // What a job wrote is in its files too.
                if let Some(session) = gathered.target.session {
                    inner.prune_spools(session).await;
                }
                return answer(&recorded);
            }
        }
    }
    Err(CommandError::TooMany {
        what: "decisions on the ledger",
        limit: DECIDE_ATTEMPTS_MAX,
    })
}

fn is_erased(inner: &Inner, id: SessionId) -> bool {
    let world = inner.book.world();
    world.sessions.get(id).is_some_and(|session| session.erased)
}

fn seqs(events: &[Arc<RecordedEvent>]) -> Vec<u64> {
    events.iter().map(|event| event.header.seq.get()).collect()
}

fn all_seqs(gathered: &Gathered) -> Vec<u64> {
    let mut all = seqs(&gathered.pair);
    all.extend(seqs(&gathered.answers));
    all.sort_unstable();
    all.dedup();
    all
}

/// What is recorded of it, and where: decided on the state as it is, and refused by the ledger when that
/// has changed by then.
fn streams(
    world: &World,
    gathered: &Gathered,
    reason: &str,
) -> Result<Vec<StreamAppend>, CommandError> {
    let redacted = Event::LedgerRedacted(LedgerRedacted {
        seqs: all_seqs(gathered),
        blobs: gathered.blobs.len() as u64,
        reason: reason.to_owned(),
    });
    let mut streams = vec![stream(ledger_stream()?, world.holds.version(), redacted)?];
    let session = gathered.target.session;
    if let Some(session) = session.and_then(|id| world.sessions.get(id)) {
        let redacted = Event::SessionRedacted(SessionRedacted {
            seqs: seqs(&gathered.pair),
            exec_ms: session.usage.exec_ms,
            job_ms: session.usage.job_ms,
        });
        streams.push(stream(
            session.id.stream(),
            Some(session.version),
            redacted,
        )?);
    }
    for event in &gathered.answers {
        let name = &event.header.stream;
        let key = world.idempotency.get(name.as_str());
        // A key that was claimed again since has nothing of it in its state.
        let key =
            key.filter(|key| key.request == event.header.correlation_id && key.answer.is_some());
        if let Some(key) = key {
            let seq = event.header.seq.get();
            let erased = Event::IdempotencyErased(IdempotencyErased { seq });
            streams.push(stream(name.clone(), Some(key.version), erased)?);
        }
    }
    Ok(streams)
}

fn stream(
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

async fn erase(
    inner: &Inner,
    caller: &Caller,
    gathered: &Gathered,
    streams: Vec<StreamAppend>,
) -> Result<Appended, CommandError> {
    let append = Append {
        command_id: CommandId::new(Uuid::now_v7()),
        correlation_id: caller.request,
        actor: caller.actor.clone(),
        streams,
    };
    let redaction = Redaction {
        seqs: all_seqs(gathered)
            .into_iter()
            .filter_map(GlobalSeq::new)
            .collect(),
        blobs: gathered.blobs.clone(),
        looked_until: gathered.looked_until,
        append,
    };
    crash::point("redact.decided");
    let redacted = inner.book.ledger().redact(redaction).await;
    crash::point("redact.done");
    redacted.map_err(|error| match error {
        RedactError::UnknownSeq { seq, .. } => CommandError::EventNotFound(seq.get()),
        RedactError::Read(error) => error.into(),
        RedactError::Append(error) => error.into(),
    })
}

fn answer(recorded: &[Arc<RecordedEvent>]) -> Result<RedactAnswer, CommandError> {
    let answer = recorded.iter().find_map(|event| answer_of(event));
    answer.ok_or_else(|| CommandError::Internal("the ledger answered nothing".into()))
}

fn answer_of(event: &RecordedEvent) -> Option<RedactAnswer> {
    match Envelope::decode(event).ok()?.event {
        Event::LedgerRedacted(redacted) => Some(RedactAnswer {
            seq: event.header.seq.get(),
            redacted: redacted.seqs,
            blobs: redacted.blobs,
            reason: redacted.reason,
        }),
        _ => None,
    }
}

/// What was answered when the event was erased.
async fn done_before(inner: &Inner, seq: u64) -> Result<Option<RedactAnswer>, CommandError> {
    let ledger = inner.book.ledger().clone();
    let stream = ledger_stream()?;
    let scan = move || {
        let mut after = None;
        loop {
            let page = ledger.read_stream(&stream, after, READ_PAGE)?;
            let Some(last) = page.last() else {
                return Ok(None);
            };
            after = Some(last.header.version);
            let mut answers = page.iter().filter_map(|event| answer_of(event));
            if let Some(done) = answers.find(|done| done.redacted.contains(&seq)) {
                return Ok::<_, ReadError>(Some(done));
            }
        }
    };
    let found = tokio::task::spawn_blocking(scan).await;
    Ok(found.map_err(|error| CommandError::Internal(error.to_string()))??)
}

/// The error that a refusal is answered with. One under a hold is recorded first.
async fn refuse(
    inner: &Inner,
    caller: &Caller,
    gathered: &Gathered,
    reason: String,
    refusal: Refusal,
) -> CommandError {
    let header = &gathered.event.header;
    match refusal {
        Refusal::Kind(why) => CommandError::NotRedactable {
            seq: header.seq.get(),
            kind: gathered.target.kind.clone(),
            why,
        },
        Refusal::Running => CommandError::NotRedactable {
            seq: header.seq.get(),
            kind: gathered.target.kind.clone(),
            why: "what it began still runs; try again when it has ended",
        },
        Refusal::Held(hold) => held(inner, caller, gathered, reason, hold).await,
    }
}

async fn held(
    inner: &Inner,
    caller: &Caller,
    gathered: &Gathered,
    reason: String,
    hold: Hold,
) -> CommandError {
    let refused = Event::LedgerRedactRefused(LedgerRedactRefused {
        seqs: all_seqs(gathered),
        reason,
        because: format!("hold {}", hold.seq),
    });
    let stream = match ledger_stream() {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let recorded = inner
        .book
        .append(caller, stream, ExpectedVersion::Any, Entry::new(refused))
        .await;
    match recorded {
        Ok(recorded) => CommandError::UnderHold {
            hold: hold.seq,
            reason: hold.reason,
            refusal: recorded.header.seq.get(),
        },
        Err(error) => error,
    }
}
