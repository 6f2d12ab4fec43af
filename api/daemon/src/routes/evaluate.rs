//! `POST …/evaluate` and `POST …/rollout`: candidates, side by side.

use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use fluxvm_api_types::EvaluateRequest;
use fluxvm_api_types::Milliseconds;
use fluxvm_api_types::RolloutRequest;
use fluxvm_commands::Caller;
use fluxvm_commands::Engine;
use fluxvm_commands::Evaluate;
use fluxvm_commands::Keep;
use fluxvm_commands::limits::FORK_CHILDREN_MAX;
use fluxvm_projections::SessionId;

use super::StrictBody;
use super::no_parameters;
use super::sessions::if_match;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::evaluate_view;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::status::ApiError;
use crate::status::Success;

pub(super) async fn evaluate(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<EvaluateRequest>,
) -> Result<Response, ApiError> {
    let asked = body.value;
    let request = Evaluate {
        candidates: asked.candidates,
        test: asked.test,
        keep: match asked.keep_all {
            Some(true) => Keep::All,
            _ => Keep::Winner,
        },
        rollout: false,
        timeout_ms: asked.timeout_seconds.map(Milliseconds::get),
        if_match: if_match(&head.headers)?,
    };
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    run(&app, engine, caller, (id, head, key), request).await
}

pub(super) async fn rollout(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<RolloutRequest>,
) -> Result<Response, ApiError> {
    let asked = body.value;
    // One more than there may be is refused as any more are, and takes no room.
    let count = asked.count.min(FORK_CHILDREN_MAX + 1);
    let request = Evaluate {
        candidates: (0..count).map(|_| asked.command.clone()).collect(),
        test: None,
        keep: match asked.keep {
            Some(true) => Keep::All,
            _ => Keep::None,
        },
        rollout: true,
        timeout_ms: asked.timeout_seconds.map(Milliseconds::get),
        if_match: if_match(&head.headers)?,
    };
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    run(&app, engine, caller, (id, head, key), request).await
}

async fn run(
    app: &App,
    engine: Engine,
    caller: Caller,
    (id, head, key): (SessionId, Parts, Option<RequestKey>),
    request: Evaluate,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let work = async move |engine: Engine, caller: Caller| {
        let answer = engine.evaluate(&caller, id, request).await?;
        Reply::json(Success::Done, id, &evaluate_view::evaluated(&answer), None)
    };
    idempotency::in_session(app, engine, caller, id, key, work).await
}
