//! `GET …/trajectory`: what happened in a session, as one numbered list, written as it is read.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::CommandError;
use fluxvm_commands::EventPages;
use fluxvm_commands::EventsQuery;
use fluxvm_eventstore::RecordedEvent;
use serde_json::Map;
use serde_json::Value;

use super::no_parameters;
use crate::app::Admin;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::session_view;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn trajectory(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let session = engine.session(&caller, id).await?;
    let mut pages = engine.events(&caller, id, EventsQuery::default())?;
    // Whatever keeps the ledger from being read shows in the status, not in the middle of an answer.
    let page = pages.next().await?;
    let list = Steps {
        pages,
        opening: Some(session_view::to_json(&session)),
        page,
        written: 0,
        done: false,
    };
    let chunks = futures_util::stream::try_unfold(list, Steps::next_chunk);
    let body = Body::from_stream(chunks);
    Ok(status::answer(Success::Done, JSON, body))
}

/// Writes the steps a page at a time. A page that cannot be read breaks the answer off.
struct Steps {
    pages: EventPages,
    /// The session, until it is written.
    opening: Option<Bytes>,
    page: Option<Vec<Arc<RecordedEvent>>>,
    written: u64,
    done: bool,
}

impl Steps {
    async fn next_chunk(mut self) -> Result<Option<(Bytes, Self)>, CommandError> {
        if self.done {
            return Ok(None);
        }
        let mut chunk = Vec::new();
        if let Some(session) = self.opening.take() {
            chunk.extend_from_slice(b"{\"session\":");
            chunk.extend_from_slice(&session);
            chunk.extend_from_slice(b",\"steps\":[");
        }
        match self.page.take() {
            Some(events) => {
                for event in &events {
                    if self.written > 0 {
                        chunk.push(b',');
                    }
                    self.written += 1;
                    chunk.extend_from_slice(step(self.written, event).to_string().as_bytes());
                }
                self.page = self.pages.next().await?;
            }
            None => {
                chunk.extend_from_slice(b"]}");
                self.done = true;
            }
        }
        Ok(Some((chunk.into(), self)))
    }
}

/// What an event says, with its number, its time and its kind beside it. These win over fields of the same
/// name.
fn step(number: u64, event: &RecordedEvent) -> Value {
    let header = &event.header;
    let said = event
        .payload_bytes()
        .and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(bytes).ok());
    let mut step = said.unwrap_or_default();
    let own = [
        ("type", Value::from("step")),
        ("n", Value::from(number)),
        ("ts", Value::from(header.recorded_at.to_rfc3339())),
        ("source", Value::from("ledger")),
        ("kind", Value::from(header.kind.as_str())),
        ("seq", Value::from(header.seq.get())),
    ];
    for (key, value) in own {
        step.insert(key.to_owned(), value);
    }
    if event.payload_bytes().is_none() {
        step.insert("redacted".to_owned(), Value::Bool(true));
    }
    Value::Object(step)
}
