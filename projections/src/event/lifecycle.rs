//! Payloads of a session's end, and of ends that nobody asked for.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::ids::SandboxId;

/// `session.expire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionExpired {
    /// When its time ran out; the event itself may be later.
    pub expires_at: DateTime<Utc>,
}

/// `session.delete.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDeleteStarted {
    /// The sandbox that goes with it.
    pub sandbox_id: Option<SandboxId>,
}

/// `session.delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDeleted {
    /// The ledger number of the intent.
    pub op: u64,
}

/// `session.cleanup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCleanedUp {}

/// `sandbox.gone`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxGone {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// What is known of why.
    pub reason: String,
}

/// `lifecycle.interrupted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifecycleInterrupted {
    /// The kind of the interrupted intent, without `.started`.
    pub op: String,
    /// The ledger number of the intent.
    pub seq: u64,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// What was done about it: `rolled_back` when the session is as it was before. Absent when nothing
    /// could be done, or in older ledgers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
}
