//! Payloads of approvals: commands that people decide on.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::ids::ApprovalId;

/// `approval.requested`: what would run, as the one who decides has to see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequested {
    /// The request.
    pub approval_id: ApprovalId,
    /// `exec` or `job`.
    pub kind: String,
    /// The shell line, as submitted.
    pub command: String,
    /// The commands that the line runs, as far as that is known before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<String>,
    /// What no rule could be held against.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unjudged: Vec<String>,
    /// The pattern that asks for it, or `unjudged`.
    pub matched: String,
    /// How many different people have to agree.
    pub approvers: u32,
    /// The SHA-256 that the approval is bound to, hex: the session, the kind, the command, its parameters,
    /// the policy and the session's revision.
    pub digest: String,
    /// Where it would run.
    pub cwd: String,
    /// The names of the variables that it would be given beside the sandbox's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// The SHA-256 of the session's policy, hex.
    pub policy_sha256: String,
    /// The session's revision.
    pub revision: u64,
    /// When it can no longer be decided or used.
    pub expires_at: DateTime<Utc>,
}

/// `approval.approved` and `approval.denied`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecided {
    /// The request.
    pub approval_id: ApprovalId,
    /// Who decided.
    pub by: String,
    /// What they said about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// `approval.consumed`: the command is about to run, and the approval is spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalConsumed {
    /// The request.
    pub approval_id: ApprovalId,
    /// Who had approved it.
    pub approved_by: Vec<String>,
}

/// `approval.refused`: a command came with an approval that does not let it run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRefused {
    /// The request, as it was named.
    pub approval_id: String,
    /// The shell line.
    pub command: String,
    /// Why.
    pub reason: String,
}
