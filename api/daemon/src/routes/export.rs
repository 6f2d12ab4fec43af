//! Evidence: events as JSON lines that verify without the daemon.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::Uri;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::CommandError;
use fluxvm_eventstore::Content;
use fluxvm_eventstore::ReadError;
use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc;

use axum::extract::State;

use crate::app::Admin;
use crate::app::App;
use crate::app::HostAdmin;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::limits::CHUNK_BYTES;
use crate::limits::EXPORT_CHUNKS_AHEAD;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;

/// The content type of JSON lines.
const NDJSON: &str = "application/x-ndjson";

pub(super) async fn session(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let content = content(&uri)?;
    let permit = app.export_permit()?;
    let lines = engine.session_evidence(&caller, id, content).await?;
    evidence(lines, permit, &format!("session-{id}.jsonl")).await
}

pub(super) async fn ledger(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let content = content(&uri)?;
    let permit = app.export_permit()?;
    let lines = engine.ledger_evidence(content).await?;
    evidence(lines, permit, "ledger.jsonl").await
}

/// Whether the stored content that the events name comes along.
fn content(uri: &Uri) -> Result<Content, ApiError> {
    match Parameters::read(uri, &["content"])?.flag("content")? {
        true => Ok(Content::WithBlobs),
        false => Ok(Content::EventsOnly),
    }
}

/// Sends lines as a file. An error in the middle breaks the
/// answer off: half an export must not look like a whole one, and the footer says so too.
async fn evidence(
    lines: impl Iterator<Item = Result<String, ReadError>> + Send + 'static,
    permit: OwnedSemaphorePermit,
    file_name: &str,
) -> Result<Response, ApiError> {
    let mut response = self::lines(lines, permit).await?;
    let disposition = format!("attachment; filename=\"{file_name}\"");
    if let Ok(value) = HeaderValue::from_str(&disposition) {
        response
            .headers_mut()
            .insert(header::CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// Sends lines as they are read, a few chunks ahead of the client. What fails before the first chunk is
/// whole is answered with its reason.
pub(super) async fn lines<L: AsRef<[u8]>>(
    lines: impl Iterator<Item = Result<L, ReadError>> + Send + 'static,
    permit: OwnedSemaphorePermit,
) -> Result<Response, ApiError> {
    let (sender, mut receiver) = mpsc::channel(EXPORT_CHUNKS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        send_chunks(lines, &sender);
    });
    let first = receiver.recv().await.transpose();
    let first = first.map_err(CommandError::from)?.map(Ok);
    let rest = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<_>| {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    let body = stream::iter(first).chain(rest);
    Ok(status::answer(
        Success::Done,
        NDJSON,
        Body::from_stream(body),
    ))
}

fn send_chunks<L: AsRef<[u8]>>(
    lines: impl Iterator<Item = Result<L, ReadError>>,
    sender: &mpsc::Sender<Result<Bytes, ReadError>>,
) {
    let mut chunk = Vec::new();
    for line in lines {
        match line {
            Ok(line) => chunk.extend_from_slice(line.as_ref()),
            Err(error) => {
                tracing::error!(%error, "an export broke off");
                // The client may be gone; then nobody needs to know.
                let _ = sender.blocking_send(Err(error));
                return;
            }
        }
        if chunk.len() >= CHUNK_BYTES
            && sender
                .blocking_send(Ok(std::mem::take(&mut chunk).into()))
                .is_err()
        {
            return;
        }
    }
    if !chunk.is_empty() {
        let _ = sender.blocking_send(Ok(chunk.into()));
    }
}
