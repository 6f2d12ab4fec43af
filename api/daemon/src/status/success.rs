//! Successes, and the shapes that they go out in.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_projections::SessionId;

/// The content type of every answer that is one JSON value.
pub(crate) const JSON: &str = "application/json";

/// What a successful command amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Success {
    /// It is in the body.
    Done,
    /// Something new is in the body.
    Created,
}

impl Success {
    /// The number, as it is kept for an idempotency key.
    pub(crate) fn as_u16(self) -> u16 {
        self.status().as_u16()
    }

    fn status(self) -> StatusCode {
        match self {
            Self::Done => StatusCode::OK,
            Self::Created => StatusCode::CREATED,
        }
    }
}

/// A successful answer of one content type.
pub(crate) fn answer(success: Success, content_type: &str, body: Body) -> Response {
    typed(success.status(), content_type, body)
}

/// An answer that is kept for an idempotency key.
pub(crate) fn kept(status: u16, content_type: &str, body: Bytes) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    typed(status, content_type, body.into())
}

/// The answer to a request that was done before under the same key.
pub(crate) fn marked_replayed(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

/// Nothing to say, and it is done.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// An answer about a session, with the revision that `If-Match` takes.
pub(crate) fn at_revision(mut response: Response, revision: u64) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// An answer with a secret in it, which nobody on the way may keep.
pub(crate) fn not_stored(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A session that was made, with where it is.
pub(crate) fn located(mut response: Response, id: SessionId) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("/v1/agents/sessions/{id}")) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    response
}

/// An answer of one status and content type.
pub(super) fn typed(status: StatusCode, content_type: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Ok(value) = HeaderValue::from_str(content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    response
}
