//! What a command reads: from the caller into the guest, no faster than the command takes it.
//!
//! Only its size is recorded. A command that stops reading is a result and no error: the rest is not
//! taken. An input that breaks off before its end is the opposite: the command would take half of it for
//! the whole, so it is ended.

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_protocol::ExecId;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::oneshot;

use crate::limits::EXEC_STDIN_PORTION_BYTES;
use crate::request::StdinSource;

/// A command's standard input under way.
pub(super) struct Feed {
    source: StdinSource,
    given: Given,
}

/// What a command got to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    /// Bytes that it took.
    pub(super) taken_bytes: u64,
    /// Its input broke off before its end.
    pub(super) cut: bool,
}

impl Feed {
    pub(super) fn new(source: StdinSource) -> Self {
        Self {
            source,
            given: Given::default(),
        }
    }

    /// What the command got so far.
    pub(super) fn given(&self) -> Given {
        self.given
    }

    /// Feeds the command once it runs, until it has everything or wants no more.
    pub(super) async fn run(
        &mut self,
        guest: &AgentdClient,
        exec_id: &ExecId,
        runs: oneshot::Receiver<()>,
    ) {
        if runs.await.is_err() {
            return;
        }
        while let Some(chunk) = self.source.next().await {
            let written = match chunk {
                Ok(bytes) => self.write(guest, exec_id, bytes).await,
                Err(error) => {
                    tracing::info!(%exec_id, %error, "a command's standard input broke off");
                    Err(Stop::Broken)
                }
            };
            match written {
                Ok(()) => {}
                Err(Stop::Closed) => return,
                Err(Stop::Broken) => {
                    self.given.cut = true;
                    if let Err(error) = guest.kill(exec_id).await {
                        tracing::warn!(%exec_id, %error, "a command without its input was not ended");
                    }
                    return;
                }
            }
        }
        if let Err(error) = guest.stdin(exec_id, &[], true).await {
            tracing::debug!(%exec_id, %error, "a command's standard input was closed before");
        }
    }

    async fn write(
        &mut self,
        guest: &AgentdClient,
        exec_id: &ExecId,
        mut bytes: Bytes,
    ) -> Result<(), Stop> {
        while !bytes.is_empty() {
            let portion = bytes.slice(..bytes.len().min(EXEC_STDIN_PORTION_BYTES));
            let taken = match guest.stdin(exec_id, &portion, false).await {
                Ok(state) => state.written,
                // It is slow, and may be for as long as its time limit lets it.
                Err(ClientError::Refused {
                    status: 408,
                    written: Some(written),
                    ..
                }) => written,
                Err(ClientError::Refused { written, .. }) => {
                    self.given.taken_bytes += written.unwrap_or_default();
                    return Err(Stop::Closed);
                }
                Err(error) => {
                    tracing::warn!(%exec_id, %error, "a command's standard input was lost");
                    return Err(Stop::Broken);
                }
            };
            self.given.taken_bytes += taken;
            let taken = usize::try_from(taken).unwrap_or(usize::MAX);
            bytes = bytes.slice(taken.min(bytes.len())..);
        }
        Ok(())
    }
}

/// Why no more is written.
enum Stop {
    /// The command wants no more.
    Closed,
    /// What it got is not what was sent.
    Broken,
}
