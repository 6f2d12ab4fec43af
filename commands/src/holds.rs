//! Legal holds: while one is in force, nothing in its scope is erased.

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Event;
use fluxvm_projections::Hold;
use fluxvm_projections::HoldScope;
use fluxvm_projections::Holds;
use fluxvm_projections::LedgerHold;
use fluxvm_projections::LedgerHoldReleased;

use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::reason;
use crate::request::PlaceHold;

/// The stream in which the ledger says what is done to itself.
pub(crate) fn ledger_stream() -> Result<StreamName, CommandError> {
    StreamName::parse("ledger").map_err(|error| CommandError::Internal(error.to_string()))
}

/// Places a hold.
pub(crate) async fn place(
    inner: &Inner,
    caller: &Caller,
    request: PlaceHold,
) -> Result<Hold, CommandError> {
    let reason = reason::check(&request.reason)?;
    if let Some(session) = request.session {
        inner.book.session(caller, session)?;
    }
    let scope = HoldScope {
        session: request.session,
    };
    let hold = Entry::new(Event::LedgerHold(LedgerHold { scope, reason }));
    let stream = ledger_stream()?;
    let recorded = inner
        .book
        .append(caller, stream, ExpectedVersion::Any, hold)
        .await?;
    let seq = recorded.header.seq.get();
    let placed = inner.book.world().holds.get(seq).cloned();
    // Another request may have released it already.
    placed.ok_or(CommandError::HoldNotFound(seq))
}

/// Releases a hold.
pub(crate) async fn release(inner: &Inner, caller: &Caller, hold: u64) -> Result<(), CommandError> {
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let (entry, expected) = {
            let world = inner.book.world();
            let entry = decide_release(&world.holds, hold)?;
            (entry, ExpectedVersion::at(world.holds.version()))
        };
        let stream = ledger_stream()?;
        match inner.book.append(caller, stream, expected, entry).await {
            Err(CommandError::Ledger(AppendError::Conflict { .. })) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
    Err(CommandError::TooMany {
        what: "decisions on holds",
        limit: DECIDE_ATTEMPTS_MAX,
    })
}

/// Pure.
fn decide_release(holds: &Holds, hold: u64) -> Result<Entry, CommandError> {
    match holds.get(hold) {
        Some(_) => Ok(Entry::new(Event::LedgerHoldReleased(LedgerHoldReleased {
            hold,
        }))),
        None => Err(CommandError::HoldNotFound(hold)),
    }
}

/// All holds in force, oldest first.
pub(crate) fn list(inner: &Inner) -> Vec<Hold> {
    inner.book.world().holds.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hold_that_is_in_force_can_be_released() {
        let refused = decide_release(&Holds::default(), 7).err().unwrap();
        assert_eq!(refused.code(), "hold_not_found");
    }
}
