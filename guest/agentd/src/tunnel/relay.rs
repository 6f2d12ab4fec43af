//! Moving bytes both ways until the first side ends.

use agentd_protocol::tunnel::PLAIN_CHUNK_BYTES;
use bytes::Bytes;
use bytes::BytesMut;
use futures_util::future::Either;
use futures_util::future::select;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::socket::Received;
use super::socket::Receiver;
use super::socket::Sender;
use super::socket::Socket;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    /// The guest's side reached its end, and all of it was sent.
    GuestEnded,
    /// The guest's side failed while it was read, or takes no more.
    GuestFailed,
    /// The peer said that its stream is whole.
    PeerEnded,
    /// The peer closed.
    PeerClosed,
    /// The peer went away.
    PeerLost,
    /// A frame is not the peer's.
    PeerForged,
}

/// What a frame means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    Bytes(Bytes),
    EndOfStream,
}

/// A frame that cannot be opened or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// What is done to bytes on their way.
pub(super) trait Framing {
    /// Bytes that go into one frame.
    fn chunk_bytes(&self) -> usize;
    /// From the guest's bytes to a frame.
    fn seal(&self, bytes: Bytes) -> Result<Bytes, Broken>;
    /// From a frame to bytes for the guest.
    fn open(&self, frame: Received) -> Result<Opened, Broken>;
}

/// Frames as they are; text is bytes too.
pub(super) struct Plain;

impl Framing for Plain {
    fn chunk_bytes(&self) -> usize {
        PLAIN_CHUNK_BYTES
    }

    fn seal(&self, bytes: Bytes) -> Result<Bytes, Broken> {
        Ok(bytes)
    }

    fn open(&self, frame: Received) -> Result<Opened, Broken> {
        match frame {
            Received::Binary(bytes) | Received::Text(bytes) => Ok(Opened::Bytes(bytes)),
        }
    }
}

/// Relays until the first side ends. Both directions run at once, so that a slow one never holds
/// up the other.
pub(super) async fn relay(
    socket: &mut Socket,
    guest: &mut TcpStream,
    framing: &impl Framing,
) -> End {
    let (mut reader, mut writer) = guest.split();
    let Socket { sender, receiver } = socket;
    let down = std::pin::pin!(from_guest(&mut reader, sender, framing));
    let up = std::pin::pin!(to_guest(receiver, &mut writer, framing));
    match select(down, up).await {
        Either::Left((end, _)) | Either::Right((end, _)) => end,
    }
}

async fn from_guest(
    guest: &mut (impl AsyncReadExt + Unpin),
    sender: &mut Sender,
    framing: &impl Framing,
) -> End {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(framing.chunk_bytes());
        let mut chunk = (&mut *guest).take(u64::try_from(framing.chunk_bytes()).unwrap_or(1));
        match chunk.read_buf(&mut buffer).await {
            Ok(0) => return End::GuestEnded,
            Ok(_) => {}
            Err(_) => return End::GuestFailed,
        }
        let Ok(frame) = framing.seal(buffer.split().freeze()) else {
            return End::GuestFailed;
        };
        if sender.send(frame).await.is_err() {
            return End::PeerLost;
        }
    }
}

async fn to_guest(
    receiver: &mut Receiver,
    guest: &mut (impl AsyncWriteExt + Unpin),
    framing: &impl Framing,
) -> End {
    while let Some(frame) = receiver.next().await {
        match framing.open(frame) {
            Ok(Opened::Bytes(bytes)) => {
                if guest.write_all(&bytes).await.is_err() {
                    return End::GuestFailed;
                }
            }
            Ok(Opened::EndOfStream) => return End::PeerEnded,
            Err(Broken) => return End::PeerForged,
        }
    }
    if receiver.is_closed() {
        End::PeerClosed
    } else {
        End::PeerLost
    }
}
