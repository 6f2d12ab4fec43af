//! What a promotion is answered with.

use fluxvm_projections::ConflictRecord;
use fluxvm_projections::Promoted;
use fluxvm_projections::SessionId;

use super::apply::Plan;
use crate::changes::ChangeKind;
use crate::changes::Conflict;
use crate::changes::Merge;

/// A promotion, done or planned.
#[derive(Clone, Debug)]
pub struct PromoteAnswer {
    /// Whose changes.
    pub child: SessionId,
    /// Where they are carried.
    pub parent: SessionId,
    /// What is done, by path.
    pub apply: Vec<(String, ChangeKind)>,
    /// What the parent has already.
    pub already_applied: Vec<String>,
    /// What is not done.
    pub conflicts: Vec<ConflictRecord>,
    /// How many paths the child did not change.
    pub untouched: u64,
    /// A digest of the plan.
    pub plan_id: String,
    /// What became of it; `None` when it was only asked for.
    pub outcome: Option<PromoteOutcome>,
}

/// A promotion that was done.
#[derive(Clone, Debug)]
pub struct PromoteOutcome {
    /// The ledger number of the parent's event.
    pub seq: u64,
    /// The parent's checkpoint of just before.
    pub checkpoint: String,
}

/// The answer, out of the outcome.
pub(crate) fn recorded(parent: SessionId, seq: u64, outcome: Promoted) -> PromoteAnswer {
    let of = |paths: Vec<String>, kind| paths.into_iter().map(move |path| (path, kind));
    let added = of(outcome.added, ChangeKind::Added);
    let modified = of(outcome.modified, ChangeKind::Modified);
    let deleted = of(outcome.deleted, ChangeKind::Deleted);
    let mut apply: Vec<_> = added.chain(modified).chain(deleted).collect();
    apply.sort_by(|a, b| a.0.cmp(&b.0));
    PromoteAnswer {
        child: outcome.child,
        parent,
        apply,
        already_applied: outcome.already_applied,
        conflicts: outcome.conflicts,
        untouched: outcome.untouched,
        plan_id: outcome.plan_id,
        outcome: Some(PromoteOutcome {
            seq,
            checkpoint: outcome.tag,
        }),
    }
}

/// The conflicts of a plan, in the words of the ledger.
pub(super) fn conflicts(merge: &Merge) -> Vec<ConflictRecord> {
    let record = |conflict: &Conflict| ConflictRecord {
        path: conflict.path.clone(),
        reason: conflict.reason.to_owned(),
    };
    merge.conflicts.iter().map(record).collect()
}

/// What is planned.
pub(super) fn answer(child: SessionId, parent: SessionId, plan: Plan) -> PromoteAnswer {
    PromoteAnswer {
        child,
        parent,
        conflicts: conflicts(&plan.merge),
        apply: plan.merge.apply.into_iter().collect(),
        already_applied: plan.merge.already_applied,
        untouched: plan.merge.untouched,
        plan_id: plan.id,
        outcome: None,
    }
}
