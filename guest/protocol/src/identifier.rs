//! The caller-minted name of an exec: its idempotency key.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

/// The name that a caller gave to an exec. Any non-empty text; starting it twice starts it once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecId(String);

/// An exec id was empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an exec id holds at least one character")]
pub struct InvalidExecId;

impl ExecId {
    /// Takes a non-empty name.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidExecId> {
        let text = text.into();
        if text.is_empty() {
            Err(InvalidExecId)
        } else {
            Ok(Self(text))
        }
    }

    /// The name as it goes over the wire in a body.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ExecId {
    type Error = InvalidExecId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(text)
    }
}

impl From<ExecId> for String {
    fn from(id: ExecId) -> Self {
        id.0
    }
}

impl fmt::Display for ExecId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ExecId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}
