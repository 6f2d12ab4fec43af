//! `POST …/exec`: one command, answered when it ended.
//!
//! What it reads comes in one of two ways. A JSON body can hold it, within the limit of all JSON bodies.
//! A body of the content type `application/octet-stream` *is* what it reads, of any size and passed on as
//! it comes; the command then stands in the query.

use std::io;
use std::time::Duration;

use axum::extract::FromRequest;
use axum::extract::Request;
use axum::extract::State;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fluxvm_api_types::ExecRequest;
use fluxvm_api_types::Milliseconds;
use fluxvm_commands::Caller;
use fluxvm_commands::Engine;
use fluxvm_commands::Exec;
use fluxvm_commands::StdinSource;
use futures_util::stream;

use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::body::BodySlot;
use crate::body::is_bytes;
use crate::exec_body::ExecBody;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::limits::KEYED_STDIN_BYTES_MAX;
use crate::query::Parameters;
use crate::status::ApiError;

pub(super) async fn exec(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    asked: Asked,
) -> Result<Response, ApiError> {
    let (request, stdin, key) = asked.understood(&head, &caller).await?;
    let metrics = app.metrics().clone();
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.exec(&caller, id, request, stdin).await?;
        metrics.exec(Duration::from_millis(answer.outcome.duration_ms));
        Ok(Reply::Exec(id, Box::new(ExecBody::of(answer))))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

/// A request as it came.
pub(super) enum Asked {
    /// Everything is in a JSON body.
    Json(Box<ExecRequest>, Bytes),
    /// The body is what the command reads.
    Bytes(Box<ExecRequest>, BodySlot),
}

impl FromRequest<App> for Asked {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let slot = request.extensions().get::<BodySlot>().cloned();
        let slot = slot.unwrap_or_default();
        if is_bytes(request.headers()) {
            let asked = in_query(request.uri())?;
            return Ok(Self::Bytes(Box::new(asked), slot));
        }
        no_parameters(request.uri())?;
        let bytes = slot.read().await?;
        let asked = fluxvm_api_types::parse(&bytes)?;
        Ok(Self::Json(Box::new(asked), bytes))
    }
}

impl Asked {
    async fn understood(
        self,
        head: &Parts,
        caller: &Caller,
    ) -> Result<(Exec, Option<StdinSource>, Option<RequestKey>), ApiError> {
        match self {
            Self::Json(asked, bytes) => {
                let key = RequestKey::of(head, caller, &bytes)?;
                let (request, stdin) = understood(*asked)?;
                Ok((request, stdin.map(whole), key))
            }
            Self::Bytes(asked, slot) => {
                let (request, _) = understood(*asked)?;
                // Whether there is a key, before the body is touched.
                if RequestKey::of(head, caller, &[])?.is_none() {
                    return Ok((request, Some(Box::pin(slot.stream())), None));
                }
                let bytes = slot.read_up_to(KEYED_STDIN_BYTES_MAX).await?;
                // The command is part of what must be the same; it stands in the query.
                let query = head.uri.query().unwrap_or_default();
                let same = [query.as_bytes(), b"\n", &bytes].concat();
                let key = RequestKey::of(head, caller, &same)?;
                Ok((request, Some(whole(bytes)), key))
            }
        }
    }
}

/// The fields of a request that can stand in the query: all but what the command reads.
const IN_QUERY: [&str; 4] = [
    "command",
    "timeout_seconds",
    "approval_id",
    "approval_wait_seconds",
];

/// A request whose fields stand in the query.
fn in_query(uri: &Uri) -> Result<ExecRequest, ApiError> {
    let parameters = Parameters::read(uri, &IN_QUERY)?;
    let mut fields = serde_json::Map::new();
    for name in IN_QUERY {
        let Some(text) = parameters.text(name) else {
            continue;
        };
        let value = match name.ends_with("_seconds") {
            true => number(name, text)?.into(),
            false => text.into(),
        };
        fields.insert(name.to_owned(), value);
    }
    let body = serde_json::Value::Object(fields).to_string();
    Ok(fluxvm_api_types::parse(body.as_bytes())?)
}

fn number(name: &str, text: &str) -> Result<serde_json::Number, ApiError> {
    let number = serde_json::from_str(text);
    number.map_err(|_| ApiError::invalid_parameter(name, "must be a number"))
}

/// The request in the engine's words, and what the command reads.
pub(super) fn understood(request: ExecRequest) -> Result<(Exec, Option<Bytes>), ApiError> {
    let stdin = match (request.stdin, request.stdin_base64) {
        (None, None) => None,
        (Some(text), None) => Some(text.into()),
        (None, Some(encoded)) => Some(decoded("stdin_base64", &encoded)?),
        (Some(_), Some(_)) => {
            let message = "is there beside stdin; one of the two";
            return Err(ApiError::invalid_parameter("stdin_base64", message));
        }
    };
    let timeout_ms = request.timeout_seconds.map(Milliseconds::get);
    let exec = Exec {
        command: request.command,
        timeout_ms,
        approval_id: request.approval_id,
        approval_wait_seconds: request.approval_wait_seconds,
    };
    Ok((exec, stdin))
}

/// Bytes of a field in base64.
pub(super) fn decoded(field: &str, encoded: &str) -> Result<Bytes, ApiError> {
    let bytes = STANDARD.decode(encoded);
    let bytes = bytes.map_err(|_| ApiError::invalid_parameter(field, "must be standard base64"))?;
    Ok(bytes.into())
}

fn whole(bytes: Bytes) -> StdinSource {
    Box::pin(stream::iter([Ok::<_, io::Error>(bytes)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(body: &[u8]) -> Result<(Exec, Option<Bytes>), ApiError> {
        understood(fluxvm_api_types::parse(body).expect("known"))
    }

    #[test]
    fn a_command_reads_text_or_bytes_or_nothing() {
        let stdin = |body: &[u8]| parsed(body).map(|(_, stdin)| stdin);
        assert_eq!(stdin(br#"{"command":"cat"}"#).expect("none"), None);
        let text = stdin(br#"{"command":"cat","stdin":""}"#).expect("text");
        assert_eq!(text.as_deref(), Some(&b""[..]));
        let bytes = stdin(br#"{"command":"cat","stdin_base64":"/wA="}"#).expect("bytes");
        assert_eq!(bytes.as_deref(), Some(&b"\xff\x00"[..]));
        for bad in [
            &br#"{"command":"cat","stdin_base64":"?"}"#[..],
            br#"{"command":"cat","stdin":"a","stdin_base64":"AA=="}"#,
        ] {
            assert_eq!(stdin(bad).expect_err("refused").code(), "invalid_field");
        }
    }

    #[test]
    fn a_query_holds_every_field_but_what_is_read() {
        let read = |query: &str| in_query(&format!("/x?{query}").parse().expect("uri"));
        let asked = read("command=wc%20-c&timeout_seconds=1.5").expect("read");
        assert_eq!(asked.command, "wc -c");
        assert_eq!(asked.timeout_seconds.map(Milliseconds::get), Some(1500));
        let asked = read("command=a&approval_id=7f&approval_wait_seconds=9").expect("read");
        let approval = (asked.approval_id.as_deref(), asked.approval_wait_seconds);
        assert_eq!(approval, (Some("7f"), Some(9)));
        for (query, code) in [
            ("", "missing_field"),
            ("command=a&approval_wait_seconds=x", "invalid_field"),
            ("command=a&timeout_seconds=0", "invalid_field"),
            ("command=a&timeout_seconds=x", "invalid_field"),
            ("command=a&stdin=b", "unknown_field"),
        ] {
            assert_eq!(read(query).expect_err(query).code(), code);
        }
    }
}
