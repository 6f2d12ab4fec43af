//! Work on a session's files and repositories: the part that all of it shares.
//!
//! It takes a work slot, which is an intent that is open: nothing else has to be held, and nothing is
//! forgotten when the daemon ends.

use std::sync::Arc;

use fluxvm_eventstore::EventId;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::Trigger;
use fluxvm_vmm::Sandbox;

use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;
use crate::guest;
use crate::limits::FILE_WORK_RUNNING_MAX;
use crate::rewind;
use crate::rewind::Before;

/// An intent that is recorded, and where its effect goes.
pub(crate) struct Begun {
    pub(crate) session: Session,
    pub(crate) op: u64,
    pub(crate) intent: EventId,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

/// Decides whether work may begin, and records that it does.
pub(crate) async fn begin(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    entry: impl Fn(&Session) -> Result<Entry, CommandError>,
) -> Result<Begun, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    let sandbox = {
        let session = inner.book.session(caller, id)?;
        gate::running(&session, now)?;
        guest::sandbox(inner, id)?
    };
    let turn = inner.turns.take(id).await;
    let (session, intent) = inner
        .book
        .decide(caller, id, |session| {
            gate::running(session, now)?;
            gate::no_lifecycle(session)?;
            has_slot(session)?;
            entry(session)
        })
        .await?;
    drop(turn);
    if let Some(before) = before(&intent)? {
        rewind::before_trigger(inner, caller, &session, before).await;
    }
    Ok(Begun {
        session,
        op: intent.header.seq.get(),
        intent: intent.header.event_id,
        sandbox,
    })
}

/// What a rewind point says of the work that it was taken before.
fn before(intent: &RecordedEvent) -> Result<Option<Before>, CommandError> {
    let envelope = fluxvm_projections::Envelope::decode(intent)
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    let (trigger, label) = match envelope.event {
        Event::FileWriteStarted(asked) => (Trigger::File, format!("write {}", asked.path)),
        Event::FileDeleteStarted(asked) => (Trigger::File, format!("delete {}", asked.path)),
        Event::FileUploadStarted(asked) => (Trigger::File, format!("upload {}", asked.path)),
        Event::GitCommitStarted(asked) => (Trigger::Git, format!("commit {}", asked.message)),
        Event::GitBranchStarted(asked) => (Trigger::Git, format!("branch {}", asked.name)),
        Event::ChangesStarted(asked) => {
            let label = format!("promotion {} of {}", asked.seq, asked.source);
            (Trigger::File, label)
        }
        _ => return Ok(None),
    };
    Ok(Some(Before {
        trigger,
        op: None,
        label: Some(label),
    }))
}

/// A work slot is free. Pure.
fn has_slot(session: &Session) -> Result<(), CommandError> {
    let running = session
        .in_flight
        .iter()
        .filter(|operation| operation.kind.is_file_work())
        .count();
    match running < FILE_WORK_RUNNING_MAX {
        true => Ok(()),
        false => Err(CommandError::TooMany {
            what: "writes, removals, uploads and git verbs on one session",
            limit: FILE_WORK_RUNNING_MAX,
        }),
    }
}

impl Begun {
    /// Records the outcome and answers with its ledger number.
    pub(crate) async fn end(
        &self,
        inner: &Inner,
        caller: &Caller,
        event: Event,
    ) -> Result<u64, CommandError> {
        let recorded = inner
            .book
            .conclude(caller, self.session.id, self.intent, Entry::new(event))
            .await?;
        Ok(recorded.header.seq.get())
    }
}

/// What was recorded under this ledger number.
pub(crate) fn event_at(inner: &Inner, seq: u64) -> Result<Option<Event>, CommandError> {
    let Some(before) = seq.checked_sub(1) else {
        return Ok(None);
    };
    let position = fluxvm_eventstore::Position::new(before);
    let found = inner.book.ledger().read(position, 1)?;
    let Some(recorded) = found.first() else {
        return Ok(None);
    };
    let envelope = fluxvm_projections::Envelope::decode(recorded)
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    Ok(Some(envelope.event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session_with;
    use fluxvm_projections::OperationKind;

    #[test]
    fn one_session_has_only_so_many_work_slots() {
        let mut session = session_with(OperationKind::FileWrite);
        let one = session.in_flight.clone();
        session.in_flight = one
            .into_iter()
            .cycle()
            .take(FILE_WORK_RUNNING_MAX)
            .collect();
        assert_eq!(has_slot(&session).unwrap_err().code(), "too_many");
        session.in_flight.pop();
        assert!(has_slot(&session).is_ok());
    }
}
