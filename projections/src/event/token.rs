//! Payloads of session tokens. The secret is nowhere in them: only its digest is.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::ids::TokenId;

/// `token.mint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenMinted {
    /// The token.
    pub token_id: TokenId,
    /// The SHA-256 of the secret, hex.
    pub sha256: String,
    /// The operations that it may do.
    pub ops: Vec<String>,
    /// Who it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it ends by itself.
    pub expires_at: DateTime<Utc>,
}

/// `token.revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRevoked {
    /// The token.
    pub token_id: TokenId,
}

/// `token.refused`: the holder asked for what the token is not for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRefused {
    /// The token.
    pub token_id: TokenId,
    /// The method of the request.
    pub method: String,
    /// The path of the request, without its query.
    pub path: String,
    /// Why.
    pub reason: String,
}
