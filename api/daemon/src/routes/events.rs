//! `GET …/events`: the whole history, written as it is read.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::CommandError;
use fluxvm_commands::EventPages;
use fluxvm_commands::EventsQuery;
use fluxvm_eventstore::RecordedEvent;

use crate::app::Admin;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::event_view::write_event;
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
    let mut pages = engine.events(&caller, id, query)?;
    // Whatever keeps the ledger from being read shows in the status, not in the middle of an answer.
    let page = pages.next().await?;
    let list = List {
        pages,
        state: page.map_or(State::End, State::Page),
        is_first: true,
    };
    let chunks = futures_util::stream::try_unfold(list, List::next_chunk);
    Ok(status::answer(
        Success::Done,
        JSON,
        Body::from_stream(chunks),
    ))
}

/// Writes the list a page at a time, so that a long history is never whole in memory. A page that
/// cannot be read breaks the answer off.
struct List {
    pages: EventPages,
    state: State,
    is_first: bool,
}

enum State {
    Page(Vec<Arc<RecordedEvent>>),
    End,
    Done,
}

impl List {
    async fn next_chunk(mut self) -> Result<Option<(Bytes, Self)>, CommandError> {
        let mut chunk = Vec::new();
        if self.is_first {
            chunk.extend_from_slice(b"{\"ledger\":[");
        }
        match std::mem::replace(&mut self.state, State::Done) {
            State::Page(events) => {
                for event in &events {
                    if !std::mem::take(&mut self.is_first) {
                        chunk.push(b',');
                    }
                    write_event(&mut chunk, event);
                }
                self.state = self.pages.next().await?.map_or(State::End, State::Page);
            }
            // The contract has a list of the hypervisor's events too; this engine has no such.
            State::End => chunk.extend_from_slice(b"],\"vm_events\":[]}"),
            State::Done => return Ok(None),
        }
        Ok(Some((chunk.into(), self)))
    }
}
