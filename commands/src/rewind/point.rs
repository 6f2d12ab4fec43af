//! A point before an action: best effort, and never in the way of the action.

use std::sync::Arc;
use std::time::Instant;

use fluxvm_projections::Event;
use fluxvm_projections::RewindCaptureFailed;
use fluxvm_projections::RewindPointStarted;
use fluxvm_projections::RewindPointTaken;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;
use fluxvm_projections::Trigger;
use uuid::Uuid;

use super::decide;
use crate::book::Entry;
use crate::book::Op;
use crate::book::read;
use crate::caller::Caller;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::snapshots;

/// What is about to happen.
#[derive(Clone, Debug)]
pub(crate) struct Before {
    pub(crate) trigger: Trigger,
    /// The ledger number of its intent, which says what it is.
    pub(crate) op: Option<u64>,
    /// What it is, where no intent says so: `write /path`, `commit <message>`, …
    pub(crate) label: Option<String>,
}

impl Before {
    /// A command whose intent is recorded.
    pub(crate) fn exec(op: u64) -> Self {
        Self {
            trigger: Trigger::Exec,
            op: Some(op),
            label: None,
        }
    }

    /// A job whose intent is recorded.
    pub(crate) fn job(op: u64) -> Self {
        Self {
            trigger: Trigger::Job,
            op: Some(op),
            label: None,
        }
    }
}

/// Takes a point if the session wants one before this. Call it when the action's own intent, if it has
/// one, is recorded, and before its effect begins. `session` is the state on which that was decided.
///
/// Nothing that goes wrong here keeps the action from going on; the ledger says what did.
pub(crate) async fn before_trigger(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    before: Before,
) {
    snapshots::release_undone(inner, session.rewind.undone());
    if !decide::is_wanted(session, &before) {
        return;
    }
    if let Err(error) = take(inner, caller, session.id, &before).await {
        tracing::warn!(session = %session.id, %error, "a rewind point was not recorded");
    }
}

async fn take(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    before: &Before,
) -> Result<(), CommandError> {
    let started_at = Instant::now();
    let snapshot = SnapshotId(Uuid::new_v4());
    let turn = inner.turns.take(id).await;
    let decided = inner
        .book
        .decide(caller, id, |session| {
            let entry = decide::point(session, before, snapshot);
            entry.ok_or(CommandError::Stopping)
        })
        .await;
    drop(turn);
    let intent = match decided {
        Ok((_, intent)) => intent,
        // It changed its mind, or ended, since it was looked at.
        Err(CommandError::Stopping) => return Ok(()),
        Err(error) => return Err(error),
    };
    let Event::RewindPointStarted(started) = read(&intent)?.event else {
        return Ok(());
    };
    crash::point("rewind.point.intent");
    let op = Op::of(id, &intent);
    match snapshots::take(inner, id, snapshot, started.memory).await {
        Ok(taken) => {
            crash::point("rewind.point.taken");
            keep(inner, caller, op, &started, taken, started_at).await?;
            crash::point("rewind.point.outcome");
            Ok(())
        }
        Err(error) => {
            let failed = Event::RewindCaptureFailed(RewindCaptureFailed {
                op: op.seq,
                tag: started.tag,
                code: error.code().to_owned(),
                reason: error.to_string(),
            });
            let entry = Entry::new(failed);
            inner.book.conclude(caller, id, op.intent, entry).await?;
            snapshots::release(inner, [snapshot]);
            Ok(())
        }
    }
}

/// Records the point together with what makes room for it, and lets that go.
async fn keep(
    inner: &Arc<Inner>,
    caller: &Caller,
    op: Op,
    started: &RewindPointStarted,
    taken: SnapshotRecord,
    started_at: Instant,
) -> Result<(), CommandError> {
    let evicted = |session: &Session| {
        session
            .rewind
            .evictions(session.rewind.config.max_points, 1)
    };
    let outcome = |session: &Session| RewindPointTaken {
        op: op.seq,
        tag: started.tag.clone(),
        snapshot: taken.clone(),
        trigger: started.trigger,
        before: started.before,
        evicted: evicted(session),
        duration_ms: millis(started_at),
    };
    // Other points may be recorded meanwhile, so what makes room is decided on the state of now.
    let (session, _) = inner
        .book
        .decide(caller, op.session, |session| {
            let event = Event::RewindPointTaken(outcome(session));
            Ok(Entry::new(event).caused_by(op.intent))
        })
        .await?;
    let gone = evicted(&session);
    let gone = gone.iter().filter_map(|tag| session.rewind.get(tag));
    snapshots::release(inner, gone.map(|point| point.snapshot.id));
    Ok(())
}
