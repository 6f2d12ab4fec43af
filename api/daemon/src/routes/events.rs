//! `GET …/events`: the whole history, written as it is read.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::EventsQuery;
use fluxvm_eventstore::RecordedEvent;

use crate::app::Admin;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::event_view::write_event;
use crate::limits::CHUNK_BYTES;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn events(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["since", "after"])?;
    let query = EventsQuery {
        after: parameters.position("after")?,
        since: parameters.time("since")?,
    };
    let events = engine.events(&caller, id, query).await?;
    let chunks = Chunks {
        events: events.into_iter(),
        state: ListState::Start,
    };
    let body = Body::from_stream(futures_util::stream::iter(
        chunks.map(Ok::<_, std::convert::Infallible>),
    ));
    Ok(status::answer(Success::Done, JSON, body))
}

/// Writes the list in chunks, so that the JSON of a long history is never whole in memory.
struct Chunks {
    events: std::vec::IntoIter<Arc<RecordedEvent>>,
    state: ListState,
}

#[derive(PartialEq, Eq)]
enum ListState {
    Start,
    Middle,
    Done,
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.state == ListState::Done {
            return None;
        }
        let mut chunk = Vec::new();
        let mut first = self.state == ListState::Start;
        if first {
            chunk.extend_from_slice(b"{\"ledger\":[");
        }
        self.state = ListState::Middle;
        while chunk.len() < CHUNK_BYTES {
            let Some(event) = self.events.next() else {
                // The contract has a list of the hypervisor's events too; this engine has no such.
                chunk.extend_from_slice(b"],\"vm_events\":[]}");
                self.state = ListState::Done;
                break;
            };
            if !first {
                chunk.push(b',');
            }
            first = false;
            write_event(&mut chunk, &event);
        }
        Some(chunk.into())
    }
}
