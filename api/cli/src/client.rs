//! HTTP to the daemon. Answers stay `serde_json::Value`, so that `--json` prints every key the
//! daemon sent, known to us or not. Only loopback http is spoken; proxies of the environment are
//! never used, since a token must not pass through one.

use std::io;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use serde_json::Value;
use ureq::Agent;
use ureq::Timeout;
use ureq::http::Request;
use ureq::http::Response;

use crate::discover::Endpoint;
use crate::duplex;
use crate::duplex::Failure;
use crate::duplex::Outgoing;
use crate::error::CliError;

/// A connection on this machine is there at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a call that runs no command of the user.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for an answer that a program in the sandbox has to find out: a digest of the largest file.
const SLOW_ANSWER_TIMEOUT: Duration = Duration::from_secs(360);
/// Largest JSON answer read into memory: two streams of 16 MiB of output, escaped and in base64,
/// stay below it.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Who we say we are.
const USER_AGENT: &str = concat!("fluxctl/", env!("CARGO_PKG_VERSION"));
/// Largest text read: a checkpoint with its signatures, or a proof.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// Largest error body read: its message is for a terminal.
const ERROR_BYTES_MAX: u64 = 64 * 1024;

/// How long to wait for an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// The daemon answers from what it knows.
    Normal,
    /// The answer comes when a command of the user ends, or people have decided on one.
    AtMost(Duration),
    /// No limit: a whole replay, a stream.
    Endless,
}

impl Patience {
    /// For the start of a command that people may have to decide on first.
    pub(crate) fn with_approval(wait_seconds: Option<u64>) -> Self {
        let wait = Duration::from_secs(wait_seconds.unwrap_or(0));
        Self::AtMost(ANSWER_TIMEOUT.saturating_add(wait))
    }

    fn limit(self) -> Option<Duration> {
        match self {
            Self::Normal => Some(ANSWER_TIMEOUT),
            Self::AtMost(limit) => Some(limit),
            Self::Endless => None,
        }
    }
}

/// A client of one daemon.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    endpoint: Endpoint,
}

impl Client {
    /// A client of the daemon at this endpoint. Nothing is connected yet.
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .user_agent(USER_AGENT)
            .build();
        Self {
            agent: config.new_agent(),
            endpoint,
        }
    }

    /// GET, answered with JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value, CliError> {
        let response = self.send("GET", path, &[], None, Patience::Normal)?;
        read_json("GET", path, response)
    }

    /// GET, answered with JSON that a program in the sandbox has to find out first.
    pub(crate) fn get_slowly(&self, path: &str) -> Result<Value, CliError> {
        let patience = Patience::AtMost(SLOW_ANSWER_TIMEOUT);
        let response = self.send("GET", path, &[], None, patience)?;
        read_json("GET", path, response)
    }

    /// GET, answered with JSON that takes as long as the caller knows.
    pub(crate) fn get_within(&self, path: &str, patience: Patience) -> Result<Value, CliError> {
        let response = self.send("GET", path, &[], None, patience)?;
        read_json("GET", path, response)
    }

    /// PUT of JSON, answered with JSON.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        let response = self.send("PUT", path, &[], Some(body), Patience::Normal)?;
        read_json("PUT", path, response)
    }

    /// PUT of bytes, answered with JSON.
    pub(crate) fn put_bytes(&self, path: &str, bytes: &[u8]) -> Result<Value, CliError> {
        let kind = ("content-type", "application/octet-stream".to_owned());
        let response = self.send_bytes("PUT", path, &[kind], bytes.to_vec(), Patience::Normal)?;
        read_json("PUT", path, response)
    }

    /// GET, answered with text.
    pub(crate) fn get_text(&self, path: &str) -> Result<String, CliError> {
        let response = self.send("GET", path, &[], None, Patience::Normal)?;
        let body = response.into_body().into_with_config();
        body.limit(TEXT_BYTES_MAX)
            .read_to_string()
            .map_err(|error| CliError::Answer {
                method: "GET",
                path: path.to_owned(),
                reason: error.to_string(),
            })
    }

    /// POST of JSON, answered with JSON.
    pub(crate) fn post(
        &self,
        path: &str,
        body: &Value,
        patience: Patience,
    ) -> Result<Value, CliError> {
        let response = self.send("POST", path, &[], Some(body), patience)?;
        read_json("POST", path, response)
    }

    /// POST of JSON, answered with a body that is read as it comes.
    pub(crate) fn post_stream(
        &self,
        path: &str,
        body: &Value,
        patience: Patience,
    ) -> Result<impl Read + use<>, CliError> {
        let response = self.send("POST", path, &[], Some(body), patience)?;
        Ok(unlimited(response))
    }

    /// POST of bytes of any number as they come, answered with JSON that may come before their end.
    pub(crate) fn post_while_sending(
        &self,
        path: &str,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
        patience: Patience,
    ) -> Result<Value, CliError> {
        let mut headers = vec![("user-agent", USER_AGENT.to_owned())];
        if let Some(token) = &self.endpoint.token {
            headers.push(("authorization", format!("Bearer {token}")));
        }
        let url = &self.endpoint.url;
        let request = Outgoing {
            authority: url.strip_prefix("http://").unwrap_or(url),
            path,
            headers,
            connect_time_max: CONNECT_TIMEOUT,
            time_max: patience.limit(),
            answer_bytes_max: usize::try_from(ANSWER_BYTES_MAX).unwrap_or(usize::MAX),
        };
        let answered = duplex::post(&request, body);
        let (status, bytes) = answered.map_err(|failure| match (failure, patience.limit()) {
            (Failure::Late, Some(waited)) => CliError::Late {
                method: "POST",
                path: path.to_owned(),
                waited,
            },
            (failure, _) => CliError::Unreachable {
                url: url.clone(),
                reason: failure.to_string(),
            },
        })?;
        if !(200..300).contains(&status) {
            let text = String::from_utf8_lossy(&bytes);
            return Err(api_error("POST", path, status, &text, None));
        }
        serde_json::from_slice(&bytes).map_err(|error| CliError::Answer {
            method: "POST",
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    /// DELETE, answered with JSON.
    pub(crate) fn delete_answered(&self, path: &str) -> Result<Value, CliError> {
        let response = self.send("DELETE", path, &[], None, Patience::Normal)?;
        read_json("DELETE", path, response)
    }

    /// DELETE, answered with nothing.
    pub(crate) fn delete(&self, path: &str) -> Result<(), CliError> {
        self.send("DELETE", path, &[], None, Patience::Normal)
            .map(drop)
    }

    /// GET, answered with a body that is read as it comes.
    pub(crate) fn stream(
        &self,
        path: &str,
        headers: &[(&str, String)],
    ) -> Result<impl Read + use<>, CliError> {
        let response = self.send("GET", path, headers, None, Patience::Endless)?;
        Ok(unlimited(response))
    }

    fn head(&self, method: &'static str, path: &str) -> ureq::http::request::Builder {
        let builder = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.url));
        match &self.endpoint.token {
            Some(token) => builder.header("authorization", format!("Bearer {token}")),
            None => builder,
        }
    }

    fn send(
        &self,
        method: &'static str,
        path: &str,
        headers: &[(&str, String)],
        body: Option<&Value>,
        patience: Patience,
    ) -> Result<Response<ureq::Body>, CliError> {
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("content-type", "application/json".to_owned()));
        }
        let bytes = body.map(Value::to_string).unwrap_or_default();
        self.send_bytes(method, path, &headers, bytes.into_bytes(), patience)
    }

    fn send_bytes(
        &self,
        method: &'static str,
        path: &str,
        headers: &[(&str, String)],
        bytes: Vec<u8>,
        patience: Patience,
    ) -> Result<Response<ureq::Body>, CliError> {
        let mut builder = self.head(method, path);
        for (name, value) in headers {
            builder = builder.header(*name, value);
        }
        let request = builder
            .body(bytes)
            .map_err(|error| CliError::Usage(error.to_string()))?;
        let answer_timeout = patience.limit();
        let request = self
            .agent
            .configure_request(request)
            .timeout_recv_response(answer_timeout)
            .allow_non_standard_methods(true)
            .build();
        self.answered(method, path, answer_timeout, self.agent.run(request))
    }

    fn answered(
        &self,
        method: &'static str,
        path: &str,
        answer_timeout: Option<Duration>,
        response: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response<ureq::Body>, CliError> {
        let response = response.map_err(|error| match (error, answer_timeout) {
            (ureq::Error::Timeout(Timeout::RecvResponse), Some(waited)) => CliError::Late {
                method,
                path: path.to_owned(),
                waited,
            },
            (error, _) => self.unreachable(&error),
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(method, path, response))
    }

    fn unreachable(&self, error: &ureq::Error) -> CliError {
        CliError::Unreachable {
            url: self.endpoint.url.clone(),
            reason: error.to_string(),
        }
    }
}

/// A body as it comes, of any length.
fn unlimited(response: Response<ureq::Body>) -> impl Read + use<> {
    let body = response.into_body().into_with_config();
    body.limit(u64::MAX).reader()
}

fn read_json(
    method: &'static str,
    path: &str,
    response: Response<ureq::Body>,
) -> Result<Value, CliError> {
    let wrong = |reason: String| CliError::Answer {
        method,
        path: path.to_owned(),
        reason,
    };
    let bytes = response
        .into_body()
        .into_with_config()
        .limit(ANSWER_BYTES_MAX)
        .read_to_vec()
        .map_err(|error| wrong(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))
}

fn refusal(method: &'static str, path: &str, response: Response<ureq::Body>) -> CliError {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let body = response
        .into_body()
        .into_with_config()
        .limit(ERROR_BYTES_MAX)
        .lossy_utf8(true);
    let text = body.read_to_string().unwrap_or_default();
    api_error(method, path, status, &text, retry_after)
}

/// The daemon's error body is `{"error": …, "code": …}`; whatever else answers (a stray server on
/// that port) is quoted by its first line.
fn api_error(
    method: &'static str,
    path: &str,
    status: u16,
    text: &str,
    retry_after: Option<Duration>,
) -> CliError {
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    let string = |key: &str| json.get(key).and_then(Value::as_str).map(str::to_owned);
    let message = string("error")
        .or_else(|| text.lines().next().map(str::to_owned))
        .unwrap_or_else(|| "no reason given".to_owned());
    CliError::Api {
        method,
        path: path.to_owned(),
        status,
        message,
        code: string("code"),
        retry_after,
    }
}

/// `path?name=value&…` with the values escaped; absent values are left out.
pub(crate) fn with_query(path: &str, pairs: &[(&str, Option<String>)]) -> String {
    let mut url = path.to_owned();
    let mut mark = '?';
    for (name, value) in pairs {
        let Some(value) = value else { continue };
        url.push(mark);
        url.push_str(name);
        url.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                url.push(char::from(byte));
            } else {
                url.push_str(&format!("%{byte:02X}"));
            }
        }
        mark = '&';
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_escaped_and_absent_ones_left_out() {
        let pairs = [
            ("since", Some("10:00+02".to_owned())),
            ("after", None),
            ("n", Some("7".to_owned())),
        ];
        assert_eq!(with_query("/e", &pairs), "/e?since=10%3A00%2B02&n=7");
        assert_eq!(with_query("/e", &[]), "/e");
    }

    #[test]
    fn a_port_where_nobody_listens_is_unreachable() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        drop(listener);
        let error = Client::new(Endpoint { url, token: None })
            .get("/v1/x")
            .expect_err("refused");
        assert_eq!(error.exit_code(), crate::error::EXIT_UNREACHABLE);
    }
}
