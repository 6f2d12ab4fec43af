//! Commands that wait for people: listed, approved, denied.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::DecideRequest;
use fluxvm_api_types::List;
use fluxvm_commands::Answer;
use fluxvm_commands::Caller;
use fluxvm_commands::Engine;
use fluxvm_projections::ApprovalId;
use fluxvm_projections::SessionId;

use super::OptionalBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Below;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::approval_view::view;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn list(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    engine.session(&caller, id).await?;
    let (approvals, now) = engine.approvals(&caller, id)?;
    let list = List {
        items: approvals.iter().map(|it| view(it, now)).collect(),
    };
    let body = serde_json::to_vec(&list).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}

pub(super) async fn approve(
    State(app): State<App>,
    Admin(caller): Admin,
    Below(id, approval): Below<ApprovalId>,
    Ready(engine): Ready,
    uri: Uri,
    body: OptionalBody<DecideRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    decide(
        app,
        engine,
        caller,
        (id, approval),
        Answer::Approve,
        body.value,
    )
    .await
}

pub(super) async fn deny(
    State(app): State<App>,
    Admin(caller): Admin,
    Below(id, approval): Below<ApprovalId>,
    Ready(engine): Ready,
    uri: Uri,
    body: OptionalBody<DecideRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    decide(
        app,
        engine,
        caller,
        (id, approval),
        Answer::Deny,
        body.value,
    )
    .await
}

async fn decide(
    app: App,
    engine: Engine,
    caller: Caller,
    (id, approval): (SessionId, ApprovalId),
    answer: Answer,
    request: DecideRequest,
) -> Result<Response, ApiError> {
    let note = request.note;
    let work = async move {
        Ok(engine
            .decide_approval(&caller, id, approval, answer, note)
            .await?)
    };
    let (decided, now) = app.detached(work).await?;
    let body = serde_json::to_vec(&view(&decided, now)).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}
