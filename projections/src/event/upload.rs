//! Payloads of uploads: files that come in parts.
//!
//! Which uploads there are is a fold over `upload.…` alone. What was uploaded is said by `file.upload`,
//! which may be erased without anyone forgetting that the upload is over.

use serde::Deserialize;
use serde::Serialize;

use super::is_false;
use crate::ids::UploadId;

/// `upload.open`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadOpened {
    /// Its id.
    pub upload: UploadId,
    /// Where the file goes, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The SHA-256 that it must have, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its permission bits.
    pub mode: u32,
    /// Folders on the way are made.
    pub parents: bool,
}

/// `upload.complete`: all parts came and the file is in its place. In the same batch as `file.upload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadCompleted {
    /// Its id.
    pub upload: UploadId,
}

/// `upload.abort`: its parts are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadAborted {
    /// Its id.
    pub upload: UploadId,
    /// Where the file would have gone.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// `aborted`, or `expired` when nobody went on with it.
    pub reason: String,
}

/// `file.upload.started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUploadStarted {
    /// The upload.
    pub upload: UploadId,
    /// Where the file goes, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
}

/// `file.upload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUploaded {
    /// The ledger number of the intent.
    pub op: u64,
    /// The upload.
    pub upload: UploadId,
    /// Where the file is, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The caller gave a digest and the bytes have it.
    pub verified: bool,
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
    /// The daemon ended in the middle, and the next one went through with it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recovered: bool,
}
