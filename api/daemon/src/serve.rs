//! Connections: how many, how slow, and how they end.
//!
//! Each client can take only so much: so many connections, so long for the head of a request, so long
//! without reading an answer. At the end, a connection closes after the answer that it is on.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio::time::Sleep;

use crate::app::App;
use crate::lifecycle::Stage;
use crate::limits::CONNECTIONS_MAX;
use crate::limits::HEAD_BYTES_MAX;
use crate::limits::HEAD_READ_TIME_MAX;
use crate::limits::HEADERS_MAX;
use crate::limits::STOP_FLUSH;
use crate::limits::STOP_GRACE;
use crate::limits::WRITE_STALL_TIME_MAX;

/// How long accepting rests after the system refused it, for want of memory or file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Serves until the daemon is told to stop, and then until every request was answered or the grace is
/// over.
pub(crate) async fn serve(listener: TcpListener, router: Router, app: App) {
    let graceful = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let stopping = app.lifecycle().reached(Stage::Stopping);
    tokio::pin!(stopping);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &permits) => accepted,
            () = &mut stopping => break,
        };
        let Some((stream, permit)) = accepted else {
            tokio::time::sleep(ACCEPT_REST).await;
            continue;
        };
        let connection = connection(stream, router.clone());
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            // An error here is the client's: it broke off, was too slow or spoke no HTTP.
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    let all_closed = graceful.shutdown();
    tokio::pin!(all_closed);
    if tokio::time::timeout(STOP_GRACE, &mut all_closed)
        .await
        .is_ok()
    {
        return;
    }
    app.lifecycle().advance(Stage::Abandoning);
    if tokio::time::timeout(STOP_FLUSH, all_closed).await.is_err() {
        tracing::warn!("connections were still open at the end and are cut");
    }
}

type Permit = tokio::sync::OwnedSemaphorePermit;

/// The next connection, once there is room for one; `None` when the system refused it.
async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<(TcpStream, Permit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // An event must leave when it is written, not when the next one is.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
            Some((stream, permit))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

fn connection(
    stream: TcpStream,
    router: Router,
) -> http1::Connection<TokioIo<Patient<TcpStream>>, TowerToHyperService<Router>> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_TIME_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(
            TokioIo::new(Patient::new(stream, WRITE_STALL_TIME_MAX)),
            TowerToHyperService::new(router),
        )
}

/// A stream whose writes may wait only so long. hyper bounds how slowly a client sends, not how slowly
/// it reads.
struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Runs from when a write first had to wait until one goes through.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            stalled: None,
        }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let deadline = Instant::now() + self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match Future::poll(stalled.as_mut(), context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watch(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_client_that_stops_reading_is_given_up_on() {
        let (server, mut client) = tokio::io::duplex(16);
        let mut server = Patient::new(server, Duration::from_millis(20));
        server.write_all(&[b'x'; 16]).await.expect("fits");
        let error = server.write_all(b"more").await.expect_err("stalled");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        client
            .read_exact(&mut [0; 16])
            .await
            .expect("what was written is there");
    }
}
