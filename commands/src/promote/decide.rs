//! Whether a child's changes may be carried to its parent. Pure.

use chrono::DateTime;
use chrono::SecondsFormat;
use chrono::Utc;
use fluxvm_eventstore::StreamVersion;
use fluxvm_projections::Event;
use fluxvm_projections::PromoteStarted;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::EntryKind;

use super::Promote;
use super::apply::Plan;
use super::set::Trees;
use crate::book::Entry;
use crate::changes::Merge;
use crate::error::CommandError;
use crate::files;
use crate::gate;
use crate::limits::CHECKPOINTS_MAX;
use crate::limits::PROMOTE_BYTES_MAX;
use crate::limits::PROMOTE_CHANGES_MAX;
use crate::limits::PROMOTE_PATHS_BYTES_MAX;

/// The state that both sessions have to be in.
pub(super) fn check(
    parent: &Session,
    child: &Session,
    now: DateTime<Utc>,
) -> Result<(), CommandError> {
    for session in [child, parent] {
        gate::running(session, now)?;
        gate::no_lifecycle(session)?;
        gate::no_commands(session)?;
    }
    files::check_writable(parent, &parent.workspace.path)?;
    if parent.checkpoints.iter().len() >= CHECKPOINTS_MAX {
        return Err(CommandError::Full {
            what: "checkpoints",
            limit: CHECKPOINTS_MAX,
        });
    }
    Ok(())
}

/// Events that taking a checkpoint adds to a session.
const CHECKPOINT_EVENTS: u64 = 2;

/// Decides to begin. `before` is the parent's version before its checkpoint: nothing else may have happened
/// in it since.
pub(super) fn start(
    parent: &Session,
    child: &Session,
    started: &PromoteStarted,
    before: StreamVersion,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    check(parent, child, now)?;
    if parent.version.get() != before.get() + CHECKPOINT_EVENTS {
        return Err(CommandError::Busy {
            session: parent.id,
            operation: "another operation",
            since: now.to_rfc3339_opts(SecondsFormat::Millis, true),
        });
    }
    Ok(Entry::new(Event::PromoteStarted(started.clone())))
}

/// Holds a plan against what the caller asked for.
pub(super) fn accept(plan: &Plan, request: &Promote) -> Result<(), CommandError> {
    if let Some(expected) = &request.plan_id
        && *expected != plan.id
    {
        return Err(CommandError::PlanChanged {
            expected: expected.clone(),
            actual: plan.id.clone(),
        });
    }
    match plan.merge.conflicts.first() {
        Some(first) if !request.skip_conflicts => Err(CommandError::Conflicts {
            count: plan.merge.conflicts.len(),
            first: first.path.clone(),
            reason: first.reason,
        }),
        _ => Ok(()),
    }
}

/// Holds a plan against the limits.
pub(super) fn fits(merge: &Merge, trees: &Trees) -> Result<(), CommandError> {
    let over = |limit: usize, unit| CommandError::TooLarge {
        what: "the promotion",
        limit,
        unit,
    };
    if merge.apply.len() > PROMOTE_CHANGES_MAX {
        return Err(over(
            PROMOTE_CHANGES_MAX,
            "changes; promote a part with `paths`",
        ));
    }
    let bytes = |path: &String| match trees.theirs.get(path).map(|entry| &entry.kind) {
        Some(EntryKind::File { bytes, .. }) => *bytes,
        _ => 0,
    };
    if merge.apply.keys().map(bytes).sum::<u64>() > PROMOTE_BYTES_MAX {
        let limit = usize::try_from(PROMOTE_BYTES_MAX).unwrap_or(usize::MAX);
        return Err(over(limit, "bytes of files"));
    }
    let conflicts = merge.conflicts.iter().map(|conflict| &conflict.path);
    let named = merge
        .apply
        .keys()
        .chain(&merge.already_applied)
        .chain(conflicts);
    if named.map(String::len).sum::<usize>() > PROMOTE_PATHS_BYTES_MAX {
        return Err(over(PROMOTE_PATHS_BYTES_MAX, "bytes of names"));
    }
    Ok(())
}

/// `pre-promote-<child>-<time>`, to the millisecond: as long as a tag may be.
pub(super) fn tag(child: SessionId, now: DateTime<Utc>) -> String {
    format!("pre-promote-{child}-{}", now.format("%y%m%d%H%M%S%3f"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::check_tag;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_with;
    use fluxvm_projections::OperationKind;
    use uuid::Uuid;

    #[test]
    fn neither_side_may_be_at_work() {
        let busy = [
            (OperationKind::Replay, "commands_running"),
            (OperationKind::Delete, "operation_in_flight"),
        ];
        assert!(check(&session(), &session(), now()).is_ok());
        for (kind, code) in busy {
            let working = session_with(kind);
            let refused = check(&working, &session(), now()).unwrap_err();
            assert_eq!(refused.code(), code, "the parent");
            let refused = check(&session(), &working, now()).unwrap_err();
            assert_eq!(refused.code(), code, "the child");
        }
    }

    #[test]
    fn the_checkpoint_of_before_has_a_tag_like_any() {
        let tag = tag(SessionId(Uuid::from_u128(7)), now());
        assert!(check_tag(&tag).is_ok(), "{tag}");
    }
}
