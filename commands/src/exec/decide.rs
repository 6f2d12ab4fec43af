//! Whether a command may start.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Event;
use fluxvm_projections::ExecId;
use fluxvm_projections::ExecStarted;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;

use crate::book::Entry;
use crate::error::CommandError;
use crate::gate;
use crate::guard::Asked;
use crate::guard::Grant;
use crate::limits::COMMAND_BYTES_MAX;
use crate::limits::EXEC_TIMEOUT_DEFAULT_MS;
use crate::limits::EXEC_TIMEOUT_MAX_MS;
use crate::limits::EXECS_RUNNING_MAX;
use crate::request::Exec;

/// A command whose fields hold.
pub(super) struct Checked {
    pub(super) timeout_ms: u64,
    pub(super) stdin: bool,
}

/// Checks what can be checked without a session.
pub(super) fn check(request: &Exec, stdin: bool) -> Result<Checked, CommandError> {
    check_command(&request.command)?;
    let timeout_ms = request.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS);
    check_timeout(timeout_ms, EXEC_TIMEOUT_MAX_MS)?;
    Ok(Checked { timeout_ms, stdin })
}

/// Checks that a shell line is one that a guest can run.
pub(crate) fn check_command(command: &str) -> Result<(), CommandError> {
    if command.trim().is_empty() {
        return Err(invalid("command", "must not be empty".to_owned()));
    }
    if command.len() > COMMAND_BYTES_MAX {
        let message = format!(
            "is {} bytes; one command takes at most {COMMAND_BYTES_MAX}, the kernel's limit for one \
             argument; split it or write it to a file first",
            command.len()
        );
        return Err(invalid("command", message));
    }
    if command.contains('\0') {
        return Err(invalid("command", "must not hold a zero byte".to_owned()));
    }
    Ok(())
}

/// Checks a time limit, in milliseconds.
pub(crate) fn check_timeout(timeout_ms: u64, max_ms: u64) -> Result<(), CommandError> {
    if timeout_ms == 0 || timeout_ms > max_ms {
        let message = format!("must be above 0 and at most {}", max_ms / 1_000);
        return Err(invalid("timeout_seconds", message));
    }
    Ok(())
}

/// Decides on the session's state. Pure.
pub(super) fn decide(
    session: &Session,
    asked: &Asked,
    grant: Grant,
    (exec_id, stdin): (ExecId, bool),
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    let is_exec = |kind: &OperationKind| matches!(kind, OperationKind::Exec { .. });
    let execs = session
        .in_flight
        .iter()
        .filter(|operation| is_exec(&operation.kind))
        .count();
    if execs >= EXECS_RUNNING_MAX {
        return Err(CommandError::TooMany {
            what: "running commands",
            limit: EXECS_RUNNING_MAX,
        });
    }
    Ok(Entry::new(Event::ExecStarted(ExecStarted {
        exec_id,
        command: asked.command.clone(),
        timeout_ms: grant.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS),
        stdin,
    })))
}

fn invalid(field: &'static str, message: String) -> CommandError {
    CommandError::Invalid { field, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::CommandKind;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_that_is;
    use crate::testing::session_with;
    use expect_test::Expect;
    use expect_test::expect;
    use fluxvm_projections::Operation;
    use fluxvm_projections::SessionStatus;
    use uuid::Uuid;

    const EXEC: ExecId = ExecId(Uuid::nil());

    fn exec() -> OperationKind {
        OperationKind::Exec {
            exec_id: EXEC,
            command: "true".into(),
            timeout_ms: 1,
            stdin: false,
        }
    }

    fn check(request: &Exec, expected: &Expect) {
        let text = match super::check(request, false) {
            Ok(checked) => {
                format!("{} bytes, {} ms", request.command.len(), checked.timeout_ms)
            }
            Err(error) => error.to_string(),
        };
        expected.assert_eq(&text);
    }

    fn decide_on(session: &Session, expected: &Expect) {
        let asked = Asked {
            kind: CommandKind::Exec,
            command: "true".into(),
            timeout_ms: Some(1),
            parameters: Vec::new(),
            approval: None,
        };
        let grant = Grant {
            timeout_ms: Some(1),
        };
        let text = match decide(session, &asked, grant, (EXEC, false), now()) {
            Ok(entry) => entry.event.kind().unwrap_or("erased").to_owned(),
            Err(error) => format!("{}: {error}", error.code()),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_command_is_a_text_that_one_argument_can_hold() {
        let of = |command: String| Exec::new(command, None);
        check(&of("true".into()), &expect!["4 bytes, 30000 ms"]);
        check(
            &of("x".repeat(COMMAND_BYTES_MAX)),
            &expect!["131071 bytes, 30000 ms"],
        );
        check(&of(" \n".into()), &expect!["command: must not be empty"]);
        check(
            &of("a\0b".into()),
            &expect!["command: must not hold a zero byte"],
        );
        check(
            &of("x".repeat(200 * 1024)),
            &expect![
                "command: is 204800 bytes; one command takes at most 131071, the kernel's limit for one argument; split it or write it to a file first"
            ],
        );
    }

    #[test]
    fn a_time_limit_is_above_nothing_and_at_most_a_day() {
        let of = |timeout_ms| Exec::new("true".into(), Some(timeout_ms));
        check(&of(1), &expect!["4 bytes, 1 ms"]);
        check(&of(EXEC_TIMEOUT_MAX_MS), &expect!["4 bytes, 86400000 ms"]);
        let range = expect!["timeout_seconds: must be above 0 and at most 86400"];
        check(&of(0), &range);
        check(&of(EXEC_TIMEOUT_MAX_MS + 1), &range);
    }

    #[test]
    fn a_running_session_takes_commands_beside_other_commands() {
        decide_on(&session(), &expect!["exec.started"]);
        decide_on(&session_with(exec()), &expect!["exec.started"]);
        decide_on(
            &session_with(OperationKind::Replay),
            &expect!["exec.started"],
        );
    }

    #[test]
    fn a_session_that_is_not_running_says_what_can_still_be_done() {
        decide_on(
            &session_that_is(SessionStatus::Expired),
            &expect![
                "session_not_running: session 00000000-0000-0000-0000-000000000000 is expired: its time ran out; it can still be read, exported and deleted"
            ],
        );
        decide_on(
            &session_that_is(SessionStatus::Deleted),
            &expect![
                "session_not_running: session 00000000-0000-0000-0000-000000000000 is deleted: its record and ledger stay readable; create another one"
            ],
        );
    }

    #[test]
    fn a_session_past_its_end_takes_nothing_even_before_anyone_recorded_it() {
        let late = Session {
            expires_at: Some(now()),
            ..session()
        };
        decide_on(
            &late,
            &expect![
                "session_not_running: session 00000000-0000-0000-0000-000000000000 is expired: its time ran out; it can still be read, exported and deleted"
            ],
        );
    }

    #[test]
    fn nothing_starts_while_the_session_is_being_deleted() {
        decide_on(
            &session_with(OperationKind::Delete),
            &expect![
                "operation_in_flight: session.delete is in flight on session 00000000-0000-0000-0000-000000000000 since 2027-01-15T08:00:00.000Z; try again when it ended"
            ],
        );
    }

    #[test]
    fn one_session_runs_only_so_many_commands_at_once() {
        let mut session = session_with(exec());
        let one: Vec<Operation> = session.in_flight.clone();
        session.in_flight = one
            .into_iter()
            .cycle()
            .take(EXECS_RUNNING_MAX - 1)
            .collect();
        decide_on(&session, &expect!["exec.started"]);
        session.in_flight.extend(session.in_flight.first().cloned());
        decide_on(
            &session,
            &expect![
                "too_many: running commands: 64 at once is the limit; try again when one has ended"
            ],
        );
    }
}
