//! Carry a child's changes to its parent: a checkpoint of the parent, a merge of three trees, one set of
//! changes into the parent's guest.
//!
//! All or nothing: the plan is made of captured states, the set is whole in the guest before anything is
//! changed, and when it cannot be applied to its end, the set that undoes it is. A daemon that ends
//! between intent and outcome leaves both snapshots, and the next one makes that set and applies it. Where
//! even that fails, the parent has its checkpoint, and the ledger says so.

mod answer;
mod apply;
mod decide;
mod keep;
mod redo;
mod set;

use std::sync::Arc;
use std::time::Instant;

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::KeptBlob;
use fluxvm_projections::Event;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::PromoteFailed;
use fluxvm_projections::PromoteStarted;
use fluxvm_projections::Promoted;
use fluxvm_projections::PromotedOut;
use fluxvm_projections::Recording;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use uuid::Uuid;

pub use answer::PromoteAnswer;
pub use answer::PromoteOutcome;
pub(crate) use answer::recorded;
pub(crate) use apply::roll_back;
pub(crate) use redo::redo;

use crate::book::Entry;
use crate::book::Op;
use crate::caller::Caller;
use crate::changes::ChangeKind;
use crate::checkpoint;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::Checkpoint;
use crate::snapshots;
use crate::states;
use crate::states::State;
use answer::answer;
use answer::conflicts;
use apply::Fault;
use apply::Plan;
use apply::Sides;
use keep::Keeper;

/// A child to be promoted.
#[derive(Clone, Debug, Default)]
pub struct Promote {
    /// Only say what would be done.
    pub dry_run: bool,
    /// The plan that the caller saw.
    pub plan_id: Option<String>,
    /// Do what is not in conflict.
    pub skip_conflicts: bool,
    /// Only these paths of the workspace, and what lies below them; empty is all.
    pub paths: Vec<String>,
}

impl Engine {
    /// Carries a child's changes to its parent, or says what that would be.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NoBaseline`, `NotRunning`, `Busy`, `CommandsRunning`, `Full`, `PlanChanged`,
    /// `Conflicts`, `TooLarge` and `InsufficientStorage` with nothing changed; `NotApplied` when it could
    /// not be done, and says how the parent is; `Snapshot`, `SnapshotLate`, `Ledger`.
    pub async fn promote(
        &self,
        caller: &Caller,
        child: SessionId,
        request: Promote,
    ) -> Result<PromoteAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            promote(&inner, &caller, child, request).await
        })
        .await
    }
}

async fn promote(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Promote,
) -> Result<PromoteAnswer, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let child = inner.book.session(caller, id)?;
    let origin = child.origin.clone().ok_or(CommandError::NoBaseline(id))?;
    let parent = origin.parent;
    let paths = request.paths.iter();
    let paths = paths.map(|path| states::relative(&child, "paths", path));
    let wanted: Vec<String> = paths.collect::<Result<_, _>>()?;
    // The workspace itself is everything in it.
    let wanted = if wanted.iter().any(String::is_empty) {
        Vec::new()
    } else {
        wanted
    };
    inner.expire_if_due(caller, parent).await?;
    let now = inner.clock.now();
    let session = inner.book.session(caller, parent)?;
    decide::check(&session, &child, now)?;
    inner.check_room()?;
    if request.dry_run {
        let plan = look(inner, &child, &session, &wanted).await?;
        return Ok(answer(id, parent, plan));
    }
    let baseline = origin.snapshot.id;
    let pair = (&child, &session);
    carry(inner, caller, pair, &request, (baseline, wanted)).await
}

/// What would be done, with nothing left of the looking.
async fn look(
    inner: &Arc<Inner>,
    child: &Session,
    parent: &Session,
    wanted: &[String],
) -> Result<Plan, CommandError> {
    let theirs = states::now(inner, child.id, MemoryMode::Never).await?;
    let ours = states::now(inner, parent.id, MemoryMode::Never).await?;
    let sides = Sides {
        base: State::baseline(child)?,
        theirs: State::captured(child, "now", &theirs.snapshot, None)?,
        ours: State::captured(parent, "now", &ours.snapshot, None)?,
    };
    let (_, plan) = sides.plan(inner, wanted).await?;
    Ok(plan)
}

async fn carry(
    inner: &Arc<Inner>,
    caller: &Caller,
    (child, parent): (&Session, &Session),
    request: &Promote,
    (baseline, paths): (SnapshotId, Vec<String>),
) -> Result<PromoteAnswer, CommandError> {
    let now = inner.clock.now();
    let tag = decide::tag(child.id, now);
    let taken = Checkpoint {
        tag: Some(tag.clone()),
        memory: Some(false),
        if_match: None,
    };
    // A request of its own: to a retry of this one, a checkpoint is not yet what was asked for.
    let own = Caller {
        request: CorrelationId::new(Uuid::now_v7()),
        ..caller.clone()
    };
    let taken = checkpoint::take(inner, &own, parent.id, taken).await?;
    crash::point("promote.checkpoint");
    let started = PromoteStarted {
        child: child.id,
        tag: tag.clone(),
        checkpoint: taken.outcome.snapshot.id,
        theirs: SnapshotId(Uuid::new_v4()),
        baseline,
        paths,
    };
    let turn = inner.turns.take(parent.id).await;
    let decided = inner
        .book
        .decide(caller, parent.id, |session| {
            let child = inner.book.session(caller, child.id)?;
            decide::start(session, &child, &started, parent.version, now)
        })
        .await;
    drop(turn);
    let (_, intent) = match decided {
        Ok(decided) => decided,
        Err(error) => {
            forget(inner, caller, parent.id, &tag).await;
            return Err(error);
        }
    };
    crash::point("promote.intent");
    let work = Work {
        op: Op::of(parent.id, &intent),
        started,
        started_at: Instant::now(),
    };
    let done = work.carry(inner, caller, child, parent, request).await;
    snapshots::release(inner, [work.started.theirs]);
    done
}

/// A promotion on its way from intent to outcome.
struct Work {
    op: Op,
    started: PromoteStarted,
    started_at: Instant,
}

impl Work {
    async fn carry(
        &self,
        inner: &Arc<Inner>,
        caller: &Caller,
        child: &Session,
        parent: &Session,
        request: &Promote,
    ) -> Result<PromoteAnswer, CommandError> {
        let planned = self.plan(inner, child, parent, request).await;
        let (sides, trees, plan) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                let error = self.fail(inner, caller, error, true).await;
                forget(inner, caller, parent.id, &self.started.tag).await;
                return Err(error);
            }
        };
        let forth = set::forth(&plan.merge, &trees);
        let keeper = match parent.record {
            Recording::Full => {
                let ledger = inner.book.ledger().clone();
                Some(Keeper::new(ledger, parent.id.stream()))
            }
            Recording::Digest => None,
        };
        let applied = apply::apply(inner, parent.id, sides.theirs, forth, keeper).await;
        let kept = match applied {
            Ok(kept) => kept,
            Err(error) => {
                let back = set::back(&plan.merge, &trees);
                let back = apply::apply(inner, parent.id, sides.ours, back, None).await;
                return Err(self.not_applied(inner, caller, &plan, (error, back)).await);
            }
        };
        crash::point("promote.applied");
        let outcome = self.record(inner, caller, &plan, kept).await?;
        crash::point("promote.outcome");
        let mut answer = answer(child.id, parent.id, plan);
        answer.outcome = Some(outcome);
        Ok(answer)
    }

    /// Records that the set could not be applied, and what became of the parent.
    async fn not_applied(
        &self,
        inner: &Inner,
        caller: &Caller,
        plan: &Plan,
        (error, back): (Fault, Result<Vec<KeptBlob>, Fault>),
    ) -> CommandError {
        let outcome = match &back {
            Ok(_) => "every path is as it was".to_owned(),
            Err(error) => format!(
                "up to {} paths may be changed, because that could not be undone either ({error}); \
                     restore checkpoint {} to undo it",
                plan.merge.apply.len(),
                self.started.tag
            ),
        };
        let reason = error.to_string();
        let error = CommandError::NotApplied { reason, outcome };
        self.fail(inner, caller, error, back.is_ok()).await
    }

    /// Everything that can be refused is refused here, before anything is changed.
    async fn plan(
        &self,
        inner: &Arc<Inner>,
        child: &Session,
        parent: &Session,
        request: &Promote,
    ) -> Result<(Sides, set::Trees, Plan), CommandError> {
        let theirs =
            snapshots::take(inner, child.id, self.started.theirs, MemoryMode::Never).await?;
        crash::point("promote.captured");
        let parent = inner
            .book
            .world()
            .sessions
            .get(parent.id)
            .cloned()
            .unwrap_or(parent.clone());
        let ours = checkpoint::find(&parent, &self.started.tag)?;
        let sides = Sides {
            base: State::baseline(child)?,
            theirs: State::captured(child, "now", &theirs, None)?,
            ours: State::captured(&parent, &self.started.tag, &ours.snapshot, None)?,
        };
        let (trees, plan) = sides.plan(inner, &self.started.paths).await?;
        decide::accept(&plan, request)?;
        decide::fits(&plan.merge, &trees)?;
        Ok((sides, trees, plan))
    }

    async fn fail(
        &self,
        inner: &Inner,
        caller: &Caller,
        error: CommandError,
        rolled_back: bool,
    ) -> CommandError {
        let failed = Event::PromoteFailed(PromoteFailed {
            op: self.op.seq,
            child: self.started.child,
            code: error.code().to_owned(),
            reason: error.to_string(),
            rolled_back,
        });
        let (id, intent) = (self.op.session, self.op.intent);
        match inner
            .book
            .conclude(caller, id, intent, Entry::new(failed))
            .await
        {
            Ok(_) => error,
            Err(unrecorded) => unrecorded,
        }
    }

    /// Records it with what was kept of it; without where that cannot be stored.
    async fn record(
        &self,
        inner: &Inner,
        caller: &Caller,
        plan: &Plan,
        kept: Vec<KeptBlob>,
    ) -> Result<PromoteOutcome, CommandError> {
        match self.append(inner, caller, plan, kept).await {
            Err(CommandError::Ledger(AppendError::Blob { reason })) => {
                tracing::error!(%reason, "what a promotion carries was not stored");
                self.append(inner, caller, plan, Vec::new()).await
            }
            appended => appended,
        }
    }

    /// Parent and child learn of it in one instant.
    async fn append(
        &self,
        inner: &Inner,
        caller: &Caller,
        plan: &Plan,
        kept: Vec<KeptBlob>,
    ) -> Result<PromoteOutcome, CommandError> {
        let out = PromotedOut {
            parent: self.op.session,
            plan_id: plan.id.clone(),
            carried: plan.merge.apply.len() as u64,
            conflicts: plan.merge.conflicts.len() as u64,
        };
        let promoted = Event::Promoted(self.promoted(plan, &kept));
        let entry = Entry::new(promoted).caused_by(self.op.intent);
        let (here, there) = (self.op.session.stream(), self.started.child.stream());
        let out = Entry::new(Event::PromotedOut(out));
        let streams = vec![
            (here, ExpectedVersion::Exists, vec![entry.with_kept(kept)]),
            (there, ExpectedVersion::Exists, vec![out]),
        ];
        let recorded = inner.book.append_streams(caller, streams).await?;
        let recorded = recorded
            .first()
            .ok_or_else(|| CommandError::Internal("the ledger answered nothing".into()))?;
        Ok(PromoteOutcome {
            seq: recorded.header.seq.get(),
            checkpoint: self.started.tag.clone(),
        })
    }

    fn promoted(&self, plan: &Plan, kept: &[KeptBlob]) -> Promoted {
        let of = |wanted: ChangeKind| {
            let apply = plan.merge.apply.iter();
            let apply = apply.filter(move |(_, kind)| **kind == wanted);
            apply.map(|(path, _)| path.clone()).collect::<Vec<_>>()
        };
        Promoted {
            op: self.op.seq,
            child: self.started.child,
            plan_id: plan.id.clone(),
            tag: self.started.tag.clone(),
            added: of(ChangeKind::Added),
            modified: of(ChangeKind::Modified),
            deleted: of(ChangeKind::Deleted),
            already_applied: plan.merge.already_applied.clone(),
            conflicts: conflicts(&plan.merge),
            untouched: plan.merge.untouched,
            blobs: kept.iter().map(|blob| blob.digest().to_string()).collect(),
            duration_ms: millis(self.started_at),
        }
    }
}

/// Nothing was changed: the checkpoint of before is of no use to anyone.
async fn forget(inner: &Arc<Inner>, caller: &Caller, parent: SessionId, tag: &str) {
    if let Err(error) = checkpoint::delete(inner, caller, parent, tag).await {
        tracing::warn!(session = %parent, %error, "a checkpoint that is of no use was not deleted");
    }
}
