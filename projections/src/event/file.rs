//! Payloads of files that were written and removed from outside.
//!
//! An outcome says everything that it takes to do it again: the content itself is in the blobs that it
//! names, where the session keeps contents.

use serde::Deserialize;
use serde::Serialize;

use super::is_false;

/// `file.write.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWriteStarted {
    /// Where, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// Their BLAKE3, hex.
    pub digest: String,
    /// Its permission bits.
    pub mode: u32,
    /// Folders on the way are made.
    pub parents: bool,
    /// The blobs that hold the content, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<String>,
}

/// `file.write`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWritten {
    /// The ledger number of the intent.
    pub op: u64,
    /// Where, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// Their BLAKE3, hex.
    pub digest: String,
    /// The SHA-256 of what arrived in the guest, hex.
    pub sha256: String,
    /// Its permission bits.
    pub mode: u32,
    /// Folders on the way were made.
    pub parents: bool,
    /// A file was there before.
    pub replaced: bool,
    /// The blobs that hold the content, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blobs: Vec<String>,
    /// The daemon ended in the middle, and the next one found it done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
}

/// `file.delete.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDeleteStarted {
    /// What, absolute.
    pub path: String,
    /// With all that is in it.
    pub recursive: bool,
}

/// `file.delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDeleted {
    /// The ledger number of the intent.
    pub op: u64,
    /// What, absolute.
    pub path: String,
    /// With all that was in it.
    pub recursive: bool,
    /// What it was: `file`, `dir`, `symlink`, `other`; `unknown` where only its absence was seen.
    pub kind: String,
    /// Bytes of its files together.
    pub size: u64,
    /// How many entries went, itself included.
    pub entries: u64,
    /// The daemon ended in the middle, and the next one found it done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
}

/// `file.failed`: a write, a removal or an upload changed nothing, or it is not known what it changed;
/// the reason says which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFailed {
    /// The ledger number of the intent.
    pub op: u64,
    /// `write`, `delete` or `upload`.
    pub action: String,
    /// Where.
    pub path: String,
    /// A stable code.
    pub code: String,
    /// What went wrong, for a person.
    pub reason: String,
}
