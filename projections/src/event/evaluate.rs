//! Payloads of candidates that are tried side by side, each in a child of its own.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SessionId;

/// `evaluate.started` and `rollout.started`, in the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluateStarted {
    /// The commands, in the order of their children.
    pub candidates: Vec<String>,
    /// What runs after each that ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// The children, named before they exist.
    pub children: Vec<SessionId>,
}

/// `evaluate` and `rollout`, in the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The ledger number of the intent.
    pub op: u64,
    /// What came of each candidate, in their order.
    pub results: Vec<CandidateResult>,
    /// The child of the best that passed; `None` when nothing passed, and for a rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<SessionId>,
    /// From the intent on, in milliseconds.
    pub duration_ms: u64,
}

/// What came of one candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateResult {
    /// Its child.
    pub child: SessionId,
    /// The command.
    pub command: String,
    /// How it ended; `None` when it never ran to an end.
    pub exit_code: Option<i32>,
    /// How the test ended after it, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_exit_code: Option<i32>,
    /// 100 passed, 10 ran well and failed its test, 0 failed or never ran.
    pub score: u8,
    /// Command and test, in milliseconds.
    pub duration_ms: u64,
    /// Why it, or its test, never ran to an end: a stable code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The child is still there.
    pub kept: bool,
}

/// `evaluate.failed` and `rollout.failed`, in the parent. No child is left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluateFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}
