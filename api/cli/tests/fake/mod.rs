//! An HTTP server of a few lines: one request per connection, answered by a closure.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::net::TcpListener;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

/// What fluxctl sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Method and path.
    pub(crate) line: String,
    /// Headers, names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// The body.
    pub(crate) body: String,
}

impl Request {
    /// The header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn read(stream: &TcpStream) -> Option<Self> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.rsplit_once(' ')?.0.to_owned();
        let mut request = Self {
            line,
            headers: Vec::new(),
            body: String::new(),
        };
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(": ") else {
                break;
            };
            request
                .headers
                .push((name.to_lowercase(), value.to_owned()));
        }
        let length = request
            .header("content-length")
            .and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8(body).ok()?;
        Some(request)
    }
}

/// What the daemon says, byte for byte.
pub(crate) struct Answer(String);

impl Answer {
    /// A whole JSON body.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        Self(format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    /// A refusal for want of room.
    pub(crate) fn turned_away(seconds: u32) -> Self {
        let body = r#"{"error":"too many streams","code":"too_many"}"#;
        Self(format!(
            "HTTP/1.1 429 X\r\ncontent-type: application/json\r\nretry-after: {seconds}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    /// A body that ends with the connection.
    pub(crate) fn stream(body: &str) -> Self {
        Self(format!("HTTP/1.1 200 X\r\nconnection: close\r\n\r\n{body}"))
    }

    /// A chunked body without its last chunk.
    pub(crate) fn broken_off(body: &str) -> Self {
        Self(format!(
            "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
            body.len()
        ))
    }
}

/// The daemon.
pub(crate) struct FakeDaemon {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeDaemon {
    /// Listens on a free port and answers with `handler` until the test ends.
    pub(crate) fn new(handler: impl Fn(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let Some(request) = Request::read(&stream) else {
                    continue;
                };
                let Answer(bytes) = handler(&request);
                seen.lock().expect("no panic before").push(request);
                // A client that goes away early is what some tests are about.
                let _ = stream.write_all(bytes.as_bytes());
            }
        });
        Self { url, requests }
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic before").clone()
    }
}
