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
use crate::limits::COMMAND_BYTES_MAX;
use crate::limits::EXEC_TIMEOUT_DEFAULT_MS;
use crate::limits::EXEC_TIMEOUT_MAX_MS;
use crate::limits::EXECS_RUNNING_MAX;
use crate::request::Exec;

/// A command whose fields hold.
pub(super) struct Checked {
    command: String,
    timeout_ms: u64,
}

/// Checks what can be checked without a session.
pub(super) fn check(request: &Exec) -> Result<Checked, CommandError> {
    let command = &request.command;
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
    let timeout_ms = request.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS);
    if timeout_ms == 0 || timeout_ms > EXEC_TIMEOUT_MAX_MS {
        let message = format!(
            "must be above 0 and at most {}",
            EXEC_TIMEOUT_MAX_MS / 1_000
        );
        return Err(invalid("timeout_seconds", message));
    }
    Ok(Checked {
        command: command.clone(),
        timeout_ms,
    })
}

/// Decides on the session's state. Pure.
pub(super) fn decide(
    session: &Session,
    command: &Checked,
    exec_id: ExecId,
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
    Ok(Entry::new(Event::ExecStarted(started(command, exec_id))))
}

/// The intent's payload.
pub(super) fn started(command: &Checked, exec_id: ExecId) -> ExecStarted {
    ExecStarted {
        exec_id,
        command: command.command.clone(),
        timeout_ms: command.timeout_ms,
    }
}

fn invalid(field: &'static str, message: String) -> CommandError {
    CommandError::Invalid { field, message }
}
