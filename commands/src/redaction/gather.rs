//! What goes together with an event that is to be erased.
//!
//! A command is said three times: in its intent, in its outcome, and in the answer that was kept for its
//! request's idempotency key. All of them go, and the stored content that they name and nobody else does.
//! Finding that out reads the whole ledger once; it happens off the request's thread.

use std::sync::Arc;

use fluxvm_eventstore::BlobDigest;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::SessionId;

use super::decide::Target;
use crate::limits::REDACTED_ANSWERS_MAX;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

/// What an operation leaves that a crash of the daemon cut off.
const INTERRUPTED: &str = "lifecycle.interrupted";

/// An event with all that goes with it.
pub(super) struct Gathered {
    pub(super) event: Arc<RecordedEvent>,
    pub(super) target: Target,
    /// The command's own events, in order.
    pub(super) pair: Vec<Arc<RecordedEvent>>,
    /// The answers that were kept for its request.
    pub(super) answers: Vec<Arc<RecordedEvent>>,
    /// Content that only these name.
    pub(super) blobs: Vec<BlobDigest>,
    /// Up to where the ledger was looked through for that.
    pub(super) looked_until: Position,
}

/// Gathers; `None` when there is no such event. Blocks.
pub(super) fn gather(ledger: &Ledger, seq: u64) -> Result<Option<Gathered>, ReadError> {
    let Some(before) = seq.checked_sub(1).map(Position::new) else {
        return Ok(None);
    };
    let found = ledger.read(before, 1)?;
    let Some(event) = found.into_iter().next() else {
        return Ok(None);
    };
    let (pair, running) = pair(ledger, &event)?;
    let target = Target {
        kind: event.header.kind.as_str().to_owned(),
        session: SessionId::of_stream(&event.header.stream),
        running,
    };
    let answers = answers(ledger, &event, &pair)?;
    let gone: Vec<_> = pair.iter().chain(&answers).cloned().collect();
    let looked_until = ledger.head().position;
    let sealed = ledger.is_sealed(&event.header.stream);
    let blobs = blobs_of_these_alone(ledger, &gone, sealed.then_some(&event.header.stream))?;
    Ok(Some(Gathered {
        event,
        target,
        pair,
        answers,
        blobs,
        looked_until,
    }))
}

/// The intent and the outcome that the event is one of, and whether the outcome is still to come. An event
/// without an intent stands for itself.
fn pair(
    ledger: &Ledger,
    event: &Arc<RecordedEvent>,
) -> Result<(Vec<Arc<RecordedEvent>>, bool), ReadError> {
    let intent_id = event.header.causation_id.unwrap_or(event.header.event_id);
    let mut pair = Vec::new();
    let mut ended = false;
    let mut after = None;
    loop {
        let page = ledger.read_stream(&event.header.stream, after, READ_PAGE)?;
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.header.version);
        for other in &page {
            let is_outcome = other.header.causation_id == Some(intent_id);
            ended |= is_outcome;
            // An interruption says nothing of what it interrupted, and the state is made of it.
            let says_something = other.header.kind.as_str() != INTERRUPTED;
            if other.header.event_id == intent_id || (is_outcome && says_something) {
                pair.push(Arc::clone(other));
            }
        }
    }
    let is_intent = fluxvm_projections::is_intent(event.header.kind.as_str());
    Ok((pair, is_intent && !ended))
}

/// The answers that were kept for the request of this command.
fn answers(
    ledger: &Ledger,
    event: &RecordedEvent,
    pair: &[Arc<RecordedEvent>],
) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
    let request = event.header.correlation_id;
    let is_answer = |other: &&Arc<RecordedEvent>| {
        other.header.correlation_id == request
            && other.header.kind.as_str() == "idempotency.answered"
    };
    let mut answers = Vec::new();
    let first = pair.first().map_or(event.header.seq, |it| it.header.seq);
    let mut after = first.position();
    loop {
        let page = ledger.read(after, READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(answers);
        };
        after = last.header.seq.position();
        answers.extend(page.iter().filter(is_answer).cloned());
        answers.truncate(REDACTED_ANSWERS_MAX);
    }
}

/// The stored content that these events name and no other event does. Where they are sealed, their content
/// is that of their session alone.
fn blobs_of_these_alone(
    ledger: &Ledger,
    gone: &[Arc<RecordedEvent>],
    sealed: Option<&StreamName>,
) -> Result<Vec<BlobDigest>, ReadError> {
    let mut blobs: Vec<String> = gone.iter().flat_map(|event| blobs_of(event)).collect();
    blobs.sort();
    blobs.dedup();
    let mut after = Position::START;
    while !blobs.is_empty() {
        let page = ledger.read(after, READ_PAGE)?;
        let Some(last) = page.last() else {
            break;
        };
        after = last.header.seq.position();
        for other in &page {
            let goes = gone
                .iter()
                .any(|event| event.header.seq == other.header.seq);
            let is_elsewhere = sealed.is_some_and(|stream| {
                let is_session = SessionId::of_stream(&other.header.stream).is_some();
                is_session && other.header.stream != *stream
            });
            if is_elsewhere {
                continue;
            }
            let payload = other.payload_bytes().unwrap_or_default();
            if let Ok(payload) = std::str::from_utf8(payload)
                && !goes
            {
                blobs.retain(|blob| !payload.contains(blob.as_str()));
            }
        }
    }
    Ok(blobs.iter().filter_map(|blob| blob.parse().ok()).collect())
}

/// The content that an event names, in hexadecimal.
pub(crate) fn blobs_of(event: &RecordedEvent) -> Vec<String> {
    match Envelope::decode(event).map(|envelope| envelope.event) {
        Ok(Event::ExecCompleted(completed)) => [completed.stdout.blob, completed.stderr.blob]
            .into_iter()
            .flatten()
            .collect(),
        Ok(Event::JobExited(exited)) => [exited.stdout.blob, exited.stderr.blob]
            .into_iter()
            .flatten()
            .collect(),
        Ok(Event::JobFailed(failed)) => [failed.stdout, failed.stderr]
            .into_iter()
            .flatten()
            .filter_map(|record| record.blob)
            .collect(),
        Ok(Event::IdempotencyAnswered(answer)) => vec![answer.body],
        Ok(Event::FileWriteStarted(started)) => started.blobs,
        Ok(Event::FileWritten(written)) => written.blobs,
        Ok(Event::FileUploaded(uploaded)) => uploaded.blobs,
        Ok(Event::Promoted(promoted)) => promoted.blobs,
        _ => Vec::new(),
    }
}
