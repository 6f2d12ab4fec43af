//! The daemon itself: is it there, is it ready, what does it have and what can it do.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::CapabilitiesView;
use fluxvm_api_types::LedgerHead;
use fluxvm_api_types::LedgerInfo;
use serde::Serialize;

use super::no_parameters;
use crate::app::App;
use crate::app::Ready;
use crate::lifecycle::Stage;
use crate::metrics::Snapshot;
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
        }
    });
    let text = app.metrics().render(snapshot.as_ref());
    Ok(status::answer(Success::Done, PROMETHEUS, text.into()))
}

pub(super) async fn ledger_info(Ready(engine): Ready, uri: Uri) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let info = engine.ledger_info();
    let info = LedgerInfo {
        ledger_id: info.ledger_id.to_string(),
        origin: info.origin,
        created_at: info.created_at.to_rfc3339(),
        vkey: info.vkey,
        head: LedgerHead {
            position: info.head.position.get(),
            hash: info.head.hash.to_string(),
        },
        erasure_pending: info.erasure_pending,
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
