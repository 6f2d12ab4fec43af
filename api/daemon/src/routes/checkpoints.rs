//! Checkpoints: take, list, let go of, go back to. And children.

use axum::extract::FromRequestParts;
use axum::extract::Path;
use axum::extract::State;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use fluxvm_api_types::CheckpointRequest;
use fluxvm_api_types::ForkRequest;
use fluxvm_api_types::IdentityRequest;
use fluxvm_api_types::List;
use fluxvm_api_types::RestoreRequest;
use fluxvm_commands::Caller;
use fluxvm_commands::Checkpoint;
use fluxvm_commands::Engine;
use fluxvm_commands::Fork;
use fluxvm_commands::ForkFrom;
use fluxvm_commands::Restore;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::SessionId;
use uuid::Uuid;

use super::OptionalBody;
use super::StrictBody;
use super::host::json;
use super::no_parameters;
use super::sessions::if_match;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;
use crate::time_travel_view;

/// Children where a caller did not say how many.
const COUNT_DEFAULT: u32 = 1;

pub(super) async fn take(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: OptionalBody<CheckpointRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let request = Checkpoint {
        tag: body.value.tag,
        memory: body.value.memory,
        if_match: if_match(&head.headers)?,
    };
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.take_checkpoint(&caller, id, request).await?;
        let view = time_travel_view::checkpointed(&answer);
        Reply::json(Success::Created, id, &view, Some(answer.revision))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

pub(super) async fn list(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let session = engine.session(&caller, id).await?;
    let items = session.checkpoints.iter();
    let list = List {
        items: items.map(time_travel_view::checkpoint).collect(),
    };
    json(Success::Done, &list)
}

pub(super) async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    TagPath { session, tag }: TagPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let work = async move { Ok(engine.delete_checkpoint(&caller, session, tag).await?) };
    app.detached(work).await?;
    Ok(status::no_content())
}

pub(super) async fn restore(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<RestoreRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let request = Restore {
        tag: body.value.tag,
        if_match: if_match(&head.headers)?,
    };
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.restore(&caller, id, request).await?;
        let view = time_travel_view::restored(&answer);
        Reply::json(Success::Done, id, &view, Some(answer.revision))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

pub(super) async fn fork(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: OptionalBody<ForkRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let asked = body.value;
    let request = Fork {
        count: count(asked.count),
        identity: identity(asked.identity),
        memory: asked.memory,
        from: asked.tag.map_or(ForkFrom::Now, ForkFrom::Checkpoint),
        if_match: if_match(&head.headers)?,
    };
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.fork(&caller, id, request).await?;
        let view = time_travel_view::forked(&answer);
        Reply::json(Success::Created, id, &view, Some(answer.revision))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

/// How many children, where a caller may leave it out.
pub(super) fn count(asked: Option<u32>) -> u32 {
    asked.unwrap_or(COUNT_DEFAULT)
}

/// Who the children are, where a caller may leave it out.
pub(super) fn identity(asked: Option<IdentityRequest>) -> IdentityMode {
    match asked {
        None | Some(IdentityRequest::BestEffort) => IdentityMode::BestEffort,
        Some(IdentityRequest::Unique) => IdentityMode::Unique,
        Some(IdentityRequest::Preserve) => IdentityMode::Preserve,
    }
}

/// The session and the tag of a path.
pub(super) struct TagPath {
    session: SessionId,
    tag: String,
}

impl FromRequestParts<App> for TagPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, app).await;
        let (session, tag) = path
            .map_err(|_| ApiError::route_not_found(parts.uri.path()))?
            .0;
        let id = Uuid::try_parse(&session)
            .ok()
            .filter(|id| id.hyphenated().to_string() == session);
        match id {
            Some(id) => Ok(Self {
                session: SessionId(id),
                tag,
            }),
            None => Err(ApiError::no_such_session(&session)),
        }
    }
}
