//! One call: what is asked, and what bodies and errors become.

use std::time::Duration;

use agentd_protocol::AgentToken;
use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::Limited;
use hyper::Method;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use serde::Serialize;

use crate::ClientError;

/// Whether a request may be repeated when it is unknown whether the first one arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Harmless,
    Never,
}

pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<Bytes>,
    pub(crate) repeat: Repeat,
    pub(crate) timeout: Duration,
    /// Bytes of the answer that are read. A guest may be hostile, and what it sends is held in memory.
    pub(crate) answer_bytes_max: usize,
}

impl Call {
    /// The same call, with an answer of at most so many bytes.
    pub(crate) fn answered_within(mut self, bytes_max: usize) -> Self {
        self.answer_bytes_max = bytes_max;
        self
    }

    /// The same call with another time limit.
    pub(crate) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// The header that carries a token. One that no header can carry can match no guest's either: such
/// a client is refused by the guest rather than here.
pub(crate) fn bearer(token: &AgentToken) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

pub(crate) fn encode(body: &impl Serialize) -> Result<Bytes, ClientError> {
    let encoded = serde_json::to_vec(body);
    encoded
        .map(Bytes::from)
        .map_err(|error| ClientError::Protocol(error.to_string()))
}

pub(crate) async fn collect(body: Incoming, cap_bytes: usize) -> Result<Bytes, ClientError> {
    match Limited::new(body, cap_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(ClientError::Protocol(
            format!("an answer is longer than {cap_bytes} bytes"),
        )),
        Err(_) => Err(ClientError::Disconnected),
    }
}

pub(crate) fn transport_error(error: &hyper::Error) -> ClientError {
    if error.is_parse() {
        ClientError::Protocol(error.to_string())
    } else {
        ClientError::Disconnected
    }
}
