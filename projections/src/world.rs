//! What all events add up to.

use std::fmt;

use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use serde::Deserialize;
use serde::Serialize;

use crate::approvals::Approvals;
use crate::envelope::DecodeError;
use crate::envelope::Envelope;
use crate::holds::Holds;
use crate::idempotency::Idempotency;
use crate::jobs::Jobs;
use crate::retention::Retention;
use crate::sessions::Sessions;
use crate::tokens::Tokens;
use crate::uploads::Uploads;

/// Every projection, fed by one pass over the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct World {
    /// How many events are folded in.
    pub position: Position,
    /// Sessions.
    pub sessions: Sessions,
    /// Idempotency keys.
    pub idempotency: Idempotency,
    /// Holds. Left out where there never was one, so that older states keep their digests.
    #[serde(default, skip_serializing_if = "Holds::is_untouched")]
    pub holds: Holds,
    /// Jobs. Left out where there is none, for the same reason.
    #[serde(default, skip_serializing_if = "Jobs::is_empty")]
    pub jobs: Jobs,
    /// Session tokens. Left out where there is none, so that older states keep their digests.
    #[serde(default, skip_serializing_if = "Tokens::is_empty")]
    pub tokens: Tokens,
    /// Commands that people decide on. Left out where there is none, for the same reason.
    #[serde(default, skip_serializing_if = "Approvals::is_empty")]
    pub approvals: Approvals,
    /// Uploads. Left out where there are none, so that older states keep their digests.
    #[serde(default, skip_serializing_if = "Uploads::is_empty")]
    pub uploads: Uploads,
    /// The retention that is under way.
    #[serde(default, skip_serializing_if = "Retention::is_idle")]
    pub retention: Retention,
}

/// A digest of a [`World`]: equal exactly when the states are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StateDigest([u8; 32]);

impl World {
    /// Folds one recorded event in.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the event cannot be understood; the world is then as it was.
    pub fn apply(&mut self, recorded: &RecordedEvent) -> Result<(), DecodeError> {
        let envelope = Envelope::decode(recorded)?;
        self.sessions.apply(&envelope);
        self.idempotency.apply(&envelope);
        self.holds.apply(&envelope);
        self.jobs.apply(&envelope);
        self.tokens.apply(&envelope);
        self.approvals.apply(&envelope);
        self.uploads.apply(&envelope);
        self.retention.apply(&envelope);
        self.position = envelope.seq.position();
        Ok(())
    }

    /// The digest of this state.
    ///
    /// # Errors
    ///
    /// When the state cannot be expressed in JSON, which its types rule out.
    pub fn digest(&self) -> Result<StateDigest, serde_json::Error> {
        let bytes = serde_json::to_vec(self)?;
        Ok(StateDigest(*blake3::hash(&bytes).as_bytes()))
    }
}

impl fmt::Display for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StateDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
