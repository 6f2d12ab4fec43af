//! Payloads of what happens to the ledger itself: erasures, holds, and the key that speaks for it.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::ids::SandboxId;
use crate::ids::SessionId;
use crate::sessions::SessionStatus;
use crate::sessions::Usage;

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

/// `session.erased`, in the session's own stream: from here on nothing is left of the session but
/// this. What it said is erased, by the destruction of its key or event by event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionErased {
    /// The tenant that it belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// How it had ended.
    pub status: SessionStatus,
    /// The revision that it had reached.
    pub revision: u64,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// The sandbox that it had.
    pub sandbox_id: SandboxId,
    /// The engine of it.
    pub backend: String,
    /// What it had used.
    #[serde(flatten)]
    pub usage: Usage,
}

/// `ledger.shredded`: the key that a session was sealed with is destroyed, here and in every copy of the
/// ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerShredded {
    /// The session.
    pub session: SessionId,
    /// Why, as the caller gave it.
    pub reason: String,
}

/// `ledger.key_found_destroyed`: at a start the key that a session was sealed with was destroyed, and no event
/// had ordered that. What it said is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerKeyFoundDestroyed {
    /// The session.
    pub session: SessionId,
    /// The hold that forbade it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<u64>,
}

/// `ledger.shred.refused`: that was asked for and a hold forbade it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerShredRefused {
    /// The session.
    pub session: SessionId,
    /// Why it was asked for.
    pub reason: String,
    /// Why it was refused.
    pub because: String,
}

/// `ledger.delete.refused`: a session was to be deleted, with its files and snapshots, and a hold forbade it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerDeleteRefused {
    /// The session.
    pub session: SessionId,
    /// Why it was refused.
    pub because: String,
}

/// `ledger.retention.started`: what these sessions said is about to be erased. All of it lies before a
/// signed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRetentionStarted {
    /// The size of the checkpoint.
    pub before: u64,
    /// The sessions. Each had ended.
    pub sessions: Vec<SessionId>,
    /// Why, as the caller gave it.
    pub reason: String,
}

/// `ledger.retention`: it is erased. Headers and hashes stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRetention {
    /// The ledger number of the intent.
    pub op: u64,
    /// How many sessions there were.
    pub sessions: u64,
    /// How many events were erased since the intent, or since it was taken up again after a crash.
    pub events: u64,
}

/// `ledger.retention.refused`: that was asked for and a hold forbade it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerRetentionRefused {
    /// The size of the checkpoint.
    pub before: u64,
    /// The session that is held; `None` where everything is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Why it was asked for.
    pub reason: String,
    /// Why it was refused.
    pub because: String,
}
