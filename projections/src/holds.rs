//! Which holds are in force.

use std::collections::BTreeMap;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::StreamVersion;
use serde::Deserialize;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::event::Event;
use crate::ids::SessionId;

/// The stream that holds and redactions are recorded in.
const STREAM: &str = "ledger";

/// All holds in force, by the ledger number of the event that placed them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holds {
    by_seq: BTreeMap<u64, Hold>,
    /// The version of the stream up to which this is the fold: what a decision is made on.
    version: Option<StreamVersion>,
}

/// A hold: nothing in its scope may be erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The ledger number of the event that placed it, by which it is released.
    pub seq: u64,
    /// The session that it covers; `None` is the whole ledger.
    pub session: Option<SessionId>,
    /// Why it was placed.
    pub reason: String,
    /// When it was placed.
    pub at: DateTime<Utc>,
}

impl Holds {
    /// Nothing was ever recorded in the ledger's own stream.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.version.is_none()
    }

    /// The version of the ledger's own stream.
    #[must_use]
    pub fn version(&self) -> Option<StreamVersion> {
        self.version
    }

    /// The hold that this event placed, if it is in force.
    #[must_use]
    pub fn get(&self, seq: u64) -> Option<&Hold> {
        self.by_seq.get(&seq)
    }

    /// All holds in force, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.by_seq.values()
    }

    /// The oldest hold that covers what happened in this session, or outside of all sessions.
    #[must_use]
    pub fn covering(&self, session: Option<SessionId>) -> Option<&Hold> {
        let covers = |hold: &&Hold| hold.session.is_none() || hold.session == session;
        self.iter().find(covers)
    }

    /// Folds one event in. Events of other streams change nothing.
    pub fn apply(&mut self, envelope: &Envelope) {
        if envelope.stream.as_str() != STREAM {
            return;
        }
        self.version = Some(envelope.version);
        match &envelope.event {
            Event::LedgerHold(hold) => {
                let seq = envelope.seq.get();
                let hold = Hold {
                    seq,
                    session: hold.scope.session,
                    reason: hold.reason.clone(),
                    at: envelope.at,
                };
                self.by_seq.insert(seq, hold);
            }
            Event::LedgerHoldReleased(released) => {
                self.by_seq.remove(&released.hold);
            }
            _ => {}
        }
    }
}
