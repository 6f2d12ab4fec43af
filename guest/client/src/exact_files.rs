//! Facts, slices, whole replacements and removals of files: the routes that this project adds.

use std::io;
use std::time::Duration;

use agentd_protocol::FileFacts;
use agentd_protocol::Placed;
use agentd_protocol::Removed;
use agentd_protocol::SLICE_HEADER;
use agentd_protocol::SliceFacts;
use agentd_protocol::limits::SLICE_BYTES_MAX;
use agentd_protocol::paths;
use bytes::Bytes;
use futures_util::Stream;
use hyper::Method;

use crate::AgentdClient;
use crate::ClientError;
use crate::client::LIST_BYTES_MAX;

/// Time for putting a file in its place: the largest, 2 GiB, at 4 MiB/s.
const PLACE_TIMEOUT: Duration = Duration::from_secs(512);

/// Time for a digest of the largest file, or for the removal of a large tree.
const LONG_TIMEOUT: Duration = Duration::from_secs(300);

/// A file to be put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOrder {
    /// Where.
    pub path: String,
    /// Its bytes: exactly as many have to come.
    pub size: u64,
    /// Their SHA-256, hexadecimal; anything else is refused.
    pub sha256: Option<String>,
    /// Its permissions.
    pub mode: u32,
    /// Whether folders on the way are made.
    pub parents: bool,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSlice {
    /// What it was cut from.
    pub facts: SliceFacts,
    /// The bytes; fewer than were asked for at the end of the file.
    pub bytes: Bytes,
}

impl AgentdClient {
    /// What lies at a path, and what lies in it. Refusals name a
    /// [`FileFault`](agentd_protocol::FileFault) here and in all calls below.
    pub async fn file_facts(&self, path: &str) -> Result<FileFacts, ClientError> {
        let target = paths::with_query(paths::FILE_FACTS, [("path", path)]);
        self.json(self.get(target).answered_within(LIST_BYTES_MAX))
            .await
    }

    /// A part of a file, and the digest of the whole if that is wanted.
    pub async fn file_slice(
        &self,
        path: &str,
        offset: u64,
        length: u64,
        checksum: bool,
    ) -> Result<FileSlice, ClientError> {
        let length = length.min(SLICE_BYTES_MAX);
        let target = paths::with_query(paths::FILE_SLICE, [("path", path)]);
        let target = format!("{target}&offset={offset}&length={length}&checksum={checksum}");
        let cap = usize::try_from(SLICE_BYTES_MAX).unwrap_or(usize::MAX);
        let call = self.get(target).within(LONG_TIMEOUT);
        let (headers, bytes) = self
            .buffered_with_headers(call.answered_within(cap))
            .await?;
        let facts = headers
            .get(SLICE_HEADER)
            .ok_or_else(|| ClientError::Protocol("a slice without its facts".into()))?;
        let facts = serde_json::from_slice(facts.as_bytes())
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        Ok(FileSlice { facts, bytes })
    }

    /// Puts a file in its place: as a whole, or not at all.
    pub async fn place_file(
        &self,
        order: &FileOrder,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Placed, ClientError> {
        let mut target = paths::with_query(paths::FILE_PLACE, [("path", &order.path)]);
        target.push_str(&format!(
            "&size={}&mode={:o}&parents={}",
            order.size, order.mode, order.parents
        ));
        if let Some(sha256) = &order.sha256 {
            target.push_str(&format!("&sha256={sha256}"));
        }
        let sent = self.sent_stream(Method::PUT, target, Box::pin(content));
        let answer = tokio::time::timeout(PLACE_TIMEOUT, sent)
            .await
            .map_err(|_| ClientError::Timeout)??;
        serde_json::from_slice(&answer).map_err(|error| ClientError::Protocol(error.to_string()))
    }

    /// Removes a file, a link, an empty folder, or a tree if `recursive`.
    pub async fn remove_file(&self, path: &str, recursive: bool) -> Result<Removed, ClientError> {
        let target = paths::with_query(paths::FILE_REMOVE, [("path", path)]);
        let target = format!("{target}&recursive={recursive}");
        let call = self.post_once(target).within(LONG_TIMEOUT);
        self.json(call).await
    }
}
