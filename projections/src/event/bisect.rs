//! Payloads of searches for the command that broke something.

use serde::Deserialize;
use serde::Serialize;

/// `rewind.bisect.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BisectStarted {
    /// The command that ends with 0 where all is well.
    pub test: String,
    /// The state in which it does; `None` is the oldest point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good: Option<String>,
    /// The state in which it does not; `None` is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<String>,
}

/// `rewind.bisect`. The session is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bisected {
    /// The ledger number of the intent.
    pub op: u64,
    /// The command that ends with 0 where all is well.
    pub test: String,
    /// The command that broke it.
    pub culprit: Culprit,
    /// The last kept state in which all was well.
    pub last_good: String,
    /// The first kept state in which it was not.
    pub first_bad: String,
    /// Every state that was looked at, in order.
    pub tested: Vec<BisectVerdict>,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// The command that broke it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// The ledger number of its intent.
    pub seq: u64,
    /// The shell line.
    pub command: String,
    /// The last kept state before it.
    pub tag: String,
}

/// A state that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BisectVerdict {
    /// `now`, a tag, or `after <seq>` for a state that was made by running commands again.
    pub state: String,
    /// How the test ended in it.
    pub exit_code: i32,
    /// All was well.
    pub good: bool,
}

/// `rewind.bisect.failed`. The session is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BisectFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}
