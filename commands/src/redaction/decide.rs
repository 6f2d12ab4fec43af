//! What may be erased. Pure.

use fluxvm_projections::Hold;
use fluxvm_projections::Holds;
use fluxvm_projections::SessionId;

/// What is to be erased, as far as the rules care.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The kind of the event that was named.
    pub(super) kind: String,
    /// The session that it happened in.
    pub(super) session: Option<SessionId>,
    /// It is an intent, and its outcome is still to come.
    pub(super) running: bool,
}

/// Why it is not erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Its kind is never erased.
    Kind(&'static str),
    /// What it began still runs; its outcome would say it all again.
    Running,
    /// A hold covers it.
    Held(Hold),
}

/// Decides.
pub(super) fn decide(target: &Target, holds: &Holds) -> Result<(), Refusal> {
    redactable(&target.kind).map_err(Refusal::Kind)?;
    if let Some(hold) = holds.covering(target.session) {
        return Err(Refusal::Held(hold.clone()));
    }
    match target.running {
        true => Err(Refusal::Running),
        false => Ok(()),
    }
}

/// Only what commands said is erased. Everything else is what the state is made of: a ledger without
/// it would add up to something else.
fn redactable(kind: &str) -> Result<(), &'static str> {
    let family = kind.split('.').next().unwrap_or_default();
    match (family, kind) {
        ("exec" | "replay" | "file" | "git", _) => Ok(()),
        (_, "job.start" | "job.exit" | "job.failed" | "job.refused") => Ok(()),
        ("job", _) => Err("it says no more than how many bytes or which signal a job was sent"),
        ("upload", _) => Err("which uploads there are is made of it; erase its `file.upload`"),
        ("session" | "sandbox" | "lifecycle" | "checkpoint" | "restore" | "fork" | "rewind", _) => {
            Err("what the session is and was is made of it")
        }
        ("host", _) => Err("it says what the daemon itself did"),
        ("idempotency", _) => Err(
            "it keeps a request from being done twice; it is erased with the command that it belongs \
             to",
        ),
        ("ledger", _) => Err("it says what was done to the ledger itself"),
        _ => Err("it is not known whether state is made of it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use fluxvm_eventstore::CorrelationId;
    use fluxvm_eventstore::EventId;
    use fluxvm_eventstore::GlobalSeq;
    use fluxvm_eventstore::StreamName;
    use fluxvm_eventstore::StreamVersion;
    use fluxvm_projections::Envelope;
    use fluxvm_projections::Event;
    use fluxvm_projections::HoldScope;
    use fluxvm_projections::LedgerHold;
    use uuid::Uuid;

    const SESSION: SessionId = SessionId(Uuid::from_u128(1));
    const OTHER: SessionId = SessionId(Uuid::from_u128(2));

    fn target(kind: &str) -> Target {
        Target {
            kind: kind.to_owned(),
            session: Some(SESSION),
            running: false,
        }
    }

    /// Holds with one in force, on a session or on everything.
    fn held(session: Option<SessionId>) -> Holds {
        let mut holds = Holds::default();
        holds.apply(&Envelope {
            seq: GlobalSeq::FIRST,
            stream: StreamName::parse("ledger").unwrap(),
            version: StreamVersion::new(1).unwrap(),
            id: EventId::new(Uuid::nil()),
            cause: None,
            request: CorrelationId::new(Uuid::nil()),
            kind: "ledger.hold".into(),
            at: now(),
            event: Event::LedgerHold(LedgerHold {
                scope: HoldScope { session },
                reason: "case 7".into(),
            }),
        });
        holds
    }

    #[test]
    fn what_commands_said_is_erased_and_what_state_is_made_of_is_not() {
        for kind in Event::KINDS {
            let allowed = decide(&target(kind), &Holds::default()).is_ok();
            let family = kind.split('.').next().unwrap();
            let is_job = ["job.start", "job.exit", "job.failed", "job.refused"].contains(kind);
            let said = is_job || ["exec", "replay", "file", "git"].contains(&family);
            assert_eq!(allowed, said, "{kind}");
        }
        assert!(decide(&target("teleport"), &Holds::default()).is_err());
    }

    #[test]
    fn a_hold_forbids_it_in_its_scope() {
        let refused = |session| match decide(&target("exec"), &held(session)) {
            Err(Refusal::Held(hold)) => Some(hold.seq),
            other => {
                assert_eq!(other, Ok(()));
                None
            }
        };
        assert_eq!(refused(None), Some(1), "the whole ledger");
        assert_eq!(refused(Some(SESSION)), Some(1), "its session");
        assert_eq!(refused(Some(OTHER)), None, "another session");
    }

    #[test]
    fn a_command_is_erased_once_it_has_ended() {
        let running = Target {
            running: true,
            ..target("exec.started")
        };
        let refused = decide(&running, &Holds::default());
        assert_eq!(refused, Err(Refusal::Running));
    }

    #[test]
    fn what_is_never_erased_says_so_before_any_hold_does() {
        let refused = decide(&target("session.create"), &held(None));
        assert!(matches!(refused, Err(Refusal::Kind(_))));
    }
}
