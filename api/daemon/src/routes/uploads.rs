//! Uploads: open, send parts, complete, abort, look.

use std::io::ErrorKind;

use axum::Extension;
use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use axum::routing::post;
use fluxvm_api_types::FileMode;
use fluxvm_api_types::List;
use fluxvm_api_types::OpenUploadRequest;
use fluxvm_api_types::UploadView;
use fluxvm_commands::OpenUpload;
use fluxvm_commands::PartStream;
use fluxvm_commands::UploadRecord;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio::time::timeout_at;

use super::StrictBody;
use super::files::json;
use super::files::octal;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::app::UploadPath;
use crate::body::BodySlot;
use crate::limits::PART_READ_TIME_MAX;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

/// Portions of a part that are read ahead of the disk.
const PORTIONS_AHEAD: usize = 4;

/// The routes of uploads.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/agents/sessions/{id}/uploads", get(list).post(open))
        .route(
            "/v1/agents/sessions/{id}/uploads/{upload}",
            get(one).put(part).delete(abort),
        )
        .route(
            "/v1/agents/sessions/{id}/uploads/{upload}/complete",
            post(complete),
        )
}

async fn open(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<OpenUploadRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = OpenUpload {
        path: body.value.path,
        size: body.value.size,
        sha256: body.value.sha256,
        mode: body.value.mode.map(FileMode::get),
        parents: body.value.parents.unwrap_or(true),
    };
    let work = async move { Ok(engine.open_upload(&caller, id, request).await?) };
    let record = app.detached(work).await?;
    let body = serde_json::to_vec(&view(record)).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Created, JSON, body.into()))
}

async fn list(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let records = engine.uploads(&caller, id).await?;
    json(&List {
        items: records.into_iter().map(view).collect(),
    })
}

async fn one(
    Admin(caller): Admin,
    UploadPath(id, upload): UploadPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    json(&view(engine.upload(&caller, id, upload).await?))
}

/// Takes a part as it comes: it goes to the disk and is never in memory as a whole.
async fn part(
    State(app): State<App>,
    Admin(caller): Admin,
    UploadPath(id, upload): UploadPath,
    Ready(engine): Ready,
    Extension(slot): Extension<BodySlot>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["offset"])?;
    let offset = parameters
        .number("offset")?
        .ok_or_else(|| ApiError::missing_parameter("offset"))?;
    // Whoever may not write has nothing read of what it sends.
    engine.upload(&caller, id, upload).await?;
    let content = content(slot);
    let work = async move {
        let taken = engine.upload_part(&caller, id, upload, offset, content);
        Ok(taken.await?)
    };
    json(&view(app.detached(work).await?))
}

/// The body's bytes, for as long as a part may take to come. What a refusal leaves of it is read away like
/// any body that nobody wanted, so that the client reads the refusal and not a reset connection.
fn content(slot: BodySlot) -> PartStream {
    let (portions, receiver) = mpsc::channel(PORTIONS_AHEAD);
    let Some(mut body) = slot.take() else {
        return Box::pin(futures_util::stream::empty());
    };
    tokio::spawn(async move {
        let end = Instant::now() + PART_READ_TIME_MAX;
        loop {
            let portion = match timeout_at(end, body.frame()).await {
                Ok(None) => return,
                Ok(Some(Ok(frame))) => frame.into_data().map_err(|_| ErrorKind::InvalidData.into()),
                Ok(Some(Err(error))) => Err(std::io::Error::other(error)),
                Err(_) => Err(ErrorKind::TimedOut.into()),
            };
            let broken = portion.is_err();
            if portions.send(portion).await.is_err() {
                slot.put_back(body);
                slot.drain().await;
                return;
            }
            if broken {
                return;
            }
        }
    });
    Box::pin(futures_util::stream::unfold(
        receiver,
        |mut receiver| async { receiver.recv().await.map(|portion| (portion, receiver)) },
    ))
}

async fn complete(
    State(app): State<App>,
    Admin(caller): Admin,
    UploadPath(id, upload): UploadPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let work = async move { Ok(engine.complete_upload(&caller, id, upload).await?) };
    json(&view(app.detached(work).await?))
}

async fn abort(
    State(app): State<App>,
    Admin(caller): Admin,
    UploadPath(id, upload): UploadPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let work = async move { Ok(engine.abort_upload(&caller, id, upload).await?) };
    app.detached(work).await?;
    Ok(status::no_content())
}

fn view(record: UploadRecord) -> UploadView {
    let upload = record.upload;
    UploadView {
        id: upload.asked.upload.0,
        path: upload.asked.path,
        size: upload.asked.size,
        received: record.received,
        parts: record.parts,
        state: match upload.completed {
            None => "open",
            Some(_) => "complete",
        },
        sha256: upload.asked.sha256,
        mode: octal(upload.asked.mode),
        opened_at: upload.opened_at,
        seq: upload.completed,
    }
}
