//! Undo and redo: intent, what keeps the state of now, a sandbox of the point, outcome.

use std::sync::Arc;
use std::time::Instant;

use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Event;
use fluxvm_projections::KeepPlan;
use fluxvm_projections::KeptPoint;
use fluxvm_projections::RewindMoveStarted;
use fluxvm_projections::RewindMoved;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use uuid::Uuid;

use super::decide;
use super::decide::Direction;
use crate::answer::RewindAnswer;
use crate::book::Entry;
use crate::book::Op;
use crate::book::read;
use crate::caller::Caller;
use crate::checkpoint::give_up;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::RewindTo;
use crate::revive;
use crate::revive::Revived;
use crate::revive::Swap;
use crate::revive::Who;
use crate::snapshots;

/// Goes back to an earlier point.
pub(crate) async fn undo(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    to: RewindTo,
) -> Result<RewindAnswer, CommandError> {
    go(inner, caller, id, Direction::Undo, to).await
}

/// Goes to a point that was undone.
pub(crate) async fn redo(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    to: RewindTo,
) -> Result<RewindAnswer, CommandError> {
    go(inner, caller, id, Direction::Redo, to).await
}

/// A move on its way from intent to outcome.
struct Move {
    op: Op,
    direction: Direction,
    started: RewindMoveStarted,
    session: Session,
    started_at: Instant,
}

/// What became of the state that is left.
struct Left {
    kept: Option<KeptPoint>,
    not_kept: Option<String>,
}

async fn go(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    direction: Direction,
    to: RewindTo,
) -> Result<RewindAnswer, CommandError> {
    decide::check_target(&to)?;
    inner.expire_if_due(caller, id).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let (sandbox, keep) = (SandboxId(Uuid::new_v4()), SnapshotId(Uuid::new_v4()));
    let turn = inner.turns.take(id).await;
    let (session, intent) = inner
        .book
        .decide(caller, id, |session| {
            decide::go(session, direction, &to, sandbox, keep, now)
        })
        .await?;
    drop(turn);
    crash::point("rewind.move.intent");
    let (Event::RewindUndoStarted(started) | Event::RewindRedoStarted(started)) =
        read(&intent)?.event
    else {
        return Err(CommandError::Internal("another intent was recorded".into()));
    };
    let work = Move {
        op: Op::of(id, &intent),
        direction,
        started,
        session,
        started_at,
    };
    let left = leave(inner, &work).await;
    crash::point("rewind.move.kept");
    match arrive(inner, &work).await {
        Ok(revived) => {
            crash::point("rewind.move.revived");
            record(inner, caller, work, left, revived).await
        }
        Err(error) => {
            let failed = match direction {
                Direction::Undo => Event::RewindUndoFailed,
                Direction::Redo => Event::RewindRedoFailed,
            };
            let tag = Some(work.started.tag.clone());
            let error = give_up(inner, caller, work.op, tag, error, failed).await;
            snapshots::release(inner, left.kept.map(|kept| kept.snapshot.id));
            Err(error)
        }
    }
}

/// Keeps the state of now. An undo goes on without it: that it cannot be redone is said, and is better
/// than that it cannot be undone.
async fn leave(inner: &Arc<Inner>, work: &Move) -> Left {
    let nothing = Left {
        kept: None,
        not_kept: None,
    };
    let Some(KeepPlan {
        tag,
        snapshot,
        memory,
    }) = work.started.keep.clone()
    else {
        return nothing;
    };
    match snapshots::take(inner, work.session.id, snapshot, memory).await {
        Ok(snapshot) => Left {
            kept: Some(KeptPoint { tag, snapshot }),
            ..nothing
        },
        Err(error) => {
            tracing::warn!(session = %work.session.id, %error, "the state before an undo was not kept");
            Left {
                not_kept: Some(error.to_string()),
                ..nothing
            }
        }
    }
}

async fn arrive(inner: &Arc<Inner>, work: &Move) -> Result<Revived, CommandError> {
    let point = work.session.rewind.get(&work.started.tag);
    let point = point.ok_or_else(|| CommandError::Internal("a point is gone".into()))?;
    let who = Who::same(&work.session, work.started.sandbox_id);
    revive::revive(inner, &work.session, &point.snapshot, who).await
}

async fn record(
    inner: &Arc<Inner>,
    caller: &Caller,
    work: Move,
    left: Left,
    revived: Revived,
) -> Result<RewindAnswer, CommandError> {
    let session = work.session;
    let disk = session.rewind.get(&work.started.tag);
    let outcome = RewindMoved {
        op: work.op.seq,
        steps: decide::steps(&session, work.direction, &work.started.tag),
        tag: work.started.tag,
        snapshot: work.started.snapshot,
        disk: disk
            .map(|point| point.snapshot.disk.clone())
            .unwrap_or_default(),
        sandbox_id: work.started.sandbox_id,
        previous_sandbox_id: session.sandbox_id,
        kept: left.kept,
        not_kept: left.not_kept,
        revival: revived.revival,
        duration_ms: millis(work.started_at),
    };
    let event = match work.direction {
        Direction::Undo => Event::RewindUndone(outcome.clone()),
        Direction::Redo => Event::RewindRedone(outcome.clone()),
    };
    let id = session.id;
    let planned = work.started.keep.map(|keep| keep.snapshot);
    let swap = Swap::begin(inner, session, revived.sandbox);
    let concluded = inner
        .book
        .conclude(caller, id, work.op.intent, Entry::new(event))
        .await;
    let recorded = match concluded {
        Ok(recorded) => recorded,
        Err(error) => {
            swap.undo(inner).await;
            return Err(error);
        }
    };
    crash::point("rewind.move.outcome");
    swap.commit(inner);
    // Half a snapshot that was to keep the state of before, if it came to nothing.
    snapshots::release(inner, planned);
    answer(inner, caller, id, &recorded, outcome)
}

/// The answer, out of the outcome.
pub(crate) fn answer(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    recorded: &RecordedEvent,
    outcome: RewindMoved,
) -> Result<RewindAnswer, CommandError> {
    Ok(RewindAnswer {
        seq: recorded.header.seq.get(),
        session: inner.book.session(caller, id)?,
        outcome,
    })
}
