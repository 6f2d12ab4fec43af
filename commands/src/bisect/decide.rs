//! Whether a search may begin. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::BisectStarted;
use fluxvm_projections::Event;
use fluxvm_projections::Session;

use super::Bisect;
use crate::book::Entry;
use crate::checkpoint::check_tag;
use crate::error::CommandError;
use crate::gate;
use crate::limits::COMMAND_BYTES_MAX;
use crate::limits::EXEC_TIMEOUT_MAX_MS;

/// Checks what can be checked without a session.
pub(super) fn check(request: &Bisect) -> Result<(), CommandError> {
    let invalid = |field, message: String| Err(CommandError::Invalid { field, message });
    let test = &request.test;
    if test.trim().is_empty() || test.contains('\0') || test.len() > COMMAND_BYTES_MAX {
        let message = format!("must be a command of 1 to {COMMAND_BYTES_MAX} bytes without NUL");
        return invalid("test", message);
    }
    if let Some(limit) = request.timeout_ms
        && !(1..=EXEC_TIMEOUT_MAX_MS).contains(&limit)
    {
        let message = "must be more than 0 and at most a day".to_owned();
        return invalid("timeout_seconds", message);
    }
    for tag in request.good.iter().chain(&request.bad) {
        check_tag(tag)?;
    }
    Ok(())
}

/// Decides to begin. The session stands still meanwhile, so that now is one state.
pub(super) fn start(
    session: &Session,
    request: &Bisect,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    gate::no_commands(session)?;
    if !session.capabilities.fork {
        return Err(CommandError::CannotFork(
            "this engine makes no second sandbox of one".to_owned(),
        ));
    }
    Ok(Entry::new(Event::BisectStarted(BisectStarted {
        test: request.test.clone(),
        good: request.good.clone(),
        bad: request.bad.clone(),
    })))
}
