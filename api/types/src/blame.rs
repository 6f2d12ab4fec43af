//! Who wrote some bytes: the body of an answer.

use serde::Serialize;
use uuid::Uuid;

/// A step.
#[derive(Clone, Debug, Serialize)]
pub struct BlamedStepView {
    /// The ledger number of its intent.
    pub seq: u64,
    /// When that was recorded.
    pub at: String,
    /// What it was: the kind of its outcome.
    pub kind: &'static str,
    /// For a person: the shell line of a command.
    pub command: String,
}

/// The answer of `GET …/blame`.
#[derive(Clone, Debug, Serialize)]
pub struct BlameView {
    /// In the workspace.
    pub path: String,
    /// The line, counted from 1; `null` for the whole file.
    pub line: Option<u64>,
    /// What it says.
    pub text: Option<String>,
    /// There is a file at the path.
    pub exists: bool,
    /// `one_step`, `done_again`, `one_of_several`, `from_the_beginning` or `no_step`.
    pub certainty: &'static str,
    /// The step that last wrote it.
    pub step: Option<BlamedStepView>,
    /// The steps that may have, where it is not known which.
    pub candidates: Vec<BlamedStepView>,
    /// The last state without it; `null` when the session began with it.
    pub after: Option<String>,
    /// The first state with it.
    pub before: String,
    /// The session that has what came before this one began.
    pub parent: Option<Uuid>,
}
