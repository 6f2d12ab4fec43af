//! A request whose body goes out while its answer may come already.
//!
//! A command can end before it has read everything, and everything may never end. So the answer is listened
//! for while the body is sent: once it is there, what is left of the body does not matter.

use std::io;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::TryStreamExt;
use http_body_util::BodyExt;
use http_body_util::Limited;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// Bytes of our standard input that are read at once.
const READ_BYTES: usize = 128 * 1024;
/// Pieces that are read ahead of a slow reader.
const PIECES_AHEAD: usize = 4;

/// A request.
pub(crate) struct Outgoing<'a> {
    /// `host:port`.
    pub(crate) authority: &'a str,
    /// Path and query.
    pub(crate) path: &'a str,
    /// All headers but those of the body.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// How long a connection may take to come about.
    pub(crate) connect_time_max: Duration,
    /// How long everything may take.
    pub(crate) time_max: Option<Duration>,
    /// Bytes of the answer that are read.
    pub(crate) answer_bytes_max: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Nobody listens there, or the connection broke.
    #[error("{0}")]
    Broken(String),
    /// It did not come in time.
    #[error("it took too long")]
    Late,
}

/// The pieces of our standard input, as they come.
pub(crate) type Pieces = mpsc::Receiver<io::Result<Bytes>>;

/// Reads our standard input on a thread of its own, which ends with us: nothing interrupts a read.
pub(crate) fn read_stdin() -> Pieces {
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut buffer = vec![0; READ_BYTES];
            let piece = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => {
                    buffer.truncate(read);
                    Ok(Bytes::from(buffer))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = piece.is_err();
            if sender.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    pieces
}

/// Posts bytes as they come. Answers with the status and the body.
pub(crate) fn post(
    request: &Outgoing<'_>,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<(u16, Vec<u8>), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(broken)?;
    let exchange = exchange(request, body);
    let answer = runtime.block_on(async {
        match request.time_max {
            Some(limit) => {
                let in_time = tokio::time::timeout(limit, exchange).await;
                in_time.unwrap_or(Err(Failure::Late))
            }
            None => exchange.await,
        }
    });
    // What is still being sent is of no use to anybody.
    runtime.shutdown_background();
    answer
}

async fn exchange(
    request: &Outgoing<'_>,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<(u16, Vec<u8>), Failure> {
    let connecting = TcpStream::connect(request.authority);
    let connected = tokio::time::timeout(request.connect_time_max, connecting).await;
    let socket = connected.map_err(|_| Failure::Late)?.map_err(broken)?;
    socket.set_nodelay(true).map_err(broken)?;
    let shaken = http1::handshake(TokioIo::new(socket)).await;
    let (mut sender, connection) = shaken.map_err(broken)?;
    tokio::spawn(connection);
    let mut builder = hyper::Request::post(request.path)
        .header("host", request.authority)
        .header("content-type", "application/octet-stream");
    for (name, value) in &request.headers {
        builder = builder.header(*name, value);
    }
    let body = StreamBody::new(Box::pin(body.map_ok(Frame::data)));
    let response = sender
        .send_request(builder.body(body).map_err(broken)?)
        .await;
    let response = response.map_err(broken)?;
    let status = response.status().as_u16();
    let answer = Limited::new(response.into_body(), request.answer_bytes_max);
    let collected = answer.collect().await;
    let bytes = collected.map_err(|error| Failure::Broken(error.to_string()))?;
    Ok((status, bytes.to_bytes().to_vec()))
}

fn broken(error: impl std::error::Error) -> Failure {
    // What is behind an error of hyper says more than hyper does.
    match error.source() {
        Some(source) => Failure::Broken(format!("{error}: {source}")),
        None => Failure::Broken(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn an_answer_is_read_while_the_body_still_goes_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let authority = listener.local_addr().expect("an address").to_string();
        // It answers as soon as it is asked, reads no further, and closes.
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            let mut some = [0; 4096];
            let read = socket.read(&mut some).expect("a head");
            socket
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                .expect("answered");
            read
        });
        let request = Outgoing {
            authority: &authority,
            path: "/x",
            headers: Vec::new(),
            connect_time_max: Duration::from_secs(5),
            time_max: Some(Duration::from_secs(30)),
            answer_bytes_max: 64,
        };
        let endless = futures_util::stream::pending();
        let (status, body) = post(&request, endless).expect("an answer");
        assert_eq!((status, &body[..]), (200, &b"{}"[..]));
        assert!(server.join().expect("the server") > 0);
    }
}
