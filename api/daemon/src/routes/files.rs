//! Files: look, read, write, remove.

use axum::Router;
use axum::extract::FromRequest;
use axum::extract::Request;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fluxvm_api_types::ContentView;
use fluxvm_api_types::EntryView;
use fluxvm_api_types::FactsView;
use fluxvm_api_types::FileMode;
use fluxvm_api_types::RangeView;
use fluxvm_api_types::WriteFileRequest;
use fluxvm_api_types::WrittenView;
use fluxvm_commands::DeleteFile;
use fluxvm_commands::EntryKind;
use fluxvm_commands::FileEntry;
use fluxvm_commands::ReadRange;
use fluxvm_commands::WriteFile;
use serde::Serialize;

use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::body::BodySlot;
use crate::limits::FILE_BODY_BYTES_MAX;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

/// The routes of files.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/agents/sessions/{id}/files", get(facts).delete(delete))
        .route(
            "/v1/agents/sessions/{id}/files/content",
            get(content).put(write),
        )
        .route("/v1/agents/sessions/{id}/files/range", get(range))
}

async fn facts(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["path"])?;
    let path = parameters.required("path")?;
    let facts = engine.file_facts(&caller, id, path).await?;
    let entries = facts
        .entries
        .map(|all| all.into_iter().map(entry).collect());
    json(&FactsView {
        kind: kind(facts.entry.kind),
        path: path.to_owned(),
        entry: entry(facts.entry),
        entries,
        truncated: facts.truncated,
    })
}

async fn content(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["path"])?;
    let path = parameters.required("path")?;
    let read = engine.read_file(&caller, id, path).await?;
    json(&ContentView {
        path: path.to_owned(),
        content_base64: STANDARD.encode(&read.bytes),
        size: read.facts.size,
        mode: octal(read.facts.mode),
    })
}

async fn range(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["path", "offset", "length", "checksum"])?;
    let path = parameters.required("path")?;
    let range = ReadRange {
        path: path.to_owned(),
        offset: parameters.number("offset")?.unwrap_or(0),
        length: parameters.number("length")?,
        checksum: parameters.flag("checksum")?,
    };
    let offset = range.offset;
    let read = engine.read_range(&caller, id, range).await?;
    json(&RangeView {
        path: path.to_owned(),
        offset,
        data_base64: STANDARD.encode(&read.bytes),
        length: read.bytes.len() as u64,
        size: read.facts.size,
        eof: read.eof,
        mode: octal(read.facts.mode),
        sha256: read.facts.sha256,
    })
}

async fn write(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: FileBody,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = body.0;
    let content = STANDARD
        .decode(&request.content_base64)
        .map_err(|error| ApiError::invalid_parameter("content_base64", &error.to_string()))?;
    let request = WriteFile {
        path: request.path,
        content: content.into(),
        mode: request.mode.map(FileMode::get),
        parents: request.parents.unwrap_or(true),
    };
    let work = async move { Ok(engine.write_file(&caller, id, request).await?) };
    let answer = app.detached(work).await?;
    json(&WrittenView {
        seq: answer.seq,
        path: answer.outcome.path,
        size: answer.outcome.size,
        mode: octal(answer.outcome.mode),
        digest: answer.outcome.digest,
        sha256: answer.outcome.sha256,
        replaced: answer.outcome.replaced,
    })
}

async fn delete(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["path", "recursive"])?;
    let request = DeleteFile {
        path: parameters.required("path")?.to_owned(),
        recursive: parameters.flag("recursive")?,
    };
    let work = async move { Ok(engine.delete_file(&caller, id, request).await?) };
    app.detached(work).await?;
    Ok(status::no_content())
}

/// The body of a write, which may be larger than any other.
struct FileBody(WriteFileRequest);

impl FromRequest<App> for FileBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let slot = request.extensions().get::<BodySlot>().cloned();
        let bytes = slot
            .unwrap_or_default()
            .read_up_to(FILE_BODY_BYTES_MAX)
            .await?;
        Ok(Self(fluxvm_api_types::parse(&bytes)?))
    }
}

fn entry(entry: FileEntry) -> EntryView {
    EntryView {
        name: entry.name,
        kind: kind(entry.kind),
        size: entry.size,
        mtime: entry.mtime,
        mode: octal(entry.mode),
        target: entry.target,
    }
}

fn kind(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Dir => "dir",
        EntryKind::Symlink => "symlink",
        EntryKind::Other => "other",
    }
}

/// Permission bits as people write them.
pub(super) fn octal(mode: u32) -> String {
    format!("{mode:04o}")
}

/// A value as the answer.
pub(super) fn json(value: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(value).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}
