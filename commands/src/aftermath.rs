//! What became of a request whose daemon ended before its answer was stored.
//!
//! Such a request is known by its idempotency key: claimed by an earlier daemon, never answered. If it
//! came to nothing, recovery has freed the key. If it came to something, that is in the ledger, and the
//! retry gets the answer that the first caller would have got.

use std::sync::Arc;

use bytes::Bytes;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::ExecCompleted;
use fluxvm_projections::Job;
use fluxvm_projections::KeyState;
use fluxvm_projections::OutputRecord;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::answer::CheckpointAnswer;
use crate::answer::ExecAnswer;
use crate::answer::ForkAnswer;
use crate::answer::RestoreAnswer;
use crate::answer::RewindAnswer;
use crate::book::read;
use crate::caller::Caller;
use crate::checkpoint;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::evaluate;
use crate::evaluate::EvaluateAnswer;
use crate::fork;
use crate::promote;
use crate::promote::PromoteAnswer;
use crate::restore;
use crate::rewind;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

/// What tells that a request did something. Of those that are rolled back it is the outcome. A fork's
/// comes before what is recorded of its children.
const EFFECTS: [&str; 12] = [
    "session.create",
    "exec.started",
    "job.start",
    "checkpoint",
    "restore",
    "fork",
    "session.branch_child",
    "rewind.undo",
    "rewind.redo",
    "promote",
    "evaluate",
    "rollout",
];

/// What a request did.
#[derive(Debug)]
pub enum Done {
    /// It made this session, which is given as it is now.
    Created(Box<Session>),
    /// It ran a command to its end.
    Ran(SessionId, Box<ExecAnswer>),
    /// It took a checkpoint.
    Checkpointed(SessionId, Box<CheckpointAnswer>),
    /// It went back to a checkpoint.
    Restored(SessionId, Box<RestoreAnswer>),
    /// It made children, which are given as they are now.
    Forked(SessionId, Box<ForkAnswer>),
    /// It made children from a point of the past, which are given as they are now.
    Branched(SessionId, Box<ForkAnswer>),
    /// It went to another point of the ring.
    Moved(Box<RewindAnswer>),
    /// It started this job of the session, which is given as it is now.
    Started(SessionId, Box<Job>),
    /// It carried a child's changes to this session.
    Promoted(SessionId, Box<PromoteAnswer>),
    /// It tried candidates.
    Evaluated(SessionId, Box<EvaluateAnswer>),
}

/// What a request is known to have done.
pub(crate) enum Aftermath {
    /// It is done.
    Done(Done),
    /// Its command was taken up again and still runs.
    Runs,
    /// It ended without a success.
    Failed(CommandError),
}

/// The first effect of the request that claimed a key.
pub(crate) async fn effect(
    inner: &Arc<Inner>,
    key: &KeyState,
) -> Result<Option<Arc<RecordedEvent>>, CommandError> {
    let (ledger, request) = (inner.book.ledger().clone(), key.request);
    let mut after = key.claimed_seq.position();
    let is_effect = move |event: &&Arc<RecordedEvent>| {
        event.header.correlation_id == request && EFFECTS.contains(&event.header.kind.as_str())
    };
    let scan = move || loop {
        let page = ledger.read(after, READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        if let Some(effect) = page.iter().find(is_effect) {
            return Ok(Some(Arc::clone(effect)));
        }
        after = last.header.seq.position();
    };
    joined(tokio::task::spawn_blocking(scan).await)
}

/// What became of the request that had this effect.
pub(crate) async fn of(
    inner: &Arc<Inner>,
    caller: &Caller,
    effect: &RecordedEvent,
) -> Result<Aftermath, CommandError> {
    let id = SessionId::of_stream(&effect.header.stream)
        .ok_or_else(|| CommandError::Internal("an effect outside of a session".to_owned()))?;
    let session = inner.book.session(caller, id)?;
    if effect.header.kind.as_str() == "session.create" {
        return Ok(Aftermath::Done(Done::Created(Box::new(session))));
    }
    if effect.header.kind.as_str() == "job.start" {
        let outcome = outcome(inner, effect).await?;
        return of_job(inner, id, effect, outcome.as_deref());
    }
    if effect.header.kind.as_str() != "exec.started" {
        return done(inner, caller, id, effect).map(Aftermath::Done);
    }
    let Some(outcome) = outcome(inner, effect).await? else {
        return Ok(Aftermath::Runs);
    };
    let envelope =
        Envelope::decode(&outcome).map_err(|error| CommandError::Internal(error.to_string()))?;
    match envelope.event {
        Event::ExecCompleted(completed) => {
            let answer = answer(inner, id, outcome.header.seq.get(), completed).await?;
            Ok(Aftermath::Done(Done::Ran(id, Box::new(answer))))
        }
        Event::ExecFailed(failed) => Ok(Aftermath::Failed(CommandError::ExecFailed {
            code: failed.code,
            reason: failed.reason,
        })),
        _ => Ok(Aftermath::Failed(CommandError::ExecFailed {
            code: "interrupted".to_owned(),
            reason: "what the command came to is no longer recorded".to_owned(),
        })),
    }
}

/// The answer to an operation on snapshots, out of its outcome.
fn done(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    effect: &RecordedEvent,
) -> Result<Done, CommandError> {
    match read(effect)?.event {
        Event::CheckpointTaken(outcome) => {
            let answer = checkpoint::answer(inner, caller, id, effect, outcome)?;
            Ok(Done::Checkpointed(id, Box::new(answer)))
        }
        Event::Restored(outcome) => {
            let answer = restore::answer(inner, caller, id, effect, outcome)?;
            Ok(Done::Restored(id, Box::new(answer)))
        }
        Event::Forked(outcome) => {
            let answer = fork::answer(inner, caller, id, effect, outcome)?;
            Ok(Done::Forked(id, Box::new(answer)))
        }
        Event::Branched(outcome) => {
            let answer = fork::answer(inner, caller, id, effect, outcome)?;
            Ok(Done::Branched(id, Box::new(answer)))
        }
        Event::RewindUndone(outcome) | Event::RewindRedone(outcome) => {
            let answer = rewind::answer(inner, caller, id, effect, outcome)?;
            Ok(Done::Moved(Box::new(answer)))
        }
        Event::Promoted(outcome) => {
            let answer = promote::recorded(id, effect.header.seq.get(), outcome);
            Ok(Done::Promoted(id, Box::new(answer)))
        }
        Event::Evaluated(outcome) | Event::RolledOut(outcome) => {
            let answer = evaluate::recorded(effect, outcome);
            Ok(Done::Evaluated(id, Box::new(answer)))
        }
        _ => Err(CommandError::Internal("an effect that is none".to_owned())),
    }
}

/// A job's request is done once the job runs, so that only one that never ran has failed.
fn of_job(
    inner: &Inner,
    id: SessionId,
    effect: &RecordedEvent,
    outcome: Option<&RecordedEvent>,
) -> Result<Aftermath, CommandError> {
    let decode =
        |event| Envelope::decode(event).map_err(|error| CommandError::Internal(error.to_string()));
    if let Some(outcome) = outcome
        && let Event::JobFailed(failed) = decode(outcome)?.event
        && matches!(failed.code.as_str(), "interrupted" | "spawn_failed")
    {
        return Ok(Aftermath::Failed(CommandError::ExecFailed {
            code: failed.code,
            reason: failed.reason,
        }));
    }
    let erased = || CommandError::ExecFailed {
        code: "interrupted".to_owned(),
        reason: "what the job came to is no longer recorded".to_owned(),
    };
    let job = match decode(effect)?.event {
        Event::JobStarted(started) => inner.job(id, started.job).map_err(|_| erased()),
        _ => Err(erased()),
    };
    Ok(match job {
        Ok(job) => Aftermath::Done(Done::Started(id, Box::new(job))),
        Err(error) => Aftermath::Failed(error),
    })
}

/// The event that an intent led to.
async fn outcome(
    inner: &Arc<Inner>,
    intent: &RecordedEvent,
) -> Result<Option<Arc<RecordedEvent>>, CommandError> {
    let ledger = inner.book.ledger().clone();
    let (stream, id) = (intent.header.stream.clone(), intent.header.event_id);
    let mut after = intent.header.version;
    let scan = move || loop {
        let page = ledger.read_stream(&stream, Some(after), READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(None);
        };
        let found = page
            .iter()
            .find(|event| event.header.causation_id == Some(id));
        if let Some(outcome) = found {
            return Ok(Some(Arc::clone(outcome)));
        }
        after = last.header.version;
    };
    joined(tokio::task::spawn_blocking(scan).await)
}

/// The answer once more, out of what was recorded. Outputs of which only digests were kept count as
/// dropped.
async fn answer(
    inner: &Inner,
    id: SessionId,
    seq: u64,
    mut outcome: ExecCompleted,
) -> Result<ExecAnswer, CommandError> {
    let stdout = output(inner, id, &mut outcome.stdout).await?;
    let stderr = output(inner, id, &mut outcome.stderr).await?;
    Ok(ExecAnswer {
        seq,
        outcome,
        stdout,
        stderr,
    })
}

async fn output(
    inner: &Inner,
    id: SessionId,
    record: &mut OutputRecord,
) -> Result<Bytes, CommandError> {
    match &record.blob {
        Some(blob) => inner.content(Some(id), blob).await,
        None => {
            record.dropped_bytes = record.bytes;
            Ok(Bytes::new())
        }
    }
}

fn joined<T>(
    scanned: Result<Result<T, fluxvm_eventstore::ReadError>, tokio::task::JoinError>,
) -> Result<T, CommandError> {
    let read = scanned.map_err(|error| CommandError::Internal(error.to_string()))?;
    Ok(read?)
}
