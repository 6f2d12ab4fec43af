//! Files and trees, up and down as streams: neither side ever holds one in memory.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentd_protocol::paths;
use bytes::Bytes;
use bytes::BytesMut;
use futures_util::Stream;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;

use crate::AgentdClient;
use crate::ClientError;
use crate::body::Source;
use crate::pool::Pool;
use crate::pool::Sender;

/// Time for one upload, its answer included: 512 MiB, the most that a guest takes, at 1 MiB/s.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);

/// Lines of a file, the first being 1, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRange {
    /// The first line.
    pub start: u64,
    /// The last line; absent reads to the end.
    pub end: Option<u64>,
}

/// Bytes that a guest sends. Dropping it ends the transfer.
pub struct Download {
    body: Option<Incoming>,
    sender: Option<Sender>,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Download").finish_non_exhaustive()
    }
}

impl Download {
    /// The next bytes; `None` at the end. A transfer that was cut off says
    /// [`ClientError::Disconnected`] and never looks whole.
    pub async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        loop {
            match self.body.as_mut()?.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Some(Ok(bytes));
                    }
                }
                Some(Err(_)) => {
                    self.body = None;
                    self.sender = None;
                    return Some(Err(ClientError::Disconnected));
                }
                None => {
                    self.body = None;
                    if let Some(sender) = self.sender.take() {
                        self.pool.give_back(sender).await;
                    }
                    return None;
                }
            }
        }
    }

    /// All bytes, if there are at most so many.
    pub async fn collect(mut self, bytes_max: usize) -> Result<Bytes, ClientError> {
        let mut all = BytesMut::new();
        while let Some(bytes) = self.next().await {
            let bytes = bytes?;
            if all.len() + bytes.len() > bytes_max {
                let detail = format!("a download is longer than {bytes_max} bytes");
                return Err(ClientError::Protocol(detail));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all.freeze())
    }
}

impl AgentdClient {
    /// Reads a file, or a range of its lines.
    pub async fn read_file(
        &self,
        path: &str,
        lines: Option<LineRange>,
    ) -> Result<Download, ClientError> {
        let mut target = paths::with_query(paths::FILE, [("path", path)]);
        if let Some(LineRange { start, end }) = lines {
            target.push_str(&format!("&start_line={start}"));
            if let Some(end) = end {
                target.push_str(&format!("&end_line={end}"));
            }
        }
        self.download(target).await
    }

    /// Writes a file, with these permissions or 0644. Its folders are made. A write that fails
    /// leaves no part of it behind.
    pub async fn write_file(
        &self,
        path: &str,
        mode: Option<u32>,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        let mut target = paths::with_query(paths::FILE, [("path", path)]);
        if let Some(mode) = mode {
            target.push_str(&format!("&mode={mode:o}"));
        }
        self.upload(target, Box::pin(content)).await
    }

    /// A folder as an archive.
    pub async fn read_tree(&self, path: &str) -> Result<Download, ClientError> {
        let target = paths::with_query(paths::TAR, [("path", path)]);
        self.download(target).await
    }

    /// Unpacks an archive below a folder. What fails half-way converges when it is repeated.
    pub async fn write_tree(
        &self,
        path: &str,
        archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        let target = paths::with_query(paths::TAR, [("path", path)]);
        self.upload(target, Box::pin(archive)).await
    }

    /// Applies a set of changes below a folder ([`paths::TAR_CHANGES`]). What fails half-way leaves what
    /// was done.
    pub async fn apply_changes(
        &self,
        path: &str,
        changes: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<(), ClientError> {
        let query = [("path", path), (paths::TAR_CHANGES, "1")];
        let target = paths::with_query(paths::TAR, query);
        self.upload(target, Box::pin(changes)).await
    }

    async fn download(&self, target: String) -> Result<Download, ClientError> {
        let (body, sender) = self.streamed(target).await?;
        Ok(Download {
            body: Some(body),
            sender: Some(sender),
            pool: Arc::clone(self.pool()),
        })
    }

    async fn upload(&self, target: String, content: Source) -> Result<(), ClientError> {
        let sent = self.sent_stream(Method::PUT, target, content);
        tokio::time::timeout(UPLOAD_TIMEOUT, sent)
            .await
            .map_err(|_| ClientError::Timeout)?
            .map(drop)
    }
}
