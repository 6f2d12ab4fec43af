//! What a third party checks the ledger with: events, checkpoints, proofs and keys.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::KeyView;
use fluxvm_api_types::KeysView;
use fluxvm_eventstore::StreamName;

use super::export;
use super::host::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::HostAdmin;
use crate::app::Ready;
use crate::app::SeqPath;
use crate::event_view::write_event;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;

/// Signed notes and proofs are lines of text.
const TEXT: &str = "text/plain; charset=utf-8";

pub(super) async fn events(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["from", "stream"])?;
    let from = parameters.position("from")?.unwrap_or_default();
    let stream = parameters.text("stream").map(StreamName::parse).transpose();
    let stream =
        stream.map_err(|error| ApiError::invalid_parameter("stream", &error.to_string()))?;
    let permit = app.export_permit()?;
    let events = engine.ledger_events(from, stream);
    let lines = events.map(|event| {
        let mut line = Vec::new();
        write_event(&mut line, &*event?);
        line.push(b'\n');
        Ok(line)
    });
    export::lines(lines, permit).await
}

pub(super) async fn checkpoint(Ready(engine): Ready, uri: Uri) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["size"])?;
    let note = match parameters.position("size")? {
        Some(size) => engine.checkpoint_at(size).await?.to_string(),
        None => engine.checkpoint().await?.to_string(),
    };
    Ok(text(note))
}

pub(super) async fn proof(
    SeqPath(seq): SeqPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    Ok(text(engine.inclusion_proof(seq).await?.to_string()))
}

pub(super) async fn consistency(Ready(engine): Ready, uri: Uri) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["from", "to"])?;
    let from = parameters.position("from")?;
    let from =
        from.ok_or_else(|| ApiError::invalid_parameter("from", "this parameter is required"))?;
    let to = parameters.position("to")?;
    Ok(text(engine.consistency_proof(from, to).await?.to_string()))
}

pub(super) async fn key(Ready(engine): Ready, uri: Uri) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let keys = engine.keys().into_iter().map(|(from, key)| KeyView {
        from: from.get(),
        vkey: key.to_string(),
    });
    let keys: Vec<KeyView> = keys.collect();
    let vkey = keys
        .last()
        .map(|key| key.vkey.clone())
        .ok_or_else(ApiError::internal)?;
    json(Success::Done, &KeysView { vkey, keys })
}

pub(super) async fn rotate(
    State(app): State<App>,
    HostAdmin: HostAdmin,
    Admin(caller): Admin,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let asked = engine.clone();
    app.detached(async move { Ok(asked.rotate_key(&caller).await?) })
        .await?;
    key(Ready(engine), uri).await
}

fn text(text: String) -> Response {
    status::answer(Success::Done, TEXT, text.into())
}
