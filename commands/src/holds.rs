//! What of the ledger is erased, and what may not be: while a legal hold is in force, nothing in its scope
//! is. Nor are the files and snapshots of a session under it: it is not deleted, and when its time runs out
//! it takes no more commands and is left standing until the hold is released.

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Event;
use fluxvm_projections::Hold;
use fluxvm_projections::HoldScope;
use fluxvm_projections::Holds;
use fluxvm_projections::LedgerDeleteRefused;
use fluxvm_projections::LedgerHold;
use fluxvm_projections::LedgerHoldReleased;
use fluxvm_projections::SessionId;

use crate::answer::RedactAnswer;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::reason;
use crate::redaction;
use crate::request::PlaceHold;
use crate::request::Redact;

impl Engine {
    /// Erases what a command said and wrote: its intent, its outcome, the answer that was kept for it and
    /// the content that only these name. Whoever may do that is the server's matter.
    ///
    /// # Errors
    ///
    /// `Invalid` for the reason, `EventNotFound`, `NotRedactable` for a kind that state is made of or a
    /// command that still runs, `UnderHold`, which is recorded, `Read` and `Ledger`.
    pub async fn redact(
        &self,
        caller: &Caller,
        request: Redact,
    ) -> Result<RedactAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            redaction::redact(&inner, &caller, request).await
        })
        .await
    }

    /// Places a hold: nothing in its scope is erased until it is released.
    ///
    /// # Errors
    ///
    /// `Invalid` for the reason, `NotFound` for the session, `Ledger`.
    pub async fn place_hold(
        &self,
        caller: &Caller,
        request: PlaceHold,
    ) -> Result<Hold, CommandError> {
        self.run(caller, move |inner, caller| async move {
            place(&inner, &caller, request).await
        })
        .await
    }

    /// Releases the hold that the event with this number placed.
    ///
    /// # Errors
    ///
    /// `HoldNotFound`, `Ledger`.
    pub async fn release_hold(&self, caller: &Caller, hold: u64) -> Result<(), CommandError> {
        self.run(caller, move |inner, caller| async move {
            release(&inner, &caller, hold).await
        })
        .await
    }

    /// All holds in force, oldest first.
    #[must_use]
    pub fn holds(&self) -> Vec<Hold> {
        self.inner.book.world().holds.iter().cloned().collect()
    }
}

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

/// The error that a deletion under a hold is answered with, which is recorded first: what the session's
/// sandbox and snapshots hold would go with it.
pub(crate) async fn refuse_delete(
    inner: &Inner,
    caller: &Caller,
    session: SessionId,
    hold: Hold,
) -> CommandError {
    let refused = Entry::new(Event::LedgerDeleteRefused(LedgerDeleteRefused {
        session,
        because: format!("hold {}", hold.seq),
    }));
    let stream = match ledger_stream() {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let recorded = inner
        .book
        .append(caller, stream, ExpectedVersion::Any, refused);
    match recorded.await {
        Ok(recorded) => CommandError::UnderHold {
            hold: hold.seq,
            reason: hold.reason,
            refusal: recorded.header.seq.get(),
        },
        Err(error) => error,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_hold_that_is_in_force_can_be_released() {
        let refused = decide_release(&Holds::default(), 7).err().unwrap();
        assert_eq!(refused.code(), "hold_not_found");
    }
}
