//! The rules that every command on a session shares. Pure.

use chrono::DateTime;
use chrono::SecondsFormat;
use chrono::Utc;
use fluxvm_projections::Session;
use fluxvm_projections::SessionStatus;

use crate::error::CommandError;

/// The session takes commands.
pub(crate) fn running(session: &Session, now: DateTime<Utc>) -> Result<(), CommandError> {
    // A session past its end is expired, whether or not anyone recorded it yet.
    let status = match session.status {
        SessionStatus::Running if is_due(session, now) => SessionStatus::Expired,
        status => status,
    };
    let message = match status {
        SessionStatus::Running => return Ok(()),
        SessionStatus::Creating => "wait until it is running",
        SessionStatus::Expired => "its time ran out; it can still be read, exported and deleted",
        SessionStatus::Gone => "its sandbox ended; it can still be read, exported and deleted",
        SessionStatus::Failed => "its sandbox could not be made; create another one",
        SessionStatus::Deleted => "its record and ledger stay readable; create another one",
    };
    Err(CommandError::NotRunning {
        session: session.id,
        status: status_name(status),
        message: message.to_owned(),
    })
}

/// The session's machine can be replaced: it runs, or it ended by itself and what was captured of it is
/// still there.
pub(crate) fn revivable(session: &Session, now: DateTime<Utc>) -> Result<(), CommandError> {
    match session.status {
        SessionStatus::Gone if !is_due(session, now) => Ok(()),
        _ => running(session, now),
    }
}

/// No command runs, so that the machine may be replaced under the session.
pub(crate) fn no_commands(session: &Session) -> Result<(), CommandError> {
    let running = session
        .in_flight
        .iter()
        .filter(|operation| operation.kind.needs_machine())
        .count();
    match running {
        0 => Ok(()),
        count => Err(CommandError::CommandsRunning {
            session: session.id,
            count,
        }),
    }
}

/// The session is at the revision that the caller saw.
pub(crate) fn revision(session: &Session, if_match: Option<u64>) -> Result<(), CommandError> {
    match if_match {
        Some(expected) if expected != session.revision => Err(CommandError::RevisionDiffers {
            expected,
            actual: session.revision,
        }),
        _ => Ok(()),
    }
}

/// Nothing holds the lifecycle slot.
pub(crate) fn no_lifecycle(session: &Session) -> Result<(), CommandError> {
    match session.lifecycle() {
        None => Ok(()),
        Some(operation) => Err(CommandError::Busy {
            session: session.id,
            operation: operation.kind.name(),
            since: operation
                .started_at
                .to_rfc3339_opts(SecondsFormat::Millis, true),
        }),
    }
}

/// The session's end has come, whether or not anyone recorded it yet.
pub(crate) fn is_due(session: &Session, now: DateTime<Utc>) -> bool {
    session.expires_at.is_some_and(|end| end <= now)
}

#[must_use]
/// The status as the API spells it.
pub fn status_name(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Creating => "creating",
        SessionStatus::Running => "running",
        SessionStatus::Expired => "expired",
        SessionStatus::Gone => "gone",
        SessionStatus::Failed => "failed",
        SessionStatus::Deleted => "deleted",
    }
}
