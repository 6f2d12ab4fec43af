//! Candidates that are tried side by side: bodies of requests and of answers.

use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

use crate::number::Milliseconds;

/// `POST …/evaluate`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluateRequest {
    /// The commands, each tried in a child of its own.
    pub candidates: Vec<String>,
    /// What runs after each that ended with 0: a command that ends with 0 where all is well.
    #[serde(default)]
    pub test: Option<String>,
    /// Whether the children that did not win stay.
    #[serde(default)]
    pub keep_all: Option<bool>,
    /// The time limit of each command.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
}

/// `POST …/rollout`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// The command.
    pub command: String,
    /// In how many children.
    pub count: u32,
    /// Whether the children stay.
    #[serde(default)]
    pub keep: Option<bool>,
    /// The time limit of the command.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
}

/// The answer of `POST …/evaluate` and `POST …/rollout`.
#[derive(Clone, Debug, Serialize)]
pub struct EvaluateView {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// What came of each, in the order of the candidates.
    pub items: Vec<CandidateView>,
    /// The child of the best that passed; `null` when nothing passed, and for a rollout.
    pub winner: Option<Uuid>,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// What came of one candidate.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateView {
    /// Its child.
    pub child: Uuid,
    /// The command.
    pub command: String,
    /// How it ended; `null` when it never ran to an end.
    pub exit_code: Option<i32>,
    /// How the test ended after it; `null` when it did not run.
    pub test_exit_code: Option<i32>,
    /// 100 passed, 10 ran well and failed its test, 0 failed or never ran.
    pub score: u8,
    /// Command and test.
    pub duration_ms: u64,
    /// Why it never ran to an end.
    pub error: Option<String>,
    /// The child is still there.
    pub kept: bool,
    /// The end of what it wrote; `null` in an answer that is given once more.
    pub output_tail: Option<String>,
    /// The end of what its test wrote; likewise.
    pub test_output_tail: Option<String>,
}
