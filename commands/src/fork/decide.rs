//! Whether children may be made, and of what. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::ChildPlan;
use fluxvm_projections::Event;
use fluxvm_projections::ForkStarted;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;

use crate::book::Entry;
use crate::checkpoint;
use crate::error::CommandError;
use crate::gate;
use crate::guard::budget;
use crate::limits::CHILDREN_MAX;
use crate::limits::FORK_CHILDREN_MAX;
use crate::request::Fork;
use crate::request::ForkFrom;
use crate::snapshots;

/// What the ids of a fork will be, drawn before it is decided.
pub(super) struct Ids {
    /// The snapshot, if one is taken.
    pub(super) snapshot: SnapshotId,
    pub(super) children: Vec<ChildPlan>,
}

/// Checks what can be checked without a session.
pub(super) fn check(request: &Fork) -> Result<(), CommandError> {
    if !(1..=FORK_CHILDREN_MAX).contains(&request.count) {
        return Err(CommandError::Invalid {
            field: "count",
            message: format!("must be 1 to {FORK_CHILDREN_MAX}"),
        });
    }
    let (ForkFrom::Checkpoint(tag) | ForkFrom::Point(tag)) = &request.from else {
        return Ok(());
    };
    if request.memory.is_some() {
        return Err(CommandError::Invalid {
            field: "memory",
            message: "is decided by what the tag's snapshot holds; leave it out".to_owned(),
        });
    }
    checkpoint::check_tag(tag)
}

/// Decides.
pub(super) fn decide(
    session: &Session,
    request: &Fork,
    ids: &Ids,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::revision(session, request.if_match)?;
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    gate::no_commands(session)?;
    if !session.capabilities.fork {
        return Err(CommandError::CannotFork(
            "this engine makes no second sandbox of one".to_owned(),
        ));
    }
    let room = CHILDREN_MAX.saturating_sub(session.children.len());
    if ids.children.len() > room {
        return Err(CommandError::Full {
            what: "children",
            limit: CHILDREN_MAX,
        });
    }
    budget::children(session, ids.children.len()).map_err(|spent| CommandError::Refused {
        code: "budget_exceeded",
        reason: spent.sentence(),
    })?;
    let past = source(session, &request.from)?;
    let memory = match (past, request.memory) {
        (Some(_), _) => None,
        // A child without what ran says so in its record.
        (None, None) => Some(MemoryMode::BestEffort),
        (None, asked) => Some(snapshots::memory_mode(session, asked)?),
    };
    let started = ForkStarted {
        tag: match &request.from {
            ForkFrom::Now => None,
            ForkFrom::Checkpoint(tag) | ForkFrom::Point(tag) => Some(tag.clone()),
        },
        snapshot: past.map_or(ids.snapshot, |past| past.id),
        memory,
        identity: request.identity,
        children: ids.children.clone(),
    };
    Ok(Entry::new(match request.from {
        ForkFrom::Point(_) => Event::BranchStarted(started),
        _ => Event::ForkStarted(started),
    }))
}

/// The snapshot of the past that children start from; `None` is the state of now.
pub(super) fn source<'a>(
    session: &'a Session,
    from: &ForkFrom,
) -> Result<Option<&'a SnapshotRecord>, CommandError> {
    match from {
        ForkFrom::Now => Ok(None),
        ForkFrom::Checkpoint(tag) => {
            checkpoint::find(session, tag).map(|found| Some(&found.snapshot))
        }
        ForkFrom::Point(tag) => {
            let point = session.rewind.get(tag).map(|point| &point.snapshot);
            let checkpoint = || session.checkpoints.get(tag).map(|it| &it.snapshot);
            let found = point.or_else(checkpoint);
            found.map(Some).ok_or_else(|| CommandError::TagNotFound {
                what: "rewind point or checkpoint",
                tag: tag.clone(),
                hint: "",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::after;
    use crate::testing::checkpointed;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_with;
    use crate::testing::snapshot;
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_projections::Capabilities;
    use fluxvm_projections::IdentityMode;
    use fluxvm_projections::OperationKind;
    use fluxvm_projections::SandboxId;
    use fluxvm_projections::SessionId;
    use uuid::Uuid;

    fn fork(count: u32, from: ForkFrom) -> Fork {
        Fork {
            count,
            identity: IdentityMode::BestEffort,
            memory: None,
            from,
            if_match: None,
        }
    }

    fn check_on(session: &Session, request: &Fork, expected: Expect) {
        let child = ChildPlan {
            session: SessionId(Uuid::nil()),
            sandbox_id: SandboxId(Uuid::nil()),
        };
        let ids = Ids {
            snapshot: snapshot(0xf).id,
            children: vec![child; request.count as usize],
        };
        expected.assert_eq(&after(decide(session, request, &ids, now())));
    }

    #[test]
    fn a_fork_has_1_to_32_children() {
        for (count, fits) in [(0, false), (1, true), (32, true), (33, false)] {
            let checked = check(&fork(count, ForkFrom::Now));
            assert_eq!(checked.is_ok(), fits, "{count}");
            if let Err(error) = checked {
                assert_eq!(error.field(), Some("count"));
            }
        }
    }

    #[test]
    fn children_start_from_now_or_from_a_checkpoint() {
        check_on(
            &session(),
            &fork(1, ForkFrom::Now),
            expect![[
                r#"fork.started {"children":[{"sandbox_id":"00000000-0000-0000-0000-000000000000","session":"00000000-0000-0000-0000-000000000000"}],"identity":"best-effort","memory":"best_effort","snapshot":"00000000-0000-0000-0000-00000000000f"}"#
            ]],
        );
        check_on(
            &checkpointed(&["x", "a"]),
            &fork(1, ForkFrom::Checkpoint("a".into())),
            expect![[
                r#"fork.started {"children":[{"sandbox_id":"00000000-0000-0000-0000-000000000000","session":"00000000-0000-0000-0000-000000000000"}],"identity":"best-effort","snapshot":"00000000-0000-0000-0000-000000000001","tag":"a"}"#
            ]],
        );
        check_on(
            &session(),
            &fork(1, ForkFrom::Point("rw-1".into())),
            expect!["tag_not_found: the session has no rewind point or checkpoint `rw-1`"],
        );
    }

    #[test]
    fn a_session_that_cannot_fork_says_why() {
        let fixed = Session {
            capabilities: Capabilities::default(),
            ..session()
        };
        check_on(
            &fixed,
            &fork(1, ForkFrom::Now),
            expect![
                "cannot_fork: the session cannot be forked: this engine makes no second sandbox of one"
            ],
        );
    }

    #[test]
    fn nothing_is_forked_while_a_command_runs() {
        check_on(
            &session_with(OperationKind::Replay),
            &fork(1, ForkFrom::Now),
            expect![
                "commands_running: 1 running in session 00000000-0000-0000-0000-000000000000: its machine cannot be replaced under them; wait until they end"
            ],
        );
    }
}
