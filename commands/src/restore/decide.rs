//! Whether a session may go back to a checkpoint. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Event;
use fluxvm_projections::RestoreStarted;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;

use crate::book::Entry;
use crate::checkpoint;
use crate::error::CommandError;
use crate::gate;
use crate::request::Restore;

/// The machine may be replaced by one that is made from a snapshot. Restore, undo and redo ask this.
pub(crate) fn replaceable(session: &Session, now: DateTime<Utc>) -> Result<(), CommandError> {
    gate::revivable(session, now)?;
    gate::no_lifecycle(session)?;
    gate::no_commands(session)?;
    if session.capabilities.restore {
        return Ok(());
    }
    Err(CommandError::NotSupported {
        what: "go back to a checkpoint",
        reason: "it has no snapshots".to_owned(),
    })
}

/// Decides.
pub(super) fn decide(
    session: &Session,
    request: &Restore,
    sandbox_id: SandboxId,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::revision(session, request.if_match)?;
    replaceable(session, now)?;
    let checkpoint = checkpoint::find(session, &request.tag)?;
    Ok(Entry::new(Event::RestoreStarted(RestoreStarted {
        tag: request.tag.clone(),
        snapshot: checkpoint.snapshot.id,
        sandbox_id,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::after;
    use crate::testing::checkpointed;
    use crate::testing::now;
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_eventstore::EventId;
    use fluxvm_projections::ExecId;
    use fluxvm_projections::Operation;
    use fluxvm_projections::OperationKind;
    use fluxvm_projections::SessionStatus;
    use uuid::Uuid;

    fn check(session: &Session, tag: &str, expected: Expect) {
        let request = Restore {
            tag: tag.to_owned(),
            if_match: None,
        };
        let sandbox = SandboxId(Uuid::nil());
        expected.assert_eq(&after(decide(session, &request, sandbox, now())));
    }

    fn with(kind: OperationKind) -> Session {
        let mut session = checkpointed(&["a"]);
        session.in_flight.push(Operation {
            seq: 99,
            intent: EventId::new(Uuid::nil()),
            kind,
            started_at: now(),
        });
        session
    }

    #[test]
    fn a_session_goes_back_to_its_own_checkpoints_only() {
        check(
            &checkpointed(&["a"]),
            "a",
            expect![[
                r#"restore.started {"sandbox_id":"00000000-0000-0000-0000-000000000000","snapshot":"00000000-0000-0000-0000-000000000000","tag":"a"}"#
            ]],
        );
        check(
            &checkpointed(&["a"]),
            "b",
            expect!["tag_not_found: the session has no checkpoint `b`"],
        );
    }

    #[test]
    fn a_machine_is_not_replaced_under_a_command() {
        let exec = OperationKind::Exec {
            exec_id: ExecId(Uuid::nil()),
            command: "true".into(),
            timeout_ms: 1,
            stdin: false,
        };
        check(
            &with(exec),
            "a",
            expect![
                "commands_running: 1 running in session 00000000-0000-0000-0000-000000000000: its machine cannot be replaced under them; wait until they end"
            ],
        );
    }

    #[test]
    fn one_lifecycle_operation_at_a_time() {
        check(
            &with(OperationKind::Delete),
            "a",
            expect![
                "operation_in_flight: session.delete is in flight on session 00000000-0000-0000-0000-000000000000 since 2027-01-15T08:00:00.000Z; try again when it ended"
            ],
        );
    }

    #[test]
    fn a_session_whose_sandbox_ended_by_itself_can_be_brought_back() {
        let that_is = |status| Session {
            status,
            ..checkpointed(&["a"])
        };
        check(
            &that_is(SessionStatus::Gone),
            "a",
            expect![[
                r#"restore.started {"sandbox_id":"00000000-0000-0000-0000-000000000000","snapshot":"00000000-0000-0000-0000-000000000000","tag":"a"}"#
            ]],
        );
        check(
            &that_is(SessionStatus::Deleted),
            "a",
            expect![
                "session_not_running: session 00000000-0000-0000-0000-000000000000 is deleted: its record and ledger stay readable; create another one"
            ],
        );
    }
}
