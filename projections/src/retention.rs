//! The retention that is under way: an intent to erase what ended sessions said, without its outcome.

use fluxvm_verify::EventId;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::ledger::LedgerRetentionStarted;

/// At most one at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Retention {
    /// What is under way.
    pub open: Option<OpenRetention>,
}

/// What is to be erased.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRetention {
    /// The intent's ledger number.
    pub seq: u64,
    /// The intent's event id, which the outcome names.
    pub intent: EventId,
    /// What it said.
    pub started: LedgerRetentionStarted,
}

impl Retention {
    /// Nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// Folds one event in.
    pub fn apply(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::LedgerRetentionStarted(started) => {
                self.open = Some(OpenRetention {
                    seq: envelope.seq.get(),
                    intent: envelope.id,
                    started: started.clone(),
                });
            }
            Event::LedgerRetention(_) => self.open = None,
            _ => {}
        }
    }
}
