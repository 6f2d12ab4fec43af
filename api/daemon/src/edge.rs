//! What every request goes through, whatever it asks for.
//!
//! In this order: it gets an id; who asks is found out; the handler runs, and a panic in it becomes an
//! answer; what is left of its body is read away beside the answer; one audit line says who did what and how
//! it ended. The audit line has the path and never the query, a header or a body.

use std::time::Instant;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Method;
use axum::http::header;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::response::Response;
use fluxvm_commands::RefusedRequest;
use futures_util::StreamExt;
use uuid::Uuid;

use crate::app::App;
use crate::app::RequestId;
use crate::auth;
use crate::auth::AuthRefusal;
use crate::auth::Identity;
use crate::body::BodySlot;
use crate::lifecycle::Stage;
use crate::limits::PATH_CHARS_RECORDED_MAX;
use crate::scope::Scope;
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
    let scope = known.as_ref().and_then(|identity| identity.scope.clone());
    let let_in = match &known {
        Some(identity) => admit(&app, identity, &method, &path, &route).await,
        None => Ok(()),
    };
    let mut response = match identity.and_then(|identity| let_in.map(|()| identity)) {
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
    if let Some(scope) = scope {
        response = until_revoked(&app, scope, response);
    }
    read_away(&app, body);
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

/// Reads away what nobody wanted of a body, while the answer goes out.
fn read_away(app: &App, body: BodySlot) {
    let app = app.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = body.drain() => {}
            () = app.lifecycle().reached(Stage::Stopping) => {}
        }
    });
}

/// Who asks; `None` where nobody needs to say.
fn identify(app: &App, path: &str, headers: &HeaderMap) -> Result<Option<Identity>, ApiError> {
    let public = PUBLIC.contains(&path) || (path == METRICS && app.metrics_are_public());
    if public {
        return Ok(None);
    }
    // A session token is one everywhere, also where nobody needs a token.
    if let Some(secret) = auth::session_secret(headers) {
        let live = app.engine()?.live_token(secret);
        return Ok(Some(Identity::of_token(live.ok_or(AuthRefusal::Unknown)?)));
    }
    Ok(Some(app.auth().identify(headers)?))
}

/// Whether this caller may ask now, and ask this. What a session token is not for is recorded.
async fn admit(
    app: &App,
    identity: &Identity,
    method: &Method,
    path: &str,
    route: &str,
) -> Result<(), ApiError> {
    if let Some(rate) = app.rate() {
        let taken = rate.take(&identity.actor, Instant::now());
        taken.map_err(ApiError::rate_limited)?;
    }
    let Some(scope) = &identity.scope else {
        return Ok(());
    };
    let Err(reason) = scope.allows(method, path, route) else {
        return Ok(());
    };
    let refused = RefusedRequest {
        method: method.to_string(),
        path: path.chars().take(PATH_CHARS_RECORDED_MAX).collect(),
        reason: reason.clone(),
    };
    let engine = app.engine()?;
    let recorded = engine.record_token_refusal(scope.session, scope.token, refused);
    if let Err(error) = recorded.await {
        tracing::error!(%error, "the refusal of a session token was not recorded");
    }
    Err(ApiError::out_of_scope(reason))
}

/// Ends a stream when the token that opened it can no longer be used.
fn until_revoked(app: &App, scope: Scope, response: Response) -> Response {
    let streams = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind == "text/event-stream");
    let Ok(engine) = app.engine() else {
        return response;
    };
    if !streams {
        return response;
    }
    let ended = async move { engine.token_ended(scope.session, scope.token).await };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
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
