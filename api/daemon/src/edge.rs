//! What every request goes through, whatever it asks for.
//!
//! In this order: it gets an id; who asks is found out; the handler runs, and a panic in it becomes an
//! answer; what is left of its body is read away; one audit line says who did what and how it ended. The
//! audit line has the path and never the query, a header or a body.

use std::time::Instant;

use axum::extract::MatchedPath;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::response::Response;
use uuid::Uuid;

use crate::app::App;
use crate::app::RequestId;
use crate::auth::Identity;
use crate::body::BodySlot;
use crate::status::ApiError;

/// The header that names a request.
const REQUEST_ID: &str = "x-request-id";

/// Paths that say nothing but whether the daemon is there.
const PUBLIC: &[&str] = &["/healthz", "/readyz"];

/// The path that is public where only this machine can reach it.
const METRICS: &str = "/metrics";

/// The middleware around all routes.
pub(crate) async fn edge(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or("unmatched".to_owned(), |path| path.as_str().to_owned());
    let body = BodySlot::of(&mut request);
    let identity = identify(&app, &path, request.headers());
    let known = identity.as_ref().ok().cloned().flatten();
    let mut response = match identity {
        Ok(identity) => {
            request.extensions_mut().insert(RequestId(id));
            request.extensions_mut().insert(body.clone());
            if let Some(identity) = identity {
                request.extensions_mut().insert(identity);
            }
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    body.drain().await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status().as_u16();
    app.metrics()
        .request(&route, &method, status, started.elapsed());
    let (actor, role) = known.map_or(("-".to_owned(), "-"), |identity| {
        (identity.actor, identity.role.as_str())
    });
    let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::info!(
        target: "fluxvmd::audit",
        actor, role, %method, path, status, request = %id, duration_ms, "request"
    );
    response
}

/// Who asks; `None` where nobody needs to say.
fn identify(app: &App, path: &str, headers: &HeaderMap) -> Result<Option<Identity>, ApiError> {
    let public = PUBLIC.contains(&path) || (path == METRICS && app.metrics_are_public());
    if public {
        return Ok(None);
    }
    Ok(Some(app.auth().identify(headers)?))
}

/// The caller's own id when it is a UUID, so that it can stand in the ledger; else a new one.
fn request_id(headers: &HeaderMap) -> Uuid {
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    let given = given
        .and_then(|text| Uuid::try_parse(text).ok())
        .filter(|id| !id.is_nil());
    given.unwrap_or_else(Uuid::now_v7)
}

/// The answer to a panic in a handler. The details go to the log.
pub(crate) fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = text, "a handler panicked");
    ApiError::internal().into_response()
}
