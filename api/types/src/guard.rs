//! Session tokens, approvals and usage, on the wire.

use serde::Deserialize;
use serde::Serialize;
use uuid::Uuid;

use crate::number::Dollars;
use crate::number::WholeSeconds;

/// `POST …/tokens`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MintTokenRequest {
    /// The operations that it may do.
    pub ops: Vec<String>,
    /// When it ends by itself.
    #[serde(default)]
    pub ttl_seconds: Option<WholeSeconds>,
    /// Who it is for.
    #[serde(default)]
    pub label: Option<String>,
}

/// A session token. Its secret is in the answer that made it and nowhere else.
#[derive(Clone, Debug, Serialize)]
pub struct TokenView {
    /// Its id.
    pub id: Uuid,
    /// The secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The operations that it may do.
    pub ops: Vec<String>,
    /// Who it is for.
    pub label: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it ends by itself.
    pub expires_at: String,
}

/// `POST …/approvals/{approval}/approve` and `…/deny`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideRequest {
    /// What the one who decides has to say.
    #[serde(default)]
    pub note: Option<String>,
}

/// An approval.
#[derive(Clone, Debug, Serialize)]
pub struct ApprovalView {
    /// Its id.
    pub id: Uuid,
    /// `exec` or `job`.
    pub kind: String,
    /// One line that says what would run.
    pub summary: String,
    /// The pattern that asks for it, or `unjudged`.
    pub matched: String,
    /// `pending`, `approved`, `denied`, `consumed` or `expired`.
    pub status: &'static str,
    /// The shell line.
    pub command: String,
    /// The commands that the line runs.
    pub runs: Vec<String>,
    /// What no rule could be held against.
    pub unjudged: Vec<String>,
    /// Where it would run.
    pub cwd: String,
    /// The names of the variables that it would be given.
    pub env: Vec<String>,
    /// The SHA-256 of the session's policy.
    pub policy_sha256: String,
    /// The revision of the session that it is bound to.
    pub revision: u64,
    /// The SHA-256 of everything that it is bound to.
    pub digest: String,
    /// How many different people have to agree.
    pub approvers: u32,
    /// Who agreed.
    pub approved_by: Vec<DecisionView>,
    /// Who decided last.
    pub decided_by: Option<String>,
    /// What they said about it.
    pub note: Option<String>,
    /// When it was asked for.
    pub requested_at: String,
    /// When it can no longer be decided or used.
    pub expires_at: String,
}

/// What one person decided.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionView {
    /// Who.
    pub by: String,
    /// What they said about it.
    pub note: Option<String>,
    /// When.
    pub at: String,
}

/// `POST …/usage`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageRequest {
    /// Tokens that a model read.
    #[serde(default)]
    pub input_tokens: Option<u64>,
    /// Tokens that it wrote.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// What it cost, in US dollars.
    #[serde(default)]
    pub cost_usd: Option<Dollars>,
    /// The model.
    #[serde(default)]
    pub model: Option<String>,
}
