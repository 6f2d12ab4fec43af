//! The daemon's HTTP surface, one blocking request after the other.

use std::time::Duration;

use serde_json::Value;
use serde_json::json;
use ureq::http::HeaderMap;
use ureq::http::Request;
use ureq::http::Response;

use crate::exec::Exec;
use crate::sse::EventStream;

/// The path of all sessions.
pub const SESSIONS: &str = "/v1/agents/sessions";

/// How long an answer may take: longer than the longest command of any test.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

/// The largest answer that is read, in bytes: two full streams, escaped and in base64.
const ANSWER_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// A client with one token, or none.
#[derive(Clone, Debug)]
pub struct Api {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

/// An answer, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body as JSON, of an answer that must have this status.
    ///
    /// # Panics
    ///
    /// When it has another one.
    #[must_use]
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        if self.body.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }

    /// The stable code of an error that must have this status. Every error has the same shape.
    ///
    /// # Panics
    ///
    /// When it has another status, or another shape.
    #[must_use]
    pub fn error(&self, status: u16) -> String {
        let body = self.expect(status);
        assert!(
            body["error"].as_str().is_some_and(|text| !text.is_empty()),
            "{body}"
        );
        body["code"]
            .as_str()
            .unwrap_or_else(|| panic!("no code: {body}"))
            .to_owned()
    }
}

impl Api {
    /// A client of the daemon at this address.
    #[must_use]
    pub fn new(url: &str, token: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_recv_response(Some(ANSWER_TIME_MAX))
            .build();
        let token = token.map(str::to_owned);
        Self {
            agent: config.new_agent(),
            url: url.to_owned(),
            token,
        }
    }

    /// The same daemon with another token, or none.
    #[must_use]
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self::new(&self.url, token)
    }

    /// The daemon's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The token.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Sends any request; `Err` when no answer came.
    ///
    /// # Errors
    ///
    /// When the connection broke.
    pub fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        let mut response = self.response(method, path, headers, body)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// Sends any request.
    ///
    /// # Panics
    ///
    /// When no answer came.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_send(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// GET.
    #[must_use]
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], &[])
    }

    /// POST of JSON.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    /// DELETE.
    #[must_use]
    pub fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], &[])
    }

    /// Makes a session that has nothing special and answers with its id.
    #[must_use]
    pub fn create(&self) -> String {
        self.create_with(&json!({"agent": "tester"}))
    }

    /// Makes a session and answers with its id.
    ///
    /// # Panics
    ///
    /// When it is not made.
    #[must_use]
    pub fn create_with(&self, body: &Value) -> String {
        let record = self.post(SESSIONS, body).expect(201);
        record["id"]
            .as_str()
            .expect("a session has an id")
            .to_owned()
    }

    /// A session's record.
    #[must_use]
    pub fn session(&self, id: &str) -> Value {
        self.get(&format!("{SESSIONS}/{id}")).expect(200)
    }

    /// All sessions that are listed.
    ///
    /// # Panics
    ///
    /// When the answer is no list.
    #[must_use]
    pub fn sessions(&self) -> Vec<Value> {
        self.get(SESSIONS).expect(200)["items"]
            .as_array()
            .expect("a list")
            .clone()
    }

    /// Deletes a session, which must succeed.
    pub fn remove(&self, id: &str) {
        let answer = self.delete(&format!("{SESSIONS}/{id}"));
        assert!(answer.expect(204).is_null(), "204 has no body");
    }

    /// Runs a command, which must have an outcome.
    #[must_use]
    pub fn exec(&self, id: &str, command: &str) -> Exec {
        Exec::from_json(self.try_exec(id, &json!({"command": command})).expect(200))
    }

    /// Runs a command under a time limit, which must have an outcome.
    #[must_use]
    pub fn exec_within(&self, id: &str, seconds: f64, command: &str) -> Exec {
        let body = json!({"command": command, "timeout_seconds": seconds});
        Exec::from_json(self.try_exec(id, &body).expect(200))
    }

    /// Asks for a command to be run.
    #[must_use]
    pub fn try_exec(&self, id: &str, body: &Value) -> Answer {
        self.post(&format!("{SESSIONS}/{id}/exec"), body)
    }

    /// A session's events.
    ///
    /// # Panics
    ///
    /// When the answer holds no list.
    #[must_use]
    pub fn events(&self, id: &str) -> Vec<Value> {
        let answer = self.get(&format!("{SESSIONS}/{id}/events")).expect(200);
        answer["ledger"]
            .as_array()
            .expect("events are a list")
            .clone()
    }

    /// The kinds of a session's events, in order.
    #[must_use]
    pub fn kinds(&self, id: &str) -> Vec<String> {
        let kind = |event: &Value| event["kind"].as_str().unwrap_or_default().to_owned();
        self.events(id).iter().map(kind).collect()
    }

    /// The only event of this kind in a session.
    ///
    /// # Panics
    ///
    /// When there is none, or more than one.
    #[must_use]
    pub fn only_event(&self, id: &str, kind: &str) -> Value {
        let events = self.events(id);
        let mut found = events.iter().filter(|event| event["kind"] == kind);
        let first = found
            .next()
            .unwrap_or_else(|| panic!("no {kind} among {events:#?}"));
        assert!(
            found.next().is_none(),
            "more than one {kind} among {events:#?}"
        );
        first.clone()
    }

    /// The whole ledger as evidence.
    #[must_use]
    pub fn export_ledger(&self) -> Vec<u8> {
        let answer = self.get("/v1/ledger/export");
        assert_eq!(
            answer.status,
            200,
            "{}",
            String::from_utf8_lossy(&answer.body)
        );
        answer.body
    }

    /// A session's live events. `query` begins with `?` or is empty.
    ///
    /// # Panics
    ///
    /// When there is no stream.
    #[must_use]
    pub fn stream(&self, id: &str, query: &str, last_event_id: Option<u64>) -> EventStream {
        let path = format!("{SESSIONS}/{id}/events/stream{query}");
        let last = last_event_id.map(|last| last.to_string());
        let headers: Vec<(&str, &str)> = last
            .iter()
            .map(|last| ("last-event-id", last.as_str()))
            .collect();
        self.event_stream("GET", &path, &headers, &[])
    }

    /// A stream of events at any path, of a request that must be answered with one.
    ///
    /// # Panics
    ///
    /// When it is not.
    #[must_use]
    pub fn event_stream(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> EventStream {
        let response = self
            .response(method, path, headers, body)
            .expect("an event stream");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = response
            .into_body()
            .into_with_config()
            .limit(u64::MAX)
            .reader();
        EventStream::new(body)
    }

    fn response(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response<ureq::Body>, ureq::Error> {
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        let is_typed = headers.iter().any(|(name, _)| *name == "content-type");
        if !body.is_empty() && !is_typed {
            builder = builder.header("content-type", "application/json");
        }
        let request = builder.body(body).expect("a request");
        let request = self
            .agent
            .configure_request(request)
            .allow_non_standard_methods(true)
            .build();
        self.agent.run(request)
    }
}
