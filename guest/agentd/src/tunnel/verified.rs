//! The verified form: a Noise KK handshake over the socket, then one transport message a frame.
//!
//! ```text
//! client ── message 1 (flags) ──► guest
//! client ◄─ message 2 (flags) ─── guest
//! client ── "ready" ────────────► guest        then the port is dialled
//! client ◄─ transport messages ─► guest        an empty one ends a stream
//! ```
//!
//! Both static keys were pinned by the launch, and the prologue binds the port. Nothing is relayed
//! before the peer has proved itself twice, and nothing falls back to the plain form.

use std::cell::RefCell;

use agentd_protocol::tunnel;
use agentd_protocol::tunnel::NOISE_MESSAGE_BYTES_MAX;
use agentd_protocol::tunnel::READY_DEADLINE;
use agentd_protocol::tunnel::VERIFIED_CHUNK_BYTES;
use bytes::Bytes;
use snow::HandshakeState;
use snow::TransportState;

use super::Closing;
use super::FAILED;
use super::REFUSED;
use super::relay::Broken;
use super::relay::End;
use super::relay::Framing;
use super::relay::Opened;
use super::socket::Received;
use super::socket::Socket;
use crate::auth::TunnelIdentity;

/// Bytes that encryption adds to a message.
const TAG_BYTES: usize = 16;

/// A peer that has proved itself.
pub(super) struct Session {
    transport: RefCell<TransportState>,
    peer_offers_end: bool,
}

/// Runs the handshake and hears the peer's ready message.
pub(super) async fn greet(
    socket: &mut Socket,
    port: u16,
    identity: &TunnelIdentity,
) -> Result<Session, Closing> {
    let mut handshake = responder(port, identity).map_err(|_| FAILED)?;
    let mut buffer = vec![0; NOISE_MESSAGE_BYTES_MAX];
    let first = message(socket).await?;
    let length = handshake
        .read_message(&first, &mut buffer)
        .map_err(|_| REFUSED)?;
    let payload = buffer.get(..length).unwrap_or_default();
    let peer_offers_end = tunnel::offers_end_of_stream(payload);
    let length = handshake
        .write_message(&[tunnel::END_OF_STREAM], &mut buffer)
        .map_err(|_| FAILED)?;
    let second = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
    socket.send(second).await.map_err(|_| REFUSED)?;
    let transport = handshake.into_transport_mode().map_err(|_| FAILED)?;
    let session = Session {
        transport: RefCell::new(transport),
        peer_offers_end,
    };
    let ready = session.decrypt(&message(socket).await?);
    if ready.is_ok_and(|ready| ready == tunnel::READY) {
        Ok(session)
    } else {
        Err(REFUSED)
    }
}

fn responder(port: u16, identity: &TunnelIdentity) -> Result<HandshakeState, snow::Error> {
    let pattern = tunnel::NOISE_PATTERN.parse()?;
    snow::Builder::new(pattern)
        .local_private_key(&identity.seed)?
        .remote_public_key(&identity.host_public_key)?
        .prologue(&tunnel::prologue(port))?
        .build_responder()
}

/// A message of the greeting, in time and as a binary frame.
async fn message(socket: &mut Socket) -> Result<Bytes, Closing> {
    match tokio::time::timeout(READY_DEADLINE, socket.receiver.next()).await {
        Ok(Some(Received::Binary(bytes))) => Ok(bytes),
        _ => Err(REFUSED),
    }
}

/// Whether a stream that ended like this is missing something, given what its sender offered.
pub(super) fn was_cut_off(peer_offers_end: bool, end: End) -> bool {
    peer_offers_end && matches!(end, End::PeerClosed | End::PeerLost | End::PeerForged)
}

impl Session {
    /// The message that says that a stream is whole.
    pub(super) fn end_of_stream(&self) -> Result<Bytes, Closing> {
        self.encrypt(&[]).map_err(|_| FAILED)
    }

    /// Whether a peer that says when it ends is gone without having said so.
    pub(super) fn peer_was_cut_off(&self, end: End) -> bool {
        was_cut_off(self.peer_offers_end, end)
    }

    fn encrypt(&self, bytes: &[u8]) -> Result<Bytes, Broken> {
        let mut sealed = vec![0; bytes.len() + TAG_BYTES];
        let mut transport = self.transport.borrow_mut();
        let written = transport.write_message(bytes, &mut sealed);
        sealed.truncate(written.map_err(|_| Broken)?);
        Ok(sealed.into())
    }

    fn decrypt(&self, frame: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut opened = vec![0; frame.len()];
        let mut transport = self.transport.borrow_mut();
        let read = transport.read_message(frame, &mut opened);
        opened.truncate(read.map_err(|_| Broken)?);
        Ok(opened)
    }
}

impl Framing for Session {
    fn chunk_bytes(&self) -> usize {
        VERIFIED_CHUNK_BYTES
    }

    fn seal(&self, bytes: Bytes) -> Result<Bytes, Broken> {
        self.encrypt(&bytes)
    }

    fn open(&self, frame: Received) -> Result<Opened, Broken> {
        let Received::Binary(frame) = frame else {
            return Err(Broken);
        };
        let opened = self.decrypt(&frame)?;
        Ok(if opened.is_empty() {
            Opened::EndOfStream
        } else {
            Opened::Bytes(opened.into())
        })
    }
}

/// What a fuzzer reaches of a tunnel, without a socket.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// Takes a first message for port 80. Who may go on gets what opens frames, and says whether it
    /// did.
    pub(crate) fn greets(
        identity: &TunnelIdentity,
        first: &[u8],
    ) -> Option<impl Fn(&[u8]) -> bool> {
        let mut handshake = responder(80, identity).ok()?;
        let mut buffer = vec![0; NOISE_MESSAGE_BYTES_MAX];
        handshake.read_message(first, &mut buffer).ok()?;
        handshake
            .write_message(&[tunnel::END_OF_STREAM], &mut buffer)
            .ok()?;
        let session = Session {
            transport: RefCell::new(handshake.into_transport_mode().ok()?),
            peer_offers_end: true,
        };
        Some(move |frame: &[u8]| {
            let frame = Received::Binary(Bytes::copy_from_slice(frame));
            session.open(frame).is_ok()
        })
    }
}
