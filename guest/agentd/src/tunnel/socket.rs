//! A WebSocket's server side over an upgraded connection.

use std::time::Duration;

use agentd_protocol::tunnel::CLOSE_REASON_BYTES_MAX;
use bytes::Bytes;
use futures_util::SinkExt;
use futures_util::StreamExt;
use futures_util::stream::SplitSink;
use futures_util::stream::SplitStream;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Bytes of one message of the peer: far above what clients send at once.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that a socket reads at once.
const READ_BYTES: usize = 64 * 1024;

/// What proves to a client that its upgrade was understood.
pub(crate) fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// A frame with bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Binary(Bytes),
    Text(Bytes),
}

/// Both directions of a socket.
pub(crate) struct Socket {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// Where frames go.
pub(super) struct Sender(SplitSink<Stream, Message>);

/// Where frames come from.
pub(super) struct Receiver {
    stream: SplitStream<Stream>,
    /// Whether the peer closed, as opposed to went away.
    closed: bool,
}

/// The peer is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Socket {
    pub(crate) async fn accept(upgraded: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let io = TokioIo::new(upgraded);
        let stream = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (sink, stream) = stream.split();
        Self {
            sender: Sender(sink),
            receiver: Receiver {
                stream,
                closed: false,
            },
        }
    }

    pub(super) async fn send(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.sender.send(bytes).await
    }

    /// Closes with a code and waits a moment for the peer's own close.
    pub(super) async fn close(mut self, code: u16, reason: &str, wait: Duration) {
        debug_assert!(reason.len() <= CLOSE_REASON_BYTES_MAX);
        let frame = CloseFrame {
            code: code.into(),
            reason: reason.into(),
        };
        let closing = async {
            if self
                .sender
                .0
                .send(Message::Close(Some(frame)))
                .await
                .is_ok()
            {
                while self.receiver.next().await.is_some() {}
            }
        };
        let _ = tokio::time::timeout(wait, closing).await;
    }
}

impl Sender {
    pub(super) async fn send(&mut self, bytes: Bytes) -> Result<(), Gone> {
        let sent = self.0.send(Message::Binary(bytes)).await;
        sent.map_err(|_| Gone)
    }
}

impl Receiver {
    /// The next frame with bytes; `None` when the peer closed or is gone.
    pub(super) async fn next(&mut self) -> Option<Received> {
        loop {
            match self.stream.next().await? {
                Ok(Message::Binary(bytes)) => return Some(Received::Binary(bytes)),
                Ok(Message::Text(text)) => return Some(Received::Text(text.into())),
                Ok(Message::Close(_)) => {
                    self.closed = true;
                    return None;
                }
                // Pings are answered by the socket itself.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(_) => return None,
            }
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}
