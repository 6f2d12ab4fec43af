//! What differs between states, what a session made, and carrying it to its parent.

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use fluxvm_api_types::BisectRequest;
use fluxvm_api_types::Milliseconds;
use fluxvm_api_types::PromoteRequest;
use fluxvm_commands::Bisect;
use fluxvm_commands::Caller;
use fluxvm_commands::DiffQuery;
use fluxvm_commands::Engine;
use fluxvm_commands::Promote;

use super::OptionalBody;
use super::StrictBody;
use super::host::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::auth::Identity;
use crate::changes_view;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::query::Parameters;
use crate::status::ApiError;
use crate::status::Success;

pub(super) async fn artifacts(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let work = async move { Ok(engine.artifacts(&caller, id).await?) };
    let answer = app.detached(work).await?;
    json(Success::Done, &changes_view::artifacts(answer))
}

pub(super) async fn diff(
    State(app): State<App>,
    Admin(caller): Admin,
    Extension(identity): Extension<Identity>,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["from", "to", "path"])?;
    let state = |name, otherwise: &str| parameters.text(name).unwrap_or(otherwise).to_owned();
    let query = DiffQuery {
        from: state("from", "baseline"),
        to: state("to", "now"),
        path: parameters.text("path").map(ToOwned::to_owned),
    };
    if let Some(scope) = &identity.scope {
        scope
            .reaches_only(query.sessions())
            .map_err(ApiError::out_of_scope)?;
    }
    let work = async move { Ok(engine.diff(&caller, id, query).await?) };
    let answer = app.detached(work).await?;
    json(Success::Done, &changes_view::diff(answer))
}

pub(super) async fn promote(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: OptionalBody<PromoteRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let asked = body.value;
    let request = Promote {
        dry_run: asked.dry_run.unwrap_or(false),
        plan_id: asked.plan_id,
        skip_conflicts: asked.skip_conflicts.unwrap_or(false),
        paths: asked.paths.unwrap_or_default(),
    };
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.promote(&caller, id, request).await?;
        Reply::json(Success::Done, id, &changes_view::promoted(&answer), None)
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

pub(super) async fn bisect(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<BisectRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let asked = body.value;
    let request = Bisect {
        test: asked.test,
        good: asked.good,
        bad: asked.bad,
        timeout_ms: asked.timeout_seconds.map(Milliseconds::get),
    };
    let work = async move { Ok(engine.bisect(&caller, id, request).await?) };
    let answer = app.detached(work).await?;
    json(Success::Done, &changes_view::bisected(&answer))
}
