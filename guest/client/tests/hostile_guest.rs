//! A guest that answers without an end costs its host a bounded number of bytes.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::io;
use std::sync::Arc;

use agentd_client::AgentdClient;
use agentd_client::ByteStream;
use agentd_client::ClientError;
use agentd_client::Connect;
use agentd_protocol::AgentToken;
use agentd_protocol::ExecId;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::io::AsyncReadExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

/// Bytes that a connection holds on their way.
const PIPE_BYTES: usize = 64 * 1024;
/// What may be taken of an answer that says what was done, beyond what is on its way.
const TAKEN_BYTES_MAX: usize = 256 * 1024;

/// Dials guests that answer everything with success and never stop.
struct Endless {
    /// How much each could send until its peer went away.
    sent: mpsc::UnboundedSender<usize>,
}

impl Connect for Endless {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        let (host, mut guest) = tokio::io::duplex(PIPE_BYTES);
        let sent = self.sent.clone();
        tokio::spawn(async move {
            let mut request = [0; 4096];
            let _ = guest.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let mut bytes = 0;
            let mut next = head.to_owned();
            while guest.write_all(next.as_bytes()).await.is_ok() {
                bytes += next.len();
                next = format!("1000\r\n{}\r\n", "[".repeat(4096));
            }
            let _ = sent.send(bytes);
        });
        async { Ok(Box::new(host) as Box<dyn ByteStream>) }.boxed()
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_let_go_of_early() {
    let (sent, mut told) = mpsc::unbounded_channel();
    let client = AgentdClient::new(Arc::new(Endless { sent }), AgentToken::new("t"));
    let id = ExecId::new("x").unwrap();
    let asked = [
        client.kill(&id).await.map(drop),
        client.signal(&id, "TERM").await.map(drop),
        client.release(&id).await,
        client.acknowledge_to(&id, 1).await,
        client.health().await.map(drop),
    ];
    for answer in asked {
        assert!(
            matches!(answer, Err(ClientError::Protocol(_))),
            "{answer:?}"
        );
        let bytes = told.recv().await.unwrap();
        assert!(bytes < TAKEN_BYTES_MAX + PIPE_BYTES, "{bytes} bytes");
    }
}
