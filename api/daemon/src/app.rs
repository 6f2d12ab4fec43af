//! What all requests share, and who they come from.

use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::OnceLock;

use axum::extract::FromRequestParts;
use axum::extract::Path;
use axum::http::request::Parts;
use fluxvm_commands::Caller;
use fluxvm_commands::Engine;
use fluxvm_eventstore::Actor;
use fluxvm_eventstore::CorrelationId;
use fluxvm_projections::JobId;
use fluxvm_projections::SessionId;
use fluxvm_projections::UploadId;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::auth::Authenticator;
use crate::auth::Identity;
use crate::config::Role;
use crate::job_streams::JobStreams;
use crate::lifecycle::Lifecycle;
use crate::lifecycle::Stage;
use crate::limits::EXPORTS_MAX;
use crate::limits::STREAMS_MAX;
use crate::metrics::Metrics;
use crate::query::read_position;
use crate::rate::RateLimit;
use crate::status::ApiError;
use crate::witness::PushStates;

/// What all requests share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

struct Shared {
    engine: OnceLock<Engine>,
    auth: Authenticator,
    rate: Option<RateLimit>,
    lifecycle: Lifecycle,
    pushes: PushStates,
    metrics: Metrics,
    metrics_are_public: bool,
    streams: Arc<Semaphore>,
    job_streams: JobStreams,
    exports: Arc<Semaphore>,
}

impl App {
    /// An app that answers `starting` until it has its engine.
    pub(crate) fn new(
        auth: Authenticator,
        rate: Option<RateLimit>,
        metrics: Metrics,
        metrics_are_public: bool,
    ) -> Self {
        Self(Arc::new(Shared {
            engine: OnceLock::new(),
            auth,
            rate,
            lifecycle: Lifecycle::new(),
            metrics,
            pushes: PushStates::default(),
            metrics_are_public,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            job_streams: JobStreams::default(),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
        }))
    }

    /// Hands the engine in, once.
    pub(crate) fn ready(&self, engine: Engine) {
        // A second engine cannot come: there is one caller, and it starts one.
        let _ = self.0.engine.set(engine);
    }

    /// The engine, once it has taken up its sessions and while its ledger holds.
    pub(crate) fn engine(&self) -> Result<Engine, ApiError> {
        if let Some(reason) = self.0.lifecycle.failure() {
            return Err(ApiError::ledger_failed(&reason));
        }
        self.0.engine.get().cloned().ok_or_else(ApiError::starting)
    }

    pub(crate) fn auth(&self) -> &Authenticator {
        &self.0.auth
    }

    /// How often one actor may ask, if there is a limit.
    pub(crate) fn rate(&self) -> Option<&RateLimit> {
        self.0.rate.as_ref()
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.0.lifecycle
    }

    /// How the pushes of checkpoints go.
    pub(crate) fn pushes(&self) -> &PushStates {
        &self.0.pushes
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Whether metrics are shown to everyone who reaches the listener.
    pub(crate) fn metrics_are_public(&self) -> bool {
        self.0.metrics_are_public
    }

    /// Room for one more event stream.
    pub(crate) fn stream_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.0.streams).try_acquire_owned();
        permit.map_err(|_| ApiError::too_many("event streams", STREAMS_MAX))
    }

    /// The streams of jobs.
    pub(crate) fn job_streams(&self) -> &JobStreams {
        &self.0.job_streams
    }

    /// How many event streams there are.
    pub(crate) fn streams_open(&self) -> usize {
        STREAMS_MAX.saturating_sub(self.0.streams.available_permits())
    }

    /// Room for one more export.
    pub(crate) fn export_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.0.exports).try_acquire_owned();
        permit.map_err(|_| ApiError::too_many("exports", EXPORTS_MAX))
    }

    /// Runs something to its end even if the client goes away, and answers for it as long as the daemon
    /// can: when the grace at the end is over, whoever still waits is told so.
    pub(crate) async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let task = tokio::spawn(work);
        tokio::select! {
            joined = task => joined.unwrap_or_else(|error| {
                tracing::error!(%error, "a request's task ended early");
                Err(ApiError::internal())
            }),
            () = self.0.lifecycle.reached(Stage::Abandoning) => Err(ApiError::stopping()),
        }
    }
}

/// A caller that may use sessions: an administrator, of the host or of a tenant, or the holder of a
/// session token that is for this route.
pub(crate) struct Admin(pub(crate) Caller);

/// A caller that may use what belongs to no tenant: an administrator of the host.
pub(crate) struct HostAdmin;

impl FromRequestParts<App> for Admin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let identity = identity(parts)?;
        // That a session token is for this route was found out before.
        if identity.role != Role::Admin && identity.scope.is_none() {
            return Err(ApiError::forbidden(
                "a read-only token may not use sessions",
            ));
        }
        let actor = Actor::parse(&identity.actor).map_err(|error| {
            tracing::error!(actor = identity.actor, %error, "an actor's name is not recordable");
            ApiError::internal()
        })?;
        let request = parts
            .extensions
            .get::<RequestId>()
            .map_or_else(Uuid::now_v7, |id| id.0);
        let request = CorrelationId::new(request);
        Ok(Self(Caller {
            actor,
            tenant: identity.tenant.clone(),
            request,
        }))
    }
}

impl FromRequestParts<App> for HostAdmin {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let identity = identity(parts)?;
        if identity.role != Role::Admin || identity.tenant.is_some() {
            return Err(ApiError::forbidden(
                "only an admin token without a tenant may see the whole ledger",
            ));
        }
        Ok(Self)
    }
}

/// The edge puts it there before any handler runs.
fn identity(parts: &Parts) -> Result<&Identity, ApiError> {
    parts
        .extensions
        .get::<Identity>()
        .ok_or_else(ApiError::internal)
}

/// The id of one request: in its answer, in the audit and in every event that comes of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestId(pub(crate) Uuid);

/// The engine, or the answer that it is not there yet.
pub(crate) struct Ready(pub(crate) Engine);

impl FromRequestParts<App> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Self, ApiError> {
        app.engine().map(Self)
    }
}

/// The session of a path. What is no id names no session.
pub(crate) struct SessionPath(pub(crate) SessionId);

impl FromRequestParts<App> for SessionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let text = path
            .map_err(|_| ApiError::route_not_found(parts.uri.path()))?
            .0;
        session_id(&text).map(Self)
    }
}

/// The session and the job of a path. What is no id names no job.
pub(crate) struct JobPath(pub(crate) SessionId, pub(crate) JobId);

impl FromRequestParts<App> for JobPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let (session, job) = two_ids(parts, app).await?;
        let session = session_id(&session)?;
        let id = plain_uuid(&job).ok_or_else(|| ApiError::no_such_job(&job))?;
        Ok(Self(session, JobId(id)))
    }
}

/// The session and the upload of a path. What is no id names no upload.
pub(crate) struct UploadPath(pub(crate) SessionId, pub(crate) UploadId);

impl FromRequestParts<App> for UploadPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let (session, upload) = two_ids(parts, app).await?;
        let session = session_id(&session)?;
        let id = plain_uuid(&upload).ok_or_else(|| ApiError::no_such_upload(&upload))?;
        Ok(Self(session, UploadId(id)))
    }
}

/// The two variable parts of a path, as they are written.
async fn two_ids(parts: &mut Parts, app: &App) -> Result<(String, String), ApiError> {
    let path = Path::<(String, String)>::from_request_parts(parts, app).await;
    path.map(|ids| ids.0)
        .map_err(|_| ApiError::route_not_found(parts.uri.path()))
}

fn session_id(text: &str) -> Result<SessionId, ApiError> {
    let id = plain_uuid(text).ok_or_else(|| ApiError::no_such_session(text))?;
    Ok(SessionId(id))
}

/// One spelling per id, so that a path can stand for what it names: in idempotency keys, in audits.
fn plain_uuid(text: &str) -> Option<Uuid> {
    let id = Uuid::try_parse(text).ok();
    id.filter(|id| id.hyphenated().to_string() == text)
}

/// The session of a path, and something of it by its id.
pub(crate) struct Below<T>(pub(crate) SessionId, pub(crate) T);

impl<T: FromStr> FromRequestParts<App> for Below<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = Path::<(String, String)>::from_request_parts(parts, app).await;
        let (session, below) = path
            .map_err(|_| ApiError::route_not_found(parts.uri.path()))?
            .0;
        let id = session_id(&session)?;
        let below = below
            .parse()
            .map_err(|_| ApiError::route_not_found(parts.uri.path()))?;
        Ok(Self(id, below))
    }
}

/// The event of a path.
pub(crate) struct SeqPath(pub(crate) u64);

impl FromRequestParts<App> for SeqPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let text = path
            .map_err(|_| ApiError::route_not_found(parts.uri.path()))?
            .0;
        read_position("seq", &text).map(Self)
    }
}
