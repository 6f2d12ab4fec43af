//! Connections: accepted up to a number, served one by one, ended with the daemon.
//!
//! A connection past the number waits: it is not served, and not lost. The host and those who are in the
//! sandbox with this daemon have places of their own, so that nothing inside can keep the host out.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use agentd_protocol::limits::CONNECTIONS_MAX;
use agentd_protocol::limits::HEADER_DEADLINE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use nix::sys::socket::AddressFamily;
use nix::sys::socket::SockaddrLike;
use nix::sys::socket::SockaddrStorage;
use nix::sys::socket::getsockname;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpListener;
use tokio::net::UnixListener;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use tokio::sync::watch;

use crate::app::App;
use crate::routes;
use crate::settings::Listen;
use crate::supervise::adopt_descriptor;

/// Bytes that a connection holds for its peer. Frames of output come on top, one at a time.
const CONNECTION_BUFFER_BYTES: usize = 256 * 1024;

/// Pause after an accept that failed, for lack of descriptors say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections from inside that wait for a place. More are closed at once: they would fill the socket's
/// queue, which the host's come through too.
const INSIDE_WAITING_MAX: usize = 256;

/// How long requests under way are waited for at the end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// The listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The connections that are served, and the word that ends them.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: watch::Sender<usize>,
    cut: watch::Sender<u64>,
}

impl Connections {
    fn admit(&self, slot: OwnedSemaphorePermit) -> Place {
        self.open.send_modify(|open| *open += 1);
        Place {
            _slot: slot,
            open: self.open.clone(),
            cut: self.cut.subscribe(),
            spared: Cell::new(false),
        }
    }

    /// Ends every connection but the one with this place, whatever it is doing.
    pub(crate) fn cut_others(&self, own: &Place) {
        own.spared.set(true);
        self.cut.send_modify(|cuts| *cuts += 1);
    }

    /// Waits until no other connection is open, and returns how many are when time is up.
    pub(crate) async fn others_ended(&self, wait_max: Duration) -> usize {
        let mut open = self.open.subscribe();
        let alone = open.wait_for(|open| *open <= 1);
        let _ = tokio::time::timeout(wait_max, alone).await;
        self.open.borrow().saturating_sub(1)
    }
}

/// A connection's place among those that are served at once. A tunnel keeps it past the request
/// that asked for the tunnel.
#[derive(Debug)]
pub(crate) struct Place {
    _slot: OwnedSemaphorePermit,
    open: watch::Sender<usize>,
    cut: watch::Receiver<u64>,
    spared: Cell<bool>,
}

impl Place {
    /// Resolves when the connection has to end.
    pub(crate) async fn cut(&self) {
        let mut cut = self.cut.clone();
        while cut.changed().await.is_ok() {
            if !self.spared.get() {
                return;
            }
        }
        std::future::pending().await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open = open.saturating_sub(1));
    }
}

impl Listener {
    /// Opens or takes over the socket.
    pub(crate) async fn open(listen: Listen) -> io::Result<Self> {
        match listen {
            Listen::Port(port) => Ok(Self::Tcp(TcpListener::bind(("0.0.0.0", port)).await?)),
            Listen::Inherited(descriptor) => Self::adopt(adopt_descriptor(descriptor)?),
        }
    }

    fn adopt(socket: OwnedFd) -> io::Result<Self> {
        let address: SockaddrStorage =
            getsockname(std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd()))?;
        if address.family() == Some(AddressFamily::Unix) {
            let listener = std::os::unix::net::UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            Ok(Self::Unix(UnixListener::from_std(listener)?))
        } else {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            Ok(Self::Tcp(TcpListener::from_std(listener)?))
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                // A process outside of this one's process namespace has no number in it.
                let peer = match stream.peer_cred()?.pid() {
                    Some(pid) if pid > 0 => Peer::Inside,
                    _ => Peer::Host,
                };
                Ok((Box::new(stream), peer))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Peer::Host))
            }
        }
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Outside of the sandbox, or nobody can tell.
    Host,
    /// A process beside this one.
    Inside,
}

/// The places of those inside: some are served, some wait.
struct InsidePlaces {
    served: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// Serves until `ended` resolves, then waits a while for what is under way.
pub(crate) async fn serve(app: Rc<App>, listener: Listener, ended: impl Future<Output = ()>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let inside = InsidePlaces {
        served: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        waiting: Arc::new(Semaphore::new(INSIDE_WAITING_MAX)),
    };
    let (ending, ending_seen) = watch::channel(false);
    let accepting = async {
        loop {
            // Before accepting, so that what cannot be served stays in the queue.
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let (stream, peer) = loop {
                match listener.accept().await {
                    Ok(accepted) => break accepted,
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            };
            let (app, ending) = (Rc::clone(&app), ending_seen.clone());
            if peer == Peer::Inside {
                drop(slot);
                serve_inside(app, &inside, stream, ending);
                continue;
            }
            let place = Rc::new(app.connections.admit(slot));
            tokio::task::spawn_local(async move {
                serve_connection(app, place, stream, ending).await;
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = ended => {}
    }
    drop(listener);
    ending.send_replace(true);
    drop(ending_seen);
    // Every connection holds a receiver until it is done.
    if tokio::time::timeout(SHUTDOWN_MAX, ending.closed())
        .await
        .is_err()
    {
        tracing::warn!("requests under way were given up");
    }
}

/// Serves a connection from inside when there is a place for it, and ends it when too many wait.
fn serve_inside(
    app: Rc<App>,
    places: &InsidePlaces,
    stream: Box<dyn Stream>,
    mut ending: watch::Receiver<bool>,
) {
    let served = Arc::clone(&places.served);
    if let Ok(slot) = Arc::clone(&served).try_acquire_owned() {
        let place = Rc::new(app.connections.admit(slot));
        tokio::task::spawn_local(serve_connection(app, place, stream, ending));
        return;
    }
    let Ok(waits) = Arc::clone(&places.waiting).try_acquire_owned() else {
        tracing::debug!("too many connections from inside: one is closed");
        return;
    };
    tokio::task::spawn_local(async move {
        let mut cut = app.connections.cut.subscribe();
        let slot = tokio::select! {
            slot = served.acquire_owned() => slot,
            _ = ending.wait_for(|ending| *ending) => return,
            _ = cut.changed() => return,
        };
        drop(waits);
        if let Ok(slot) = slot {
            let place = Rc::new(app.connections.admit(slot));
            serve_connection(app, place, stream, ending).await;
        }
    });
}

async fn serve_connection(
    app: Rc<App>,
    place: Rc<Place>,
    stream: Box<dyn Stream>,
    mut ending: watch::Receiver<bool>,
) {
    let own = Rc::clone(&place);
    let service = service_fn(move |request| {
        let (app, place) = (Rc::clone(&app), Rc::clone(&own));
        async move { Ok::<_, std::convert::Infallible>(routes::answer(app, place, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        _ = ending.wait_for(|ending| *ending) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = place.cut() => return,
    };
    if let Err(error) = served {
        // Probes and peers that go away are everyday things.
        tracing::debug!(%error, "a connection ended early");
    }
}
