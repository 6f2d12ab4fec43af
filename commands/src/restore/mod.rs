//! Go back to a checkpoint: intent, a sandbox of the snapshot, outcome, and the old one goes.

mod decide;

use std::sync::Arc;
use std::time::Instant;

use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Event;
use fluxvm_projections::Restored;
use fluxvm_projections::SandboxId;
use fluxvm_projections::SessionId;
use uuid::Uuid;

pub(crate) use decide::replaceable;

use crate::answer::RestoreAnswer;
use crate::book::Entry;
use crate::book::Op;
use crate::caller::Caller;
use crate::checkpoint;
use crate::checkpoint::give_up;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::Restore;
use crate::revive;
use crate::revive::Swap;
use crate::revive::Who;
use crate::snapshots;

/// Restores a checkpoint.
pub(crate) async fn restore(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Restore,
) -> Result<RestoreAnswer, CommandError> {
    checkpoint::check_tag(&request.tag)?;
    inner.expire_if_due(caller, id).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let sandbox_id = SandboxId(Uuid::new_v4());
    let turn = inner.turns.take(id).await;
    let (session, intent) = inner
        .book
        .decide(caller, id, |session| {
            decide::decide(session, &request, sandbox_id, now)
        })
        .await?;
    drop(turn);
    crash::point("restore.intent");
    let op = Op::of(id, &intent);
    let snapshot = &checkpoint::find(&session, &request.tag)?.snapshot;
    let who = Who::same(&session, sandbox_id);
    let revived = match revive::revive(inner, &session, snapshot, who).await {
        Ok(revived) => revived,
        Err(error) => {
            let tag = Some(request.tag);
            return Err(give_up(inner, caller, op, tag, error, Event::RestoreFailed).await);
        }
    };
    crash::point("restore.revived");
    let outcome = Restored {
        op: op.seq,
        tag: request.tag,
        snapshot: snapshot.id,
        disk: snapshot.disk.clone(),
        sandbox_id,
        previous_sandbox_id: session.sandbox_id,
        revival: revived.revival,
        duration_ms: millis(started_at),
    };
    let entry = Entry::new(Event::Restored(outcome.clone()));
    let undone = session.rewind.undone().to_vec();
    let swap = Swap::begin(inner, session, revived.sandbox);
    let recorded = match inner.book.conclude(caller, id, op.intent, entry).await {
        Ok(recorded) => recorded,
        Err(error) => {
            swap.undo(inner).await;
            return Err(error);
        }
    };
    crash::point("restore.outcome");
    swap.commit(inner);
    snapshots::release_undone(inner, &undone);
    answer(inner, caller, id, &recorded, outcome)
}

/// The answer, out of the outcome.
pub(crate) fn answer(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    recorded: &RecordedEvent,
    outcome: Restored,
) -> Result<RestoreAnswer, CommandError> {
    Ok(RestoreAnswer {
        seq: recorded.header.seq.get(),
        revision: inner.book.session(caller, id)?.revision,
        outcome,
    })
}
