//! The routes, one file per noun. A handler reads a request, asks the engine, and writes the answer; it
//! decides nothing.

mod approvals;
mod blame;
mod changes;
mod checkpoints;
mod create;
mod evaluate;
mod events;
mod evidence;
mod exec;
mod export;
mod files;
mod git;
mod host;
mod job_input;
mod job_stream;
mod jobs;
mod redaction;
mod replay;
mod rewind;
mod sessions;
mod stream;
#[cfg(test)]
mod tests;
mod tokens;
mod trajectory;
mod uploads;

use axum::Router;
use axum::extract::FromRequest;
use axum::extract::Request;
use axum::http::Uri;
use axum::middleware;
use axum::routing::delete;
use axum::routing::get;
use axum::routing::post;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tower_http::catch_panic::CatchPanicLayer;

use crate::app::App;
use crate::body::BodySlot;
use crate::body::is_bytes;
use crate::edge;
use crate::query::Parameters;
use crate::status::ApiError;

/// All routes, with everything that surrounds them.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route(
            "/v1/agents/sessions",
            get(sessions::list).post(create::create),
        )
        .route(
            "/v1/agents/sessions/{id}",
            get(sessions::get).delete(sessions::delete),
        )
        .route("/v1/agents/sessions/{id}/exec", post(exec::exec))
        .route(
            "/v1/agents/sessions/{id}/exec/stream",
            post(job_stream::exec),
        )
        .route(
            "/v1/agents/sessions/{id}/jobs",
            get(jobs::list).post(jobs::start),
        )
        .route(
            "/v1/agents/sessions/{id}/jobs/{job}",
            get(jobs::get).delete(jobs::kill),
        )
        .route(
            "/v1/agents/sessions/{id}/jobs/{job}/stream",
            get(job_stream::follow),
        )
        .route(
            "/v1/agents/sessions/{id}/jobs/{job}/stdin",
            post(job_input::stdin),
        )
        .route("/v1/agents/sessions/{id}/replay", post(replay::replay))
        .merge(time_travel())
        .merge(outcomes())
        .route("/v1/agents/sessions/{id}/usage", post(sessions::usage))
        .route(
            "/v1/agents/sessions/{id}/tokens",
            get(tokens::list).post(tokens::mint),
        )
        .route(
            "/v1/agents/sessions/{id}/tokens/{token}",
            delete(tokens::revoke),
        )
        .route("/v1/agents/sessions/{id}/approvals", get(approvals::list))
        .route(
            "/v1/agents/sessions/{id}/approvals/{approval}/approve",
            post(approvals::approve),
        )
        .route(
            "/v1/agents/sessions/{id}/approvals/{approval}/deny",
            post(approvals::deny),
        )
        .route("/v1/agents/sessions/{id}/events", get(events::events))
        .route(
            "/v1/agents/sessions/{id}/events/stream",
            get(stream::stream),
        )
        .route("/v1/agents/sessions/{id}/export", get(export::session))
        .merge(files::routes())
        .merge(git::routes())
        .merge(uploads::routes())
        .route("/v1/ledger/info", get(host::ledger_info))
        .route("/v1/ledger/export", get(export::ledger))
        .route("/v1/ledger/events", get(evidence::events))
        .route("/v1/ledger/checkpoint", get(evidence::checkpoint))
        .route("/v1/ledger/proof/{seq}", get(evidence::proof))
        .route("/v1/ledger/consistency", get(evidence::consistency))
        .route("/v1/ledger/key", get(evidence::key))
        .route("/v1/ledger/rotate-key", post(evidence::rotate))
        .route("/v1/ledger/redact", post(redaction::redact))
        .route("/v1/ledger/shred", post(redaction::shred))
        .route("/v1/ledger/retention", post(redaction::retain))
        .route(
            "/v1/ledger/holds",
            get(redaction::list).post(redaction::place),
        )
        .route("/v1/ledger/holds/{seq}", delete(redaction::release))
        .route("/v1/capabilities", get(host::capabilities))
        .route("/healthz", get(host::healthz))
        .route("/readyz", get(host::readyz))
        .route("/metrics", get(host::metrics))
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .fallback(async |uri: Uri| ApiError::route_not_found(uri.path()))
        .layer(CatchPanicLayer::custom(edge::panicked))
        .layer(middleware::from_fn_with_state(app.clone(), edge::edge))
        .with_state(app)
}

/// States of the past: capturing them, going back to them, children of them.
fn time_travel() -> Router<App> {
    Router::new()
        .route(
            "/v1/agents/sessions/{id}/checkpoint",
            post(checkpoints::take),
        )
        .route(
            "/v1/agents/sessions/{id}/checkpoints",
            get(checkpoints::list),
        )
        .route(
            "/v1/agents/sessions/{id}/checkpoints/{tag}",
            delete(checkpoints::delete),
        )
        .route(
            "/v1/agents/sessions/{id}/restore",
            post(checkpoints::restore),
        )
        .route("/v1/agents/sessions/{id}/fork", post(checkpoints::fork))
        .route("/v1/agents/sessions/{id}/rewind", get(rewind::show))
        .route(
            "/v1/agents/sessions/{id}/rewind/config",
            post(rewind::configure),
        )
        .route("/v1/agents/sessions/{id}/rewind/pin", post(rewind::pin))
        .route("/v1/agents/sessions/{id}/rewind/undo", post(rewind::undo))
        .route("/v1/agents/sessions/{id}/rewind/redo", post(rewind::redo))
        .route(
            "/v1/agents/sessions/{id}/rewind/branch",
            post(rewind::branch),
        )
}

/// What came of sessions: differences, what they made, carrying it on.
fn outcomes() -> Router<App> {
    Router::new()
        .route(
            "/v1/agents/sessions/{id}/trajectory",
            get(trajectory::trajectory),
        )
        .route(
            "/v1/agents/sessions/{id}/artifacts",
            get(changes::artifacts),
        )
        .route("/v1/agents/sessions/{id}/diff", get(changes::diff))
        .route("/v1/agents/sessions/{id}/blame", get(blame::blame))
        .route("/v1/agents/sessions/{id}/promote", post(changes::promote))
        .route(
            "/v1/agents/sessions/{id}/evaluate",
            post(evaluate::evaluate),
        )
        .route("/v1/agents/sessions/{id}/rollout", post(evaluate::rollout))
        .route(
            "/v1/agents/sessions/{id}/rewind/bisect",
            post(changes::bisect),
        )
}

/// A body that was read strictly, whatever content type it claims: clients that post with curl claim
/// none or a wrong one. Only one that says that it is bytes is believed: it is no JSON.
pub(crate) struct StrictBody<T> {
    /// What it says.
    pub(crate) value: T,
    /// The bytes themselves, for the digest of an idempotent request.
    pub(crate) bytes: Bytes,
}

impl<T: DeserializeOwned> FromRequest<App> for StrictBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        if is_bytes(request.headers()) {
            return Err(ApiError::not_json());
        }
        let slot = request
            .extensions()
            .get::<BodySlot>()
            .cloned()
            .unwrap_or_default();
        let bytes = slot.read().await?;
        let value = fluxvm_api_types::parse(&bytes)?;
        Ok(Self { value, bytes })
    }
}

/// The same for a body in which everything is optional: it may be left out whole.
pub(crate) struct OptionalBody<T> {
    /// What it says.
    pub(crate) value: T,
    /// The bytes themselves, for the digest of an idempotent request.
    pub(crate) bytes: Bytes,
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        if is_bytes(request.headers()) {
            return Err(ApiError::not_json());
        }
        let slot = request.extensions().get::<BodySlot>().cloned();
        let bytes = slot.unwrap_or_default().read().await?;
        let value = match bytes.iter().all(u8::is_ascii_whitespace) {
            true => T::default(),
            false => fluxvm_api_types::parse(&bytes)?,
        };
        Ok(Self { value, bytes })
    }
}

/// For routes without parameters: any is a mistake that should not go unnoticed.
fn no_parameters(uri: &Uri) -> Result<(), ApiError> {
    Parameters::read(uri, &[]).map(drop)
}
