//! The daemon itself: is it there, is it ready, what does it have and what can it do.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::ArchiveView;
use fluxvm_api_types::CapabilitiesView;
use fluxvm_api_types::ContentLookView;
use fluxvm_api_types::LedgerHead;
use fluxvm_api_types::LedgerInfo;
use fluxvm_commands::Engine;
use fluxvm_eventstore::ArchiveInfo;
use serde::Serialize;

use super::no_parameters;
use crate::app::App;
use crate::app::Ready;
use crate::lifecycle::Stage;
use crate::metrics::ArchiveFigures;
use crate::metrics::Snapshot;
use crate::query::Parameters;
use crate::session_view;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

/// What Prometheus reads.
const PROMETHEUS: &str = "text/plain; version=0.0.4";

/// The process is there and answers.
pub(super) async fn healthz() -> Response {
    status::answer(Success::Done, JSON, r#"{"status":"ok"}"#.into())
}

/// Its sessions are taken up and its ledger holds, so that it takes requests.
pub(super) async fn readyz(State(app): State<App>) -> Result<Response, ApiError> {
    app.engine()?;
    if app.lifecycle().stage() != Stage::Serving {
        return Err(ApiError::stopping());
    }
    Ok(status::answer(
        Success::Done,
        JSON,
        r#"{"status":"ready"}"#.into(),
    ))
}

pub(super) async fn metrics(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let snapshot = app.engine().ok().map(|engine| {
        let ledger = engine.ledger_info();
        Snapshot {
            sessions: engine.count_by_status(),
            position: ledger.head.position.get(),
            ledger_bytes: ledger.bytes_on_disk,
            sync_micros: [
                ("0.5", ledger.sync_micros_p50),
                ("0.99", ledger.sync_micros_p99),
            ],
            streams: app.streams_open(),
            erasure_pending: ledger.erasure_pending(),
            archive: ledger.archive.map(|archive| ArchiveFigures {
                failed: archive.failed.is_some(),
                position: archive.archived.get(),
            }),
            pushes: app.pushes().figures(),
        }
    });
    let text = app.metrics().render(snapshot.as_ref());
    Ok(status::answer(Success::Done, PROMETHEUS, text.into()))
}

/// How the archive is, for whoever asks.
fn archive_view(archive: ArchiveInfo) -> ArchiveView {
    ArchiveView {
        state: match archive.failed {
            None => "ok",
            Some(_) => "failed",
        },
        dir: archive.dir.display().to_string(),
        archived: archive.archived.get(),
        error: archive.failed,
        erasure_pending: archive.erasure_pending,
    }
}

/// The archive, where it has failed and was not rid of what was erased.
pub(super) fn archive_that_holds_erased(engine: &Engine) -> Option<ArchiveView> {
    let archive = engine.ledger_info().archive?;
    let holds = archive.failed.is_some() && archive.erasure_pending;
    holds.then(|| archive_view(archive))
}

pub(super) async fn ledger_info(
    State(app): State<App>,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let content = match Parameters::read(&uri, &["content"])?.flag("content")? {
        true => Some(engine.look_at_content().await?),
        false => None,
    };
    let info = engine.ledger_info();
    let is_pending_in_archive = info.archive.as_ref().is_some_and(|it| it.erasure_pending);
    let places = [
        ("store", info.erasure_pending_in_store),
        ("archive", is_pending_in_archive),
    ];
    let pending = places.iter().filter(|(_, is_pending)| *is_pending);
    let info = LedgerInfo {
        content: content.map(|look| ContentLookView {
            events: look.events,
            pieces: look.pieces,
            missing: look.missing,
            first_missing: look.first_missing,
        }),
        erasure_pending: info.erasure_pending(),
        erasure_pending_in: pending.map(|(place, _)| *place).collect(),
        keys_found_destroyed: info
            .keys_found_destroyed
            .iter()
            .map(ToString::to_string)
            .collect(),
        checkpoint_pushes: app.pushes().views(),
        archive: info.archive.map(archive_view),
        ledger_id: info.ledger_id.to_string(),
        origin: info.origin,
        created_at: info.created_at.to_rfc3339(),
        vkey: info.vkey,
        head: LedgerHead {
            position: info.head.position.get(),
            hash: info.head.hash.to_string(),
        },
        bytes_on_disk: info.bytes_on_disk,
        sync_micros_p50: info.sync_micros_p50,
        sync_micros_p99: info.sync_micros_p99,
    };
    json(Success::Done, &info)
}

#[derive(Serialize)]
struct HostCapabilities {
    backend: &'static str,
    capabilities: CapabilitiesWithLacks,
}

#[derive(Serialize)]
struct CapabilitiesWithLacks {
    #[serde(flatten)]
    capabilities: CapabilitiesView,
    degraded: Vec<String>,
}

pub(super) async fn capabilities(Ready(engine): Ready, uri: Uri) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let capabilities = HostCapabilities {
        backend: engine.backend_name(),
        capabilities: CapabilitiesWithLacks {
            capabilities: session_view::capabilities(&engine.capabilities()),
            degraded: engine.degraded(),
        },
    };
    json(Success::Done, &capabilities)
}

/// An answer that is one JSON value.
pub(super) fn json(success: Success, value: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(value).map_err(|_| ApiError::internal())?;
    Ok(status::answer(success, JSON, body.into()))
}
