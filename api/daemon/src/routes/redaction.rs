//! What is erased from the ledger, and what may not be.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::HoldRequest;
use fluxvm_api_types::HoldView;
use fluxvm_api_types::List;
use fluxvm_api_types::RedactRequest;
use fluxvm_api_types::RedactionView;
use fluxvm_api_types::RetentionRequest;
use fluxvm_api_types::RetentionView;
use fluxvm_api_types::ShredRequest;
use fluxvm_api_types::ShredView;
use fluxvm_api_types::rfc3339;
use fluxvm_commands::PlaceHold;
use fluxvm_commands::Redact;
use fluxvm_commands::Retain;
use fluxvm_commands::ShredSession;
use fluxvm_projections::Hold;
use fluxvm_projections::SessionId;

use super::StrictBody;
use super::host::archive_that_holds_erased;
use super::host::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::HostAdmin;
use crate::app::Ready;
use crate::app::SeqPath;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;

pub(super) async fn redact(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<RedactRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let RedactRequest { seq, reason } = body.value;
    let request = Redact { seq, reason };
    let asked = engine.clone();
    let answer = app
        .detached(async move { Ok(asked.redact(&caller, request).await?) })
        .await?;
    json(
        Success::Done,
        &RedactionView {
            seq: answer.seq,
            redacted: answer.redacted,
            blobs: answer.blobs,
            reason: answer.reason,
            archive: archive_that_holds_erased(&engine),
        },
    )
}

pub(super) async fn shred(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<ShredRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let ShredRequest { session, reason } = body.value;
    let session = SessionId(session);
    let request = ShredSession { session, reason };
    let answer = app
        .detached(async move { Ok(engine.shred_session(&caller, request).await?) })
        .await?;
    json(
        Success::Done,
        &ShredView {
            seq: answer.seq,
            session: answer.session.0,
            reason: answer.reason,
        },
    )
}

pub(super) async fn retain(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<RetentionRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let RetentionRequest { before, reason } = body.value;
    let request = Retain { before, reason };
    let asked = engine.clone();
    let answer = app
        .detached(async move { Ok(asked.retain(&caller, request).await?) })
        .await?;
    json(
        Success::Done,
        &RetentionView {
            seq: answer.seq,
            before: answer.before,
            sessions: answer.sessions,
            events: answer.events,
            left: answer.left,
            archive: archive_that_holds_erased(&engine),
        },
    )
}

pub(super) async fn place(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<HoldRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let HoldRequest { session, reason } = body.value;
    let request = PlaceHold {
        session: session.map(SessionId),
        reason,
    };
    let hold = app
        .detached(async move { Ok(engine.place_hold(&caller, request).await?) })
        .await?;
    json(Success::Created, &view(hold))
}

pub(super) async fn list(
    HostAdmin: HostAdmin,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let items = engine.holds().into_iter().map(view).collect();
    json(Success::Done, &List { items })
}

pub(super) async fn release(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    SeqPath(hold): SeqPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    app.detached(async move { Ok(engine.release_hold(&caller, hold).await?) })
        .await?;
    Ok(status::no_content())
}

fn view(hold: Hold) -> HoldView {
    HoldView {
        seq: hold.seq,
        session: hold.session.map(|session| session.0),
        reason: hold.reason,
        at: rfc3339(&hold.at),
    }
}
