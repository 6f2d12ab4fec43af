//! Approvals that were asked for, by session.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::approval::ApprovalRequested;
use crate::ids::ApprovalId;
use crate::ids::SessionId;

/// All approvals of sessions that have not been cleaned up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approvals {
    by_session: BTreeMap<SessionId, Vec<Approval>>,
}

/// One approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// What was asked for.
    pub request: ApprovalRequested,
    /// When.
    pub requested_at: DateTime<Utc>,
    /// Who agreed, in order.
    pub approved: Vec<Decision>,
    /// Who did not.
    pub denied: Option<Decision>,
    /// It was used.
    pub consumed: bool,
}

/// What one person decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Who.
    pub by: String,
    /// What they said about it.
    pub note: Option<String>,
    /// When.
    pub at: DateTime<Utc>,
}

/// Where an approval is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalStatus {
    /// People have to decide.
    Pending,
    /// The command may run.
    Approved,
    /// It may not.
    Denied,
    /// It ran.
    Consumed,
    /// Its time ran out.
    Expired,
}

impl ApprovalStatus {
    /// The status as the API spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Consumed => "consumed",
            Self::Expired => "expired",
        }
    }
}

impl Approval {
    /// Where it is at this time.
    #[must_use]
    pub fn status(&self, now: DateTime<Utc>) -> ApprovalStatus {
        if self.consumed {
            ApprovalStatus::Consumed
        } else if self.denied.is_some() {
            ApprovalStatus::Denied
        } else if now >= self.request.expires_at {
            ApprovalStatus::Expired
        } else if self.approved.len() as u64 >= u64::from(self.request.approvers) {
            ApprovalStatus::Approved
        } else {
            ApprovalStatus::Pending
        }
    }
}

impl Approvals {
    /// There is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// All approvals of a session, oldest first.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> &[Approval] {
        self.by_session.get(&session).map_or(&[], Vec::as_slice)
    }

    /// One approval of a session.
    #[must_use]
    pub fn get(&self, session: SessionId, id: ApprovalId) -> Option<&Approval> {
        let mut all = self.of_session(session).iter();
        all.find(|approval| approval.request.approval_id == id)
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        let Some(session) = SessionId::of_stream(&envelope.stream) else {
            return;
        };
        match &envelope.event {
            Event::ApprovalRequested(request) => {
                let approval = Approval {
                    request: request.clone(),
                    requested_at: envelope.at,
                    approved: Vec::new(),
                    denied: None,
                    consumed: false,
                };
                self.by_session.entry(session).or_default().push(approval);
            }
            Event::ApprovalApproved(decided) => {
                let decision = decision(envelope, &decided.by, decided.note.as_deref());
                self.change(session, decided.approval_id, |it| {
                    it.approved.push(decision)
                });
            }
            Event::ApprovalDenied(decided) => {
                let decision = decision(envelope, &decided.by, decided.note.as_deref());
                self.change(session, decided.approval_id, |it| {
                    it.denied = Some(decision)
                });
            }
            Event::ApprovalConsumed(consumed) => {
                self.change(session, consumed.approval_id, |it| it.consumed = true);
            }
            Event::SessionCleanedUp(_) | Event::SessionErased(_) => {
                self.by_session.remove(&session);
            }
            _ => {}
        }
    }

    fn change(&mut self, session: SessionId, id: ApprovalId, change: impl FnOnce(&mut Approval)) {
        let its = |approval: &&mut Approval| approval.request.approval_id == id;
        let all = self.by_session.get_mut(&session);
        if let Some(approval) = all.and_then(|all| all.iter_mut().find(its)) {
            change(approval);
        }
    }
}

fn decision(envelope: &Envelope, by: &str, note: Option<&str>) -> Decision {
    Decision {
        by: by.to_owned(),
        note: note.map(str::to_owned),
        at: envelope.at,
    }
}
