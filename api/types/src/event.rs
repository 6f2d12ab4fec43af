//! The public view of a recorded event.

use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// One event of the ledger, with everything that its place in the chain can be checked by.
#[derive(Clone, Debug, Serialize)]
pub struct EventView<'a> {
    /// Its number in the ledger.
    pub seq: u64,
    /// Its stream.
    pub stream: &'a str,
    /// Its number in the stream.
    pub version: u64,
    /// What happened.
    pub kind: &'a str,
    /// When it was recorded.
    pub at: String,
    /// Who asked for it.
    pub actor: &'a str,
    /// The request that it came of.
    pub request: Uuid,
    /// What the event says, as the ledger stores it; `null` after it was erased.
    pub data: Option<&'a RawValue>,
    /// What it says was erased. The hashes still hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacted: Option<bool>,
    /// The hash of the event before it, hex.
    pub prev: String,
    /// Its hash, hex.
    pub hash: String,
}
