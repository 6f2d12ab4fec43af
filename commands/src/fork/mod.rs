//! Make children of a session, all or none.
//!
//! The intent names every child before it exists. The children's own first events and the parent's
//! outcome become durable in one instant, so that there is no moment at which some of them are there: a
//! crash before it leaves sandboxes that no session owns, and the next start removes them.

mod decide;

use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::ChildPlan;
use fluxvm_projections::Event;
use fluxvm_projections::ForkStarted;
use fluxvm_projections::Forked;
use fluxvm_projections::ForkedSession;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::Origin;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionCreateStarted;
use fluxvm_projections::SessionCreated;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::answer::ForkAnswer;
use crate::book::Entry;
use crate::book::Op;
use crate::book::read;
use crate::caller::Caller;
use crate::capabilities;
use crate::checkpoint::give_up;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guard::budget;
use crate::limits::FORK_CHILDREN_AT_ONCE;
use crate::request::Fork;
use crate::request::ForkFrom;
use crate::revive;
use crate::revive::Revived;
use crate::revive::Who;
use crate::snapshots;
use decide::Ids;

/// Makes children.
pub(crate) async fn fork(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Fork,
) -> Result<ForkAnswer, CommandError> {
    decide::check(&request)?;
    let children: Vec<SessionId> = (0..request.count)
        .map(|_| SessionId(Uuid::new_v4()))
        .collect();
    fork_named(inner, caller, id, request, &children).await
}

/// Makes children with names that were drawn for them.
pub(crate) async fn fork_named(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Fork,
    children: &[SessionId],
) -> Result<ForkAnswer, CommandError> {
    decide::check(&request)?;
    inner.expire_if_due(caller, id).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let ids = draw(children);
    let turn = inner.turns.take(id).await;
    let (parent, intent) = inner
        .book
        .decide(caller, id, |session| {
            decide::decide(session, &request, &ids, now)
        })
        .await?;
    drop(turn);
    crash::point("fork.intent");
    let work = Work {
        op: Op::of(id, &intent),
        started: started(&intent)?,
        from: request.from,
        parent: Arc::new(parent),
        started_at,
    };
    match make(inner, caller, &work).await {
        Ok(answer) => Ok(answer),
        Err(error) => {
            let tag = work.started.tag.clone();
            let failed = match work.from {
                ForkFrom::Point(_) => Event::BranchFailed,
                _ => Event::ForkFailed,
            };
            let error = give_up(inner, caller, work.op, tag, error, failed).await;
            // Not the one of a tag: that is still needed, and so it stays.
            snapshots::release(inner, [work.started.snapshot]);
            Err(error)
        }
    }
}

/// A fork on its way from intent to outcome.
struct Work {
    op: Op,
    started: ForkStarted,
    from: ForkFrom,
    parent: Arc<Session>,
    started_at: Instant,
}

/// One child whose sandbox answers.
struct Born {
    plan: ChildPlan,
    revived: Revived,
    duration_ms: u64,
}

fn draw(children: &[SessionId]) -> Ids {
    let child = |session: &SessionId| ChildPlan {
        session: *session,
        sandbox_id: SandboxId(Uuid::new_v4()),
    };
    Ids {
        snapshot: SnapshotId(Uuid::new_v4()),
        children: children.iter().map(child).collect(),
    }
}

fn started(intent: &RecordedEvent) -> Result<ForkStarted, CommandError> {
    match read(intent)?.event {
        Event::ForkStarted(started) | Event::BranchStarted(started) => Ok(started),
        _ => Err(CommandError::Internal("another intent was recorded".into())),
    }
}

async fn make(
    inner: &Arc<Inner>,
    caller: &Caller,
    work: &Work,
) -> Result<ForkAnswer, CommandError> {
    let snapshot = match (
        decide::source(&work.parent, &work.from)?,
        work.started.memory,
    ) {
        (Some(past), _) => past.clone(),
        (None, Some(memory)) => {
            snapshots::take(inner, work.parent.id, work.started.snapshot, memory).await?
        }
        (None, None) => return Err(CommandError::Internal("a fork of nothing".into())),
    };
    crash::point("fork.snapshot");
    let born = deliver(inner, work, &snapshot).await?;
    crash::point("fork.children");
    record(inner, caller, work, snapshot, born).await
}

/// Makes every child's sandbox, a few at a time. On the first failure those that are there go again.
async fn deliver(
    inner: &Arc<Inner>,
    work: &Work,
    snapshot: &SnapshotRecord,
) -> Result<Vec<Born>, CommandError> {
    let room = Arc::new(Semaphore::new(FORK_CHILDREN_AT_ONCE));
    let mut making = JoinSet::new();
    for plan in work.started.children.iter().copied() {
        let (inner, room) = (Arc::clone(inner), Arc::clone(&room));
        let (parent, snapshot) = (Arc::clone(&work.parent), snapshot.clone());
        let identity = work.started.identity;
        making.spawn(async move {
            let _room = room
                .acquire_owned()
                .await
                .map_err(|error| CommandError::Internal(error.to_string()))?;
            let started_at = Instant::now();
            let who = Who {
                sandbox_id: plan.sandbox_id,
                hostname: hostname(&parent, plan, identity),
                identity,
            };
            let revived = revive::revive(&inner, &parent, &snapshot, who).await?;
            Ok::<_, CommandError>(Born {
                plan,
                revived,
                duration_ms: millis(started_at),
            })
        });
    }
    let mut born = Vec::with_capacity(work.started.children.len());
    let mut failure = None;
    while let Some(done) = making.join_next().await {
        match done {
            Ok(Ok(child)) => born.push(child),
            Ok(Err(error)) => failure = failure.or(Some(error)),
            Err(error) => failure = failure.or(Some(CommandError::Internal(error.to_string()))),
        }
        if failure.is_some() {
            // Children that wait for their turn never begin.
            room.close();
        }
    }
    let Some(error) = failure else {
        let place = |child: &Born| {
            let plans = &work.started.children;
            plans.iter().position(|plan| *plan == child.plan)
        };
        born.sort_by_key(place);
        return Ok(born);
    };
    for child in born {
        revive::discard(child.revived.sandbox.as_ref()).await;
    }
    Err(error)
}

/// Records parent and children in one instant.
async fn record(
    inner: &Arc<Inner>,
    caller: &Caller,
    work: &Work,
    snapshot: SnapshotRecord,
    born: Vec<Born>,
) -> Result<ForkAnswer, CommandError> {
    let outcome = Forked {
        op: work.op.seq,
        tag: work.started.tag.clone(),
        snapshot: snapshot.clone(),
        count: born.len() as u64,
        children: born.iter().map(|child| child.plan.session).collect(),
        duration_ms: millis(work.started_at),
    };
    let event = match work.from {
        ForkFrom::Point(_) => Event::Branched(outcome.clone()),
        _ => Event::Forked(outcome.clone()),
    };
    let parent = Entry::new(event).caused_by(work.op.intent);
    let stream = work.parent.id.stream();
    let mut streams = vec![(stream, ExpectedVersion::Exists, vec![parent])];
    let engine = capabilities::recorded(&inner.backend.capabilities());
    for child in &born {
        let created = created(work, child, &snapshot, &engine, inner.clock.now());
        let entry = Entry::new(Event::SessionCreated(created)).caused_by(work.op.intent);
        let stream = child.plan.session.stream();
        streams.push((stream, ExpectedVersion::NoStream, vec![entry]));
    }
    // Registered before anyone knows of them, so that the first command finds its sandbox.
    for child in &born {
        let sandbox = Arc::clone(&child.revived.sandbox);
        inner.sandboxes.insert(child.plan.session, sandbox);
    }
    let recorded = match inner.book.append_streams(caller, streams).await {
        Ok(recorded) => recorded,
        Err(error) => {
            for child in born {
                inner.sandboxes.take(child.plan.session);
                revive::discard(child.revived.sandbox.as_ref()).await;
            }
            return Err(error);
        }
    };
    crash::point("fork.outcome");
    for child in born {
        inner.watch_exit(child.plan.session, child.revived.sandbox);
    }
    let recorded = recorded
        .first()
        .ok_or_else(|| CommandError::Internal("the ledger answered nothing".into()))?;
    answer(inner, caller, work.parent.id, recorded, outcome)
}

/// The answer, out of the outcome, with the children as they are now.
pub(crate) fn answer(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    recorded: &RecordedEvent,
    outcome: Forked,
) -> Result<ForkAnswer, CommandError> {
    let child = |child: &SessionId| inner.book.session(caller, *child);
    Ok(ForkAnswer {
        seq: recorded.header.seq.get(),
        revision: inner.book.session(caller, id)?.revision,
        children: outcome
            .children
            .iter()
            .map(child)
            .collect::<Result<_, _>>()?,
        outcome,
    })
}

/// A child inherits everything but its identity and its past.
fn created(
    work: &Work,
    child: &Born,
    snapshot: &SnapshotRecord,
    engine: &fluxvm_projections::Capabilities,
    now: DateTime<Utc>,
) -> SessionCreated {
    let parent = &work.parent;
    let identity = work.started.identity;
    let asked = SessionCreateStarted {
        agent: parent.agent.clone(),
        tenant: parent.tenant.clone(),
        sandbox_id: child.plan.sandbox_id,
        backend: parent.backend.clone(),
        workspace: parent.workspace.clone(),
        runtime: parent.runtime.clone(),
        policy: parent.policy.clone(),
        record: parent.record,
        expires_at: parent.expires_at,
        budget: budget::remaining(parent, now),
    };
    let origin = Origin {
        parent: parent.id,
        tag: work.started.tag.clone(),
        snapshot: snapshot.clone(),
        revival: child.revived.revival.clone(),
        hostname: (identity == IdentityMode::Preserve).then(|| parent.machine_name()),
    };
    SessionCreated {
        op: work.op.seq,
        agent: parent.agent.clone(),
        sandbox_id: child.plan.sandbox_id,
        backend: parent.backend.clone(),
        capabilities: engine.clone(),
        enforcement: parent.enforcement.clone(),
        workspace_note: parent.workspace_note.clone(),
        duration_ms: child.duration_ms,
        forked: Some(Box::new(ForkedSession { asked, origin })),
    }
}

fn hostname(parent: &Session, plan: ChildPlan, identity: IdentityMode) -> String {
    match identity {
        IdentityMode::Preserve => parent.machine_name(),
        IdentityMode::BestEffort | IdentityMode::Unique => plan.sandbox_id.machine_name(),
    }
}
