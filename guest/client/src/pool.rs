//! Connections to one guest: made on demand, kept for a moment, never trusted to be alive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::ClientError;
use crate::Connect;
use crate::body::RequestBody;

/// Idle connections kept. A guest serves 128 in all.
const IDLE_CONNECTIONS_MAX: usize = 8;

/// How long an idle connection is kept. The daemon closes one after 5 s without a request, so a
/// younger one is almost surely alive.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Bytes that one connection buffers while it reads.
const READ_BUFFER_BYTES: usize = 512 * 1024;

/// A connection ready for one request.
pub(crate) type Sender = SendRequest<RequestBody>;

struct Idle {
    sender: Sender,
    since: Instant,
}

/// The idle connections and the way to new ones.
pub(crate) struct Pool {
    connector: Arc<dyn Connect>,
    idle: Mutex<VecDeque<Idle>>,
    /// How often all connections were cut.
    cuts: watch::Sender<u64>,
    /// How many wait for the guest to be silent; nobody else dials meanwhile.
    silencers: watch::Sender<usize>,
}

impl Pool {
    pub(crate) fn new(connector: Arc<dyn Connect>) -> Self {
        Self {
            connector,
            idle: Mutex::default(),
            cuts: watch::Sender::default(),
            silencers: watch::Sender::default(),
        }
    }

    /// Holds back every new connection until the answer is dropped.
    pub(crate) fn silence(self: &Arc<Self>) -> Silence {
        self.silencers.send_modify(|silencers| *silencers += 1);
        Silence(Arc::clone(self))
    }

    /// Forgets the connections that nobody uses.
    pub(crate) fn forget_idle(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.clear();
    }

    /// Ends every connection, whatever it is doing.
    pub(crate) fn cut(&self) {
        self.forget_idle();
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The youngest idle connection that still looks alive.
    pub(crate) fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(candidate) = idle.pop_back() {
            if candidate.since.elapsed() > IDLE_MAX {
                // All others are older still.
                idle.clear();
                return None;
            }
            if candidate.sender.is_ready() {
                return Some(candidate.sender);
            }
        }
        None
    }

    /// A fresh connection, as soon as the guest may be spoken to.
    pub(crate) async fn dial(&self) -> Result<Sender, ClientError> {
        let mut silencers = self.silencers.subscribe();
        let _ = silencers.wait_for(|silencers| *silencers == 0).await;
        Ok(self.dial_now().await?.0)
    }

    /// A fresh connection, even to a guest that is to be silent; and what resolves at its end.
    pub(crate) async fn dial_now(&self) -> Result<(Sender, JoinHandle<()>), ClientError> {
        let mut cuts = self.cuts.subscribe();
        let stream = self
            .connector
            .connect()
            .await
            .map_err(ClientError::Unreachable)?;
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(READ_BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ClientError::Protocol(error.to_string()))?;
        let ended = tokio::spawn(async move {
            // How a connection ends is told to whoever waits for its answer.
            tokio::select! {
                _ = connection => {}
                _ = cuts.changed() => {}
            }
        });
        Ok((sender, ended))
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) async fn give_back(&self, mut sender: Sender) {
        if sender.ready().await.is_err() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(Idle {
            sender,
            since: Instant::now(),
        });
        while idle.len() > IDLE_CONNECTIONS_MAX {
            idle.pop_front();
        }
    }
}

/// Nobody dials while this lives.
pub(crate) struct Silence(Arc<Pool>);

impl Drop for Silence {
    fn drop(&mut self) {
        self.0
            .silencers
            .send_modify(|silencers| *silencers = silencers.saturating_sub(1));
    }
}
