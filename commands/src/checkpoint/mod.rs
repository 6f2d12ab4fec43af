//! Capture a session's state under a tag: intent, snapshot, outcome. And let go of it again.

mod decide;

use std::sync::Arc;
use std::time::Instant;

use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::CheckpointTaken;
use fluxvm_projections::Event;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotOperationFailed;
use uuid::Uuid;

pub(crate) use decide::check_tag;
pub(crate) use decide::find;

use crate::answer::CheckpointAnswer;
use crate::book::Entry;
use crate::book::Op;
use crate::book::read;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::Checkpoint;
use crate::snapshots;

/// Takes a checkpoint.
pub(crate) async fn take(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Checkpoint,
) -> Result<CheckpointAnswer, CommandError> {
    if let Some(tag) = &request.tag {
        check_tag(tag)?;
    }
    inner.expire_if_due(caller, id).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let snapshot = SnapshotId(Uuid::new_v4());
    let turn = inner.turns.take(id).await;
    let (_, intent) = inner
        .book
        .decide(caller, id, |session| {
            decide::take(session, &request, snapshot, now)
        })
        .await?;
    drop(turn);
    crash::point("checkpoint.intent");
    let op = Op::of(id, &intent);
    let Event::CheckpointStarted(started) = read(&intent)?.event else {
        return Err(CommandError::Internal("another intent was recorded".into()));
    };
    let (tag, memory) = (started.tag, started.memory);
    let taken = match snapshots::take(inner, id, snapshot, memory).await {
        Ok(taken) => taken,
        Err(error) => {
            let failed = Event::CheckpointFailed;
            let error = give_up(inner, caller, op, Some(tag), error, failed).await;
            snapshots::release(inner, [snapshot]);
            return Err(error);
        }
    };
    crash::point("checkpoint.taken");
    let outcome = CheckpointTaken {
        op: op.seq,
        tag,
        snapshot: taken,
        duration_ms: millis(started_at),
    };
    let entry = Entry::new(Event::CheckpointTaken(outcome.clone()));
    let recorded = inner.book.conclude(caller, id, op.intent, entry).await?;
    crash::point("checkpoint.outcome");
    answer(inner, caller, id, &recorded, outcome)
}

/// The answer, out of the outcome.
pub(crate) fn answer(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    recorded: &RecordedEvent,
    outcome: CheckpointTaken,
) -> Result<CheckpointAnswer, CommandError> {
    Ok(CheckpointAnswer {
        seq: recorded.header.seq.get(),
        created_at: read(recorded)?.at,
        revision: inner.book.session(caller, id)?.revision,
        outcome,
    })
}

/// Lets go of a checkpoint. Its snapshot goes when nothing else needs it.
pub(crate) async fn delete(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    tag: &str,
) -> Result<(), CommandError> {
    let turn = inner.turns.take(id).await;
    let (session, _) = inner
        .book
        .decide(caller, id, |session| decide::delete(session, tag))
        .await?;
    drop(turn);
    crash::point("checkpoint.deleted");
    let gone = session.checkpoints.get(tag).map(|it| it.snapshot.id);
    snapshots::release(inner, gone);
    Ok(())
}

/// Records that an operation came to nothing. When even that fails, that is the error: the ledger comes
/// first.
pub(crate) async fn give_up(
    inner: &Inner,
    caller: &Caller,
    op: Op,
    tag: Option<String>,
    error: CommandError,
    event: impl FnOnce(SnapshotOperationFailed) -> Event,
) -> CommandError {
    let failed = event(SnapshotOperationFailed {
        op: op.seq,
        tag,
        code: error.code().to_owned(),
        reason: error.to_string(),
    });
    let entry = Entry::new(failed);
    match inner
        .book
        .conclude(caller, op.session, op.intent, entry)
        .await
    {
        Ok(_) => error,
        Err(unrecorded) => unrecorded,
    }
}

/// Milliseconds since then.
pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
