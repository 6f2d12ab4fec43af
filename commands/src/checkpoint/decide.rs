//! Whether a checkpoint may be taken or let go of. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::CheckpointDeleted;
use fluxvm_projections::CheckpointStarted;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotId;

use crate::book::Entry;
use crate::error::CommandError;
use crate::gate;
use crate::limits::CHECKPOINTS_MAX;
use crate::limits::TAG_BYTES_MAX;
use crate::request::Checkpoint;
use crate::snapshots;

/// A tag is 1 to 64 of what needs no quoting anywhere.
pub(crate) fn check_tag(tag: &str) -> Result<(), CommandError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=TAG_BYTES_MAX).contains(&tag.len()) && tag.bytes().all(is_plain) {
        return Ok(());
    }
    Err(CommandError::Invalid {
        field: "tag",
        message: format!("must be 1 to {TAG_BYTES_MAX} of A-Z a-z 0-9 . _ -"),
    })
}

/// Decides to take one. Commands may run meanwhile.
pub(super) fn take(
    session: &Session,
    request: &Checkpoint,
    snapshot: SnapshotId,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::revision(session, request.if_match)?;
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    if !session.capabilities.snapshot {
        return Err(CommandError::NotSupported {
            what: "take checkpoints",
            reason: session
                .capabilities
                .memory_checkpoint_reason
                .clone()
                .unwrap_or_else(|| "it has no snapshots".to_owned()),
        });
    }
    let memory = snapshots::memory_mode(session, request.memory)?;
    let tag = match &request.tag {
        Some(tag) if session.checkpoints.get(tag).is_some() => {
            return Err(CommandError::TagTaken(tag.clone()));
        }
        Some(tag) => tag.clone(),
        None => free_tag(session),
    };
    if session.checkpoints.iter().len() >= CHECKPOINTS_MAX {
        return Err(CommandError::Full {
            what: "checkpoints",
            limit: CHECKPOINTS_MAX,
        });
    }
    Ok(Entry::new(Event::CheckpointStarted(CheckpointStarted {
        tag,
        snapshot,
        memory,
    })))
}

/// Decides to let go of one. Nothing that works with it may be under way.
pub(super) fn delete(session: &Session, tag: &str) -> Result<Entry, CommandError> {
    gate::no_lifecycle(session)?;
    let checkpoint = find(session, tag)?;
    Ok(Entry::new(Event::CheckpointDeleted(CheckpointDeleted {
        tag: tag.to_owned(),
        snapshot: checkpoint.snapshot.id,
    })))
}

/// The session's checkpoint of this tag.
pub(crate) fn find<'a>(
    session: &'a Session,
    tag: &str,
) -> Result<&'a fluxvm_projections::Checkpoint, CommandError> {
    let is_point = session.rewind.get(tag).is_some();
    session
        .checkpoints
        .get(tag)
        .ok_or_else(|| CommandError::TagNotFound {
            what: "checkpoint",
            tag: tag.to_owned(),
            hint: if is_point {
                "; it is a rewind point: go back to it with rewind/undo"
            } else {
                ""
            },
        })
}

/// `cp-<n>`, numbered after what was ever taken, so that a tag means one state for good.
fn free_tag(session: &Session) -> String {
    let mut number = session.checkpoints.taken + 1;
    loop {
        let tag = format!("cp-{number}");
        if session.checkpoints.get(&tag).is_none() {
            return tag;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::after;
    use crate::testing::checkpointed;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_that_is;
    use crate::testing::session_with;
    use crate::testing::snapshot;
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_projections::ExecId;
    use fluxvm_projections::OperationKind;
    use fluxvm_projections::SessionStatus;
    use uuid::Uuid;

    fn check(session: &Session, request: &Checkpoint, expected: Expect) {
        let id = SnapshotId(Uuid::nil());
        expected.assert_eq(&after(super::take(session, request, id, now())));
    }

    fn tagged(tag: &str) -> Checkpoint {
        Checkpoint {
            tag: Some(tag.to_owned()),
            ..Checkpoint::default()
        }
    }

    #[test]
    fn a_running_session_is_checkpointed_also_while_commands_run() {
        let running = session_with(OperationKind::Exec {
            exec_id: ExecId(Uuid::nil()),
            command: "true".into(),
            timeout_ms: 1,
            stdin: false,
        });
        check(
            &running,
            &tagged("a"),
            expect![[
                r#"checkpoint.started {"memory":"required","snapshot":"00000000-0000-0000-0000-000000000000","tag":"a"}"#
            ]],
        );
    }

    #[test]
    fn a_checkpoint_without_a_tag_is_numbered_past_every_one_that_was_taken() {
        check(
            &checkpointed(&["cp-2", "mine"]),
            &Checkpoint::default(),
            expect![[
                r#"checkpoint.started {"memory":"required","snapshot":"00000000-0000-0000-0000-000000000000","tag":"cp-3"}"#
            ]],
        );
    }

    #[test]
    fn a_tag_means_one_state() {
        check(
            &checkpointed(&["a"]),
            &tagged("a"),
            expect![
                "tag_taken: the session has a checkpoint `a` already; delete it first or take another tag"
            ],
        );
    }

    #[test]
    fn memory_that_cannot_be_kept_is_refused_with_the_reason_when_it_is_asked_for() {
        let asked = |memory| Checkpoint {
            memory: Some(memory),
            ..tagged("a")
        };
        check(
            &session(),
            &asked(true),
            expect![
                "memory_checkpoint_impossible: memory cannot be kept: no criu here; with `memory: false` only the disk is"
            ],
        );
        check(
            &session(),
            &asked(false),
            expect![[
                r#"checkpoint.started {"memory":"never","snapshot":"00000000-0000-0000-0000-000000000000","tag":"a"}"#
            ]],
        );
    }

    #[test]
    fn one_lifecycle_operation_at_a_time() {
        let kind = OperationKind::Fork {
            snapshot: snapshot(1).id,
        };
        check(
            &session_with(kind),
            &tagged("a"),
            expect![
                "operation_in_flight: fork is in flight on session 00000000-0000-0000-0000-000000000000 since 2027-01-15T08:00:00.000Z; try again when it ended"
            ],
        );
    }

    #[test]
    fn a_session_that_changed_or_ended_is_not_checkpointed() {
        let outdated = Checkpoint {
            if_match: Some(7),
            ..tagged("a")
        };
        check(
            &session(),
            &outdated,
            expect!["revision_differs: the session is at revision 1, not 7; read it again"],
        );
        check(
            &session_that_is(SessionStatus::Gone),
            &tagged("a"),
            expect![
                "session_not_running: session 00000000-0000-0000-0000-000000000000 is gone: its sandbox ended; it can still be read, exported and deleted"
            ],
        );
    }

    #[test]
    fn a_tag_needs_no_quoting() {
        for good in ["a", "before-refactor", "v1.2_3", &"x".repeat(64)] {
            assert!(check_tag(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "../x", "a/b", "naïve", "a\0", &"x".repeat(65)] {
            assert_eq!(check_tag(bad).unwrap_err().field(), Some("tag"), "{bad:?}");
        }
    }

    #[test]
    fn only_a_checkpoint_that_there_is_can_be_let_go_of() {
        let text = after(super::delete(&checkpointed(&["a"]), "a"));
        assert!(text.starts_with("checkpoint.delete"), "{text}");
        expect!["tag_not_found: the session has no checkpoint `b`"]
            .assert_eq(&after(super::delete(&checkpointed(&["a"]), "b")));
    }
}
