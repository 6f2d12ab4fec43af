//! `GET …/events/stream`: history first, then every event as soon as it is durable.
//!
//! Pushed, never polled: the stream waits for the ledger's own watermark. The id of each frame is the
//! event's place in the ledger, so that a client that comes back with `Last-Event-ID` misses nothing and
//! gets nothing twice. What is sent is pulled by the client's reading, so that a slow one costs a buffer
//! and not a queue.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Uri;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::Caller;
use fluxvm_commands::Clock;
use fluxvm_commands::Engine;
use fluxvm_commands::SystemClock;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::Subscription;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;
use futures_util::FutureExt;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::event_view::write_error_frame;
use crate::event_view::write_frame;
use crate::lifecycle::Stage;
use crate::limits::CHUNK_BYTES;
use crate::limits::STREAM_KEEP_ALIVE;
use crate::limits::STREAM_LAST_LOOK;
use crate::limits::STREAM_TIME_MAX;
use crate::query::Parameters;
use crate::query::read_position;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;

/// The header with which a client says where it was.
const LAST_EVENT_ID: &str = "last-event-id";

/// The content type.
const EVENT_STREAM: &str = "text/event-stream";

/// The first bytes: they send the head out at once, and tell how soon to come back.
const OPENING: &[u8] = b": events of this session\nretry: 1000\n\n";

const KEEP_ALIVE: &[u8] = b": still here\n\n";

pub(super) async fn stream(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["since", "after"])?;
    // Where the client was wins over where it first started: it comes back with the same URL.
    let resumed = last_event_id(&headers)?;
    let after = resumed.or(parameters.position("after")?).unwrap_or(0);
    let since = parameters.time("since")?.filter(|_| resumed.is_none());
    let session = engine.session(&caller, id).await?;
    if after > engine.ledger_info().head.position.get() {
        let name = if resumed.is_some() {
            "Last-Event-ID"
        } else {
            "after"
        };
        return Err(ApiError::invalid_parameter(
            name,
            "this ledger has no such event yet",
        ));
    }
    let permit = app.stream_permit()?;
    let follower = Follower {
        subscription: engine.follow(&caller, id, Position::new(after))?,
        since_ns: since
            .and_then(|time| time.timestamp_nanos_opt())
            .and_then(|ns| ns.try_into().ok()),
        delivered: None,
        deadline: Instant::now() + STREAM_TIME_MAX,
        expires: expiry(&session),
        next: Next::Open,
        app,
        engine,
        caller,
        id,
        _permit: permit,
    };
    let chunks = stream::unfold(follower, async |mut follower: Follower| {
        let chunk = follower.next_chunk().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), follower))
    });
    let mut response = status::answer(Success::Done, EVENT_STREAM, Body::from_stream(chunks));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer answers would undo the pushing.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default();
    read_position("Last-Event-ID", text).map(Some)
}

/// One client's place in one session's events.
struct Follower {
    app: App,
    engine: Engine,
    caller: Caller,
    id: SessionId,
    subscription: Subscription,
    /// Events recorded up to then are passed over.
    since_ns: Option<u64>,
    /// The version of the last event that went by.
    delivered: Option<u64>,
    deadline: Instant,
    /// When the session's time runs out, until then.
    expires: Option<Instant>,
    next: Next,
    _permit: OwnedSemaphorePermit,
}

/// What the next chunk is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The opening.
    Open,
    /// Events, and a look at whether the session ended once there are no more.
    Look,
    /// Events.
    Events,
    /// Nothing: the last frame is out.
    Nothing,
}

/// What ended the waiting.
enum Woken {
    Event(Option<Result<Arc<RecordedEvent>, ReadError>>),
    KeepAlive,
    Expiry,
    Deadline,
    Stopping,
}

impl Follower {
    async fn next_chunk(&mut self) -> Option<Bytes> {
        if self.next == Next::Nothing {
            return None;
        }
        if self.next == Next::Open {
            self.next = Next::Look;
            return Some(Bytes::from_static(OPENING));
        }
        let mut chunk = Vec::new();
        loop {
            if let Err(end) = self.take_ready(&mut chunk) {
                return Some(self.end(chunk, &end));
            }
            if self.next == Next::Look && chunk.len() < CHUNK_BYTES {
                match self.end_of_session().await {
                    Some(Ok(end)) => return Some(self.end(chunk, &end)),
                    Some(Err(event)) => {
                        self.write(&mut chunk, &event);
                        continue;
                    }
                    None => self.next = Next::Events,
                }
            }
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            match self.wait().await {
                Woken::Event(Some(Ok(event))) => self.write(&mut chunk, &event),
                Woken::Event(Some(Err(error))) => {
                    return Some(self.end(chunk, &unreadable(&error)));
                }
                Woken::Event(None) | Woken::Stopping => {
                    return Some(self.end(chunk, &ApiError::stopping()));
                }
                Woken::Deadline => return Some(self.end(chunk, &time_limit())),
                // Reading a session is what marks it expired when its time has come.
                Woken::Expiry => {
                    self.expires = None;
                    self.next = Next::Look;
                }
                Woken::KeepAlive => {
                    self.next = Next::Look;
                    chunk.extend_from_slice(KEEP_ALIVE);
                }
            }
        }
    }

    /// Takes what is there without waiting, up to one chunk.
    fn take_ready(&mut self, chunk: &mut Vec<u8>) -> Result<(), ApiError> {
        while chunk.len() < CHUNK_BYTES {
            match self.subscription.next().now_or_never() {
                Some(Some(Ok(event))) => self.write(chunk, &event),
                Some(Some(Err(error))) => return Err(unreadable(&error)),
                Some(None) => return Err(ApiError::stopping()),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn write(&mut self, chunk: &mut Vec<u8>, event: &RecordedEvent) {
        self.delivered = Some(event.header.version.get());
        if may_end_a_session(event.header.kind.as_str()) {
            self.next = Next::Look;
        }
        let recorded_ns = event.header.recorded_at.unix_ns();
        if self.since_ns.is_none_or(|since_ns| recorded_ns > since_ns) {
            write_frame(chunk, event);
        }
    }

    async fn wait(&mut self) -> Woken {
        let expires = self.expires;
        let expiry = async {
            match expires {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = self.subscription.next() => Woken::Event(event),
            () = self.app.lifecycle().reached(Stage::Stopping) => Woken::Stopping,
            () = expiry => Woken::Expiry,
            () = tokio::time::sleep_until(self.deadline) => Woken::Deadline,
            () = tokio::time::sleep(STREAM_KEEP_ALIVE) => Woken::KeepAlive,
        }
    }

    /// Why the stream ends, if its session has ended and its last entry is out. Instead of an end there
    /// may be one more entry, which the caller has to write.
    async fn end_of_session(&mut self) -> Option<Result<ApiError, Arc<RecordedEvent>>> {
        let session = match self.engine.session(&self.caller, self.id).await {
            Ok(session) => session,
            Err(error) => return Some(Ok(error.into())),
        };
        let end = end_of(&session)?;
        let last = session.version.get();
        match self.delivered {
            Some(delivered) if delivered >= last => Some(Ok(end)),
            // Its last entries are durable in a moment, and then they are pushed.
            Some(_) => None,
            // Resumed behind its last entry, or what seems to be it. The state can be ahead of what is
            // durable by one commit.
            None => match tokio::time::timeout(STREAM_LAST_LOOK, self.subscription.next()).await {
                Ok(Some(Ok(event))) => Some(Err(event)),
                Ok(Some(Err(error))) => Some(Ok(unreadable(&error))),
                Ok(None) | Err(_) => Some(Ok(end)),
            },
        }
    }

    fn end(&mut self, mut chunk: Vec<u8>, end: &ApiError) -> Bytes {
        self.next = Next::Nothing;
        write_error_frame(&mut chunk, &end.body());
        chunk.into()
    }
}

/// When the session's time runs out, if it has not yet.
fn expiry(session: &Session) -> Option<Instant> {
    let left = (session.expires_at? - SystemClock.now()).to_std().ok()?;
    // A time to live of many years is none for a stream of an hour.
    (left < STREAM_TIME_MAX).then(|| Instant::now() + left)
}

/// Why a stream of this session ends; `None` while more can come.
fn end_of(session: &Session) -> Option<ApiError> {
    let id = session.id;
    let end = |code, what: &str| Some(ApiError::stream_end(code, format!("session {id} {what}")));
    match session.status {
        SessionStatus::Creating | SessionStatus::Running => None,
        SessionStatus::Deleted => end("session_deleted", "was deleted"),
        // What it leaves is removed next, and that is an entry too.
        SessionStatus::Expired if !session.cleaned_up => None,
        SessionStatus::Expired => end("session_expired", "is expired: its time ran out"),
        SessionStatus::Gone => end("session_gone", "is gone: its sandbox ended"),
        SessionStatus::Failed => end("session_failed", "could not be made"),
    }
}

fn may_end_a_session(kind: &str) -> bool {
    matches!(
        kind,
        "session.delete"
            | "session.cleanup"
            | "session.expire"
            | "session.create.failed"
            | "sandbox.gone"
            | "lifecycle.interrupted"
    )
}

fn unreadable(error: &ReadError) -> ApiError {
    tracing::error!(%error, "an event stream broke off");
    ApiError::stream_end("ledger_unreadable", "the ledger could not be read")
}

fn time_limit() -> ApiError {
    ApiError::stream_end(
        "stream_time_limit",
        "an event stream lasts an hour; come back with Last-Event-ID",
    )
}
