//! A relay between a WebSocket and a port inside the guest.
//!
//! The socket is upgraded first and the port dialled after, so that every outcome has a close code
//! to be told with. One WebSocket is one connection. The tunnel ends when its first side does.
//!
//! A plain tunnel moves frames as they are. A verified one proves both ends by the keys that the
//! launch installed before the port is dialled, encrypts every frame, and knows a stream that ended
//! from one that was cut: [`verified`].

#[cfg(test)]
mod model;
mod relay;
mod socket;
mod verified;

use std::pin::Pin;
use std::time::Duration;

use agentd_protocol::tunnel::DIAL_DEADLINE;
use agentd_protocol::tunnel::close_code;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

#[cfg(feature = "fuzzing")]
pub(crate) use verified::fuzzing;

pub(crate) use socket::Socket;
pub(crate) use socket::accept_key;

use self::relay::End;
use self::relay::Plain;
use self::relay::relay;
use crate::auth::TunnelIdentity;

/// How long a peer's own close is waited for after ours, so that it sees ours and not a reset.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// How long a guest's connection is read after the tunnel's end.
const PART_WAIT: Duration = Duration::from_secs(5);

/// Bytes of one such read.
const PART_READ_BYTES: usize = 16 * 1024;

/// What a tunnel is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) port: u16,
    pub(crate) verified: bool,
}

/// Why a tunnel was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closing {
    code: u16,
    reason: &'static str,
}

impl Closing {
    const fn new(code: u16, reason: &'static str) -> Self {
        Self { code, reason }
    }
}

const BAD_PORT: Closing = Closing::new(close_code::BAD_PORT, "port 0 is no port");
const NO_IDENTITY: Closing = Closing::new(close_code::NO_IDENTITY, "this guest has no identity");
const REFUSED: Closing = Closing::new(close_code::IDENTITY_REFUSED, "the handshake was refused");
const NO_LISTENER: Closing = Closing::new(close_code::NO_LISTENER, "nothing listens on the port");
const NORMAL: Closing = Closing::new(close_code::NORMAL, "");
const FAILED: Closing = Closing::new(close_code::RELAY_FAILED, "the guest's side failed");

/// Serves one tunnel from its upgrade to its close, or until it is `cut`: then it ends without a
/// word, as a stream that broke.
pub(crate) async fn serve(
    mut socket: Socket,
    asked: Asked,
    identity: Option<TunnelIdentity>,
    cut: impl Future<Output = ()>,
) {
    let mut cut = std::pin::pin!(cut);
    let closing = match attend(&mut socket, asked, identity, cut.as_mut()).await {
        Ok(closing) | Err(Failed::With(closing)) => closing,
        Err(Failed::Cut) => return,
    };
    tokio::select! {
        () = socket.close(closing.code, closing.reason, CLOSE_WAIT) => {}
        () = cut => {}
    }
}

/// A tunnel that did not come to its end.
enum Failed {
    With(Closing),
    Cut,
}

impl From<Closing> for Failed {
    fn from(closing: Closing) -> Self {
        Self::With(closing)
    }
}

/// Does something unless the tunnel is cut meanwhile.
async fn unless_cut<T>(
    cut: Pin<&mut impl Future<Output = ()>>,
    work: impl Future<Output = T>,
) -> Result<T, Failed> {
    tokio::select! {
        biased;
        () = cut => Err(Failed::Cut),
        done = work => Ok(done),
    }
}

async fn attend(
    socket: &mut Socket,
    asked: Asked,
    identity: Option<TunnelIdentity>,
    mut cut: Pin<&mut impl Future<Output = ()>>,
) -> Result<Closing, Failed> {
    if asked.port == 0 {
        return Err(BAD_PORT.into());
    }
    if !asked.verified {
        let mut guest = unless_cut(cut.as_mut(), dial(asked.port)).await??;
        let end = unless_cut(cut, relay(socket, &mut guest, &Plain)).await?;
        tokio::task::spawn_local(part(guest));
        return Ok(closing_of(end));
    }
    let identity = identity.ok_or(NO_IDENTITY)?;
    let greeting = verified::greet(socket, asked.port, &identity);
    let session = unless_cut(cut.as_mut(), greeting).await??;
    let mut guest = unless_cut(cut.as_mut(), dial(asked.port)).await??;
    let relayed = unless_cut(cut, relay(socket, &mut guest, &session)).await;
    let end = match relayed {
        Ok(end) => end,
        Err(cut) => {
            if session.peer_was_cut_off(End::PeerLost) {
                let _ = guest.set_zero_linger();
            }
            return Err(cut);
        }
    };
    if end == End::GuestEnded {
        // Proves to the peer that nothing of the stream is missing.
        let _ = socket.send(session.end_of_stream()?).await;
    } else if session.peer_was_cut_off(end) {
        // Not a close: whoever reads inside the guest must see that the stream broke.
        let _ = guest.set_zero_linger();
        return Ok(closing_of(end));
    }
    tokio::task::spawn_local(part(guest));
    Ok(closing_of(end))
}

/// Ends the guest's connection so that it sees an end. What it still sends is taken for a while
/// and dropped: closing over unread bytes would be a reset, which means something else here.
async fn part(mut guest: TcpStream) {
    let parting = async {
        if guest.shutdown().await.is_err() {
            return;
        }
        let mut dropped = vec![0; PART_READ_BYTES];
        while guest.read(&mut dropped).await.is_ok_and(|bytes| bytes > 0) {}
    };
    let _ = tokio::time::timeout(PART_WAIT, parting).await;
}

fn closing_of(end: End) -> Closing {
    match end {
        End::GuestEnded | End::PeerEnded | End::PeerClosed | End::PeerLost => NORMAL,
        End::PeerForged => REFUSED,
        End::GuestFailed => FAILED,
    }
}

async fn dial(port: u16) -> Result<TcpStream, Closing> {
    let dialled = TcpStream::connect(("127.0.0.1", port));
    let Ok(Ok(guest)) = tokio::time::timeout(DIAL_DEADLINE, dialled).await else {
        return Err(NO_LISTENER);
    };
    let _ = guest.set_nodelay(true);
    Ok(guest)
}
