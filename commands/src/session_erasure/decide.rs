//! Which sessions may be erased as a whole. Pure.

use fluxvm_projections::Hold;
use fluxvm_projections::Holds;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::error::CommandError;
use crate::gate::status_name;

/// Whether the session's key may be destroyed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// A rule forbids it.
    Rule(CommandError),
    /// A hold does.
    Held(Hold),
}

/// Decides on the destruction of a session's key.
pub(super) fn shred(session: &Session, is_sealed: bool, holds: &Holds) -> Result<(), Refusal> {
    if let Some(hold) = holds.covering(Some(session.id)) {
        return Err(Refusal::Held(hold.clone()));
    }
    if !is_over(session) {
        return Err(Refusal::Rule(CommandError::NotEnded {
            session: session.id,
            status: status_name(session.status),
        }));
    }
    match is_sealed {
        true => Ok(()),
        false => Err(Refusal::Rule(CommandError::NotSealed(session.id))),
    }
}

/// Whether nothing more will ever be recorded of the session.
pub(super) fn is_over(session: &Session) -> bool {
    // What a failed creation leaves is removed before the failure is recorded.
    let is_clean =
        session.cleaned_up || session.status == fluxvm_projections::SessionStatus::Failed;
    session.ended() && is_clean && session.in_flight.is_empty()
}

/// The first of these sessions that a hold covers.
pub(super) fn held<'a>(
    sessions: impl Iterator<Item = &'a SessionId>,
    holds: &Holds,
) -> Option<(SessionId, Hold)> {
    sessions
        .copied()
        .find_map(|id| Some((id, holds.covering(Some(id))?.clone())))
}

#[cfg(test)]
mod tests {
    use fluxvm_projections::SessionStatus;

    use super::*;
    use crate::testing::session_that_is;

    fn ended(status: SessionStatus) -> Session {
        let mut session = session_that_is(status);
        session.cleaned_up = true;
        session
    }

    fn code(session: &Session, is_sealed: bool) -> &'static str {
        match shred(session, is_sealed, &Holds::default()) {
            Ok(()) => "ok",
            Err(Refusal::Held(_)) => "held",
            Err(Refusal::Rule(CommandError::NotEnded { .. })) => "not ended",
            Err(Refusal::Rule(CommandError::NotSealed(_))) => "not sealed",
            Err(Refusal::Rule(other)) => panic!("{other}"),
        }
    }

    #[test]
    fn only_what_is_over_and_sealed_is_shredded() {
        use SessionStatus::Creating;
        use SessionStatus::Deleted;
        use SessionStatus::Expired;
        use SessionStatus::Failed;
        use SessionStatus::Gone;
        use SessionStatus::Running;
        for status in [Deleted, Expired, Failed] {
            assert_eq!(code(&ended(status), true), "ok", "{status:?}");
            assert_eq!(code(&ended(status), false), "not sealed", "{status:?}");
        }
        for status in [Creating, Running, Gone] {
            assert_eq!(code(&ended(status), true), "not ended", "{status:?}");
        }
        let unclean = session_that_is(Expired);
        assert_eq!(
            code(&unclean, true),
            "not ended",
            "its sandbox is still to go"
        );
    }
}
