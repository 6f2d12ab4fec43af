//! People decide on commands that wait for them.

mod decide;

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::Filter;
use fluxvm_projections::Approval;
use fluxvm_projections::ApprovalId;
use fluxvm_projections::ApprovalStatus;
use fluxvm_projections::SessionId;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;

/// What a person decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The command may run.
    Approve,
    /// It may not.
    Deny,
}

impl Engine {
    /// The approvals of a session, oldest first, and the time that their status is told for.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn approvals(
        &self,
        caller: &Caller,
        id: SessionId,
    ) -> Result<(Vec<Approval>, DateTime<Utc>), CommandError> {
        self.inner.book.session(caller, id)?;
        let all = self.inner.book.world().approvals.of_session(id).to_vec();
        Ok((all, self.inner.clock.now()))
    }

    /// Decides on a command that waits for it.
    ///
    /// # Errors
    ///
    /// `Invalid` for the note, `NotFound`, `ApprovalNotFound`, `ApprovalDecided` when there is nothing to
    /// decide any more, or this caller has decided already, `Ledger`.
    pub async fn decide_approval(
        &self,
        caller: &Caller,
        id: SessionId,
        approval: ApprovalId,
        answer: Answer,
        note: Option<String>,
    ) -> Result<(Approval, DateTime<Utc>), CommandError> {
        self.run(caller, move |inner, caller| async move {
            answer_to(&inner, &caller, id, approval, answer, note).await
        })
        .await
    }
}

async fn answer_to(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    approval: ApprovalId,
    answer: Answer,
    note: Option<String>,
) -> Result<(Approval, DateTime<Utc>), CommandError> {
    let note = decide::check_note(note)?;
    let by = caller.actor.to_string();
    inner
        .book
        .decide(caller, id, |session| {
            let found = inner.book.world().approvals.get(id, approval).cloned();
            let found = found.ok_or(CommandError::ApprovalNotFound(approval))?;
            decide::decide(
                session,
                &found,
                answer,
                &by,
                note.as_deref(),
                inner.clock.now(),
            )
        })
        .await?;
    let decided = inner.book.world().approvals.get(id, approval).cloned();
    let decided = decided.ok_or(CommandError::ApprovalNotFound(approval))?;
    Ok((decided, inner.clock.now()))
}

/// Waits until an approval is decided or can no longer be, at most this long.
pub(crate) async fn decided(
    inner: &Inner,
    id: SessionId,
    approval: ApprovalId,
    at_most: Duration,
) -> Option<ApprovalStatus> {
    let ledger = inner.book.ledger();
    let mut changes = ledger.subscribe(Filter::Stream(id.stream()), ledger.head().position);
    let wait = async {
        loop {
            let known = inner.book.world().approvals.get(id, approval).cloned();
            let status = known.map(|it| it.status(inner.clock.now()));
            if status != Some(ApprovalStatus::Pending) {
                return status;
            }
            if !matches!(changes.next().await, Some(Ok(_))) {
                return status;
            }
        }
    };
    tokio::time::timeout(at_most, wait).await.ok().flatten()
}
