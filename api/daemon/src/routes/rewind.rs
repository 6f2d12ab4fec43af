//! The ring of points: show, configure, pin, undo, redo, branch.

use axum::extract::State;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_api_types::BranchRequest;
use fluxvm_api_types::PinRequest;
use fluxvm_api_types::RewindConfigRequest;
use fluxvm_api_types::RewindMoveRequest;
use fluxvm_commands::Caller;
use fluxvm_commands::ConfigureRewind;
use fluxvm_commands::Engine;
use fluxvm_commands::Fork;
use fluxvm_commands::ForkFrom;
use fluxvm_commands::RewindTo;
use fluxvm_projections::SessionId;

use super::OptionalBody;
use super::StrictBody;
use super::checkpoints::count;
use super::checkpoints::identity;
use super::host::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::status::ApiError;
use crate::status::Success;
use crate::time_travel_view;

/// Steps where a caller says neither how many nor where to.
const STEPS_DEFAULT: u64 = 1;

pub(super) async fn show(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let session = engine.session(&caller, id).await?;
    json(Success::Done, &time_travel_view::rewind(&session))
}

pub(super) async fn configure(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: OptionalBody<RewindConfigRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let asked = body.value;
    let triggers = asked
        .triggers
        .map(|names| names.into_iter().map(time_travel_view::trigger).collect());
    let request = ConfigureRewind {
        enabled: asked.enabled,
        max_points: asked.max_points,
        memory: asked.memory,
        triggers,
    };
    let work = async move { Ok(engine.configure_rewind(&caller, id, request).await?) };
    let session = app.detached(work).await?;
    json(Success::Done, &time_travel_view::rewind(&session))
}

pub(super) async fn pin(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<PinRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let PinRequest { tag, pinned } = body.value;
    let pinned = pinned.unwrap_or(true);
    let work = async move { Ok(engine.pin_point(&caller, id, tag, pinned).await?) };
    let session = app.detached(work).await?;
    json(Success::Done, &time_travel_view::rewind(&session))
}

pub(super) async fn undo(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: OptionalBody<RewindMoveRequest>,
) -> Result<Response, ApiError> {
    go(app, caller, id, engine, head, body, Way::Undo).await
}

pub(super) async fn redo(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: OptionalBody<RewindMoveRequest>,
) -> Result<Response, ApiError> {
    go(app, caller, id, engine, head, body, Way::Redo).await
}

#[derive(Clone, Copy)]
enum Way {
    Undo,
    Redo,
}

async fn go(
    app: App,
    caller: Caller,
    id: SessionId,
    engine: Engine,
    head: Parts,
    body: OptionalBody<RewindMoveRequest>,
    way: Way,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let to = target(body.value)?;
    let work = async move |engine: Engine, caller: Caller| {
        let answer = match way {
            Way::Undo => engine.undo(&caller, id, to).await?,
            Way::Redo => engine.redo(&caller, id, to).await?,
        };
        let view = time_travel_view::moved(&answer);
        Reply::json(Success::Done, id, &view, Some(answer.session.revision))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

/// One of the two ways to say where to.
fn target(asked: RewindMoveRequest) -> Result<RewindTo, ApiError> {
    match (asked.steps, asked.to) {
        (Some(_), Some(_)) => Err(ApiError::invalid_parameter(
            "to",
            "goes without `steps`: say how many steps, or where to",
        )),
        (_, Some(tag)) => Ok(RewindTo::Tag(tag)),
        (steps, None) => Ok(RewindTo::Steps(steps.unwrap_or(STEPS_DEFAULT))),
    }
}

pub(super) async fn branch(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<BranchRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let bytes: &Bytes = &body.bytes;
    let key = RequestKey::of(&head, &caller, bytes)?;
    let asked = body.value;
    let request = Fork {
        count: count(asked.count),
        identity: identity(asked.identity),
        memory: None,
        from: ForkFrom::Point(asked.tag),
        if_match: None,
    };
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.fork(&caller, id, request).await?;
        let view = time_travel_view::forked(&answer);
        Reply::json(Success::Done, id, &view, Some(answer.revision))
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_is_said_one_way() {
        let read = |body: &str| target(fluxvm_api_types::parse(body.as_bytes()).expect("known"));
        assert!(matches!(read("{}"), Ok(RewindTo::Steps(1))));
        assert!(matches!(read(r#"{"steps":3}"#), Ok(RewindTo::Steps(3))));
        assert!(matches!(read(r#"{"to":"rw-1"}"#), Ok(RewindTo::Tag(tag)) if tag == "rw-1"));
        let both = read(r#"{"to":"rw-1","steps":1}"#).expect_err("refused");
        assert_eq!(both.code(), "invalid_field");
    }
}
