//! Payloads of replays, recorded in the session in which the commands ran again.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SessionId;

/// `replay.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayStarted {
    /// The session whose commands are run again.
    pub source: SessionId,
    /// How many steps were planned.
    pub steps: u64,
}

/// `replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayCompleted {
    /// The ledger number of the intent.
    pub op: u64,
    /// The session whose commands were run again.
    pub source: SessionId,
    /// How many steps ran.
    pub ran: u64,
    /// How many of them ended with the recorded exit code.
    pub same_exit_code: u64,
    /// How many of them wrote the recorded bytes.
    pub same_output: u64,
    /// How many of them came to what was recorded in every respect.
    #[serde(default)]
    pub same: u64,
    /// The first source event that came to something else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged_at: Option<u64>,
    /// The source event at which it stopped before the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<u64>,
    /// Why it stopped there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_because: Option<String>,
}
