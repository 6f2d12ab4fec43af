//! Payloads of idempotency keys. A key's stream is named by a digest of caller, route and key, so that
//! neither enters the ledger.

use serde::Deserialize;
use serde::Serialize;

use crate::ids::SessionId;

/// `idempotency.claimed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyClaimed {
    /// The digest of the request body, hex.
    pub body_blake3: String,
}

/// `idempotency.answered`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyAnswered {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The blob that holds the body, hex.
    pub body: String,
    /// The session that the body is about, whose key it is sealed with if that session is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
}

/// `idempotency.released`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyReleased {
    /// Why: `failed` or `interrupted`.
    pub reason: String,
}
