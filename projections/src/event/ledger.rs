//! Payloads of what happens to the ledger itself: erasures, holds, and the key that speaks for it.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SessionId;

/// `ledger.redacted`: what these events said is erased. Their headers and hashes stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRedacted {
    /// The events, by ledger number.
    pub seqs: Vec<u64>,
    /// How many blobs went with them.
    pub blobs: u64,
    /// Why, as the caller gave it.
    pub reason: String,
}

/// `ledger.redact.refused`: an erasure was asked for and a hold forbade it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRedactRefused {
    /// The events that would have been erased.
    pub seqs: Vec<u64>,
    /// Why it was asked for.
    pub reason: String,
    /// Why it was refused.
    pub because: String,
}

/// `ledger.hold`: from now on nothing in its scope may be erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerHold {
    /// What it covers.
    pub scope: HoldScope,
    /// Why.
    pub reason: String,
}

/// What a hold covers: one session, or the whole ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldScope {
    /// The session; `None` is the whole ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// `ledger.hold.released`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerHoldReleased {
    /// The ledger number of the hold.
    pub hold: u64,
}

/// `ledger.key_rotated`: another key speaks for the ledger from here on. The ledger writes it
/// itself; what is in it is for verifiers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerKeyRotated {
    /// The key that speaks from here on.
    pub new_vkey: String,
    /// The key that spoke until here.
    pub old_vkey: String,
    /// The old key's last checkpoint.
    pub checkpoint: String,
    /// The old key's word for the new one.
    pub signature: String,
}

/// `session.redacted`, in the session's own stream: events of it were erased. It carries what a
/// fold can no longer add up without them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRedacted {
    /// The session's events that were erased, by ledger number.
    pub seqs: Vec<u64>,
    /// The summed time of all commands so far, the erased ones included, in milliseconds.
    pub exec_ms: u64,
    /// The same of the jobs that ended.
    #[serde(default, skip_serializing_if = "super::exec::is_zero")]
    pub job_ms: u64,
}

/// `idempotency.erased`, in a key's own stream: the answer that was kept for it is erased. The key
/// stays used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyErased {
    /// The event that held the answer, by ledger number.
    pub seq: u64,
}
