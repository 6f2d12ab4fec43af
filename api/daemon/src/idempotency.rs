//! `Idempotency-Key`: one effect, however often a request arrives.
//!
//! The claim and the answer are events, so that a retry after a crash still finds them. The scope of a
//! key is the tenant, or the actor where there is none, and the method and path: the same key elsewhere
//! is another key. Only a success is kept; what failed may be tried again.

use std::future::Future;

use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_commands::Caller;
use fluxvm_commands::ClaimedKey;
use fluxvm_commands::Done;
use fluxvm_commands::Engine;
use fluxvm_commands::KeyAnswer;
use fluxvm_commands::KeyClaim;
use fluxvm_commands::StartJob;
use fluxvm_projections::JobId;
use fluxvm_projections::SessionId;
use serde::Serialize;
use uuid::Uuid;

use crate::app::App;
use crate::changes_view;
use crate::evaluate_view;
use crate::exec_body::ExecBody;
use crate::job_view;
use crate::limits::IDEMPOTENCY_ANSWER_BYTES_MAX;
use crate::limits::IDEMPOTENCY_KEY_BYTES_MAX;
use crate::session_view;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;
use crate::time_travel_view;

/// The header.
const HEADER: &str = "idempotency-key";

/// A key with its scope, and what came with it. Only digests: a key may be something that the caller
/// would not want in a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestKey {
    name: String,
    body_blake3: String,
}

impl RequestKey {
    /// The key of a request, if it has one.
    pub(crate) fn of(head: &Parts, caller: &Caller, body: &[u8]) -> Result<Option<Self>, ApiError> {
        let mut values = head.headers.get_all(HEADER).iter();
        let Some(key) = values.next() else {
            return Ok(None);
        };
        let valid = values.next().is_none() && is_valid(key);
        if !valid {
            let message = format!(
                "must be one key of 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
            );
            return Err(ApiError::invalid_parameter("Idempotency-Key", &message));
        }
        let scope = match &caller.tenant {
            Some(tenant) => ("tenant", tenant.as_str()),
            None => ("actor", caller.actor.as_str()),
        };
        let mut hasher = blake3::Hasher::new();
        let (method, path) = (head.method.as_str(), head.uri.path());
        let parts = [scope.0, scope.1, method, path].map(str::as_bytes);
        for part in parts.into_iter().chain([key.as_bytes()]) {
            // With their lengths, so that no two scopes run into each other.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let name = hasher.finalize().to_hex().to_string();
        Ok(Some(Self {
            name,
            body_blake3: blake3::hash(body).to_hex().to_string(),
        }))
    }
}

fn is_valid(key: &HeaderValue) -> bool {
    let bytes = key.as_bytes();
    (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

/// A successful answer before it becomes a response.
pub(crate) enum Reply {
    /// A session that was made, as JSON.
    Created(SessionId, Bytes),
    /// A command's outcome, and its session.
    Exec(SessionId, Box<ExecBody>),
    /// What else was done to a session, as JSON.
    Json(Changed),
}

/// Something done to a session.
pub(crate) struct Changed {
    success: Success,
    session: SessionId,
    body: Bytes,
    /// The session's revision since, where the answer tells it.
    revision: Option<u64>,
}

/// A success with the bytes that every retry gets.
struct Kept {
    success: Success,
    session: SessionId,
    body: Bytes,
}

impl Reply {
    /// The answer to a request that an earlier daemon did and did not answer.
    fn of(done: Done) -> Result<Self, ApiError> {
        match done {
            Done::Created(session) => {
                let body = session_view::to_json(&session);
                Ok(Self::Created(session.id, body))
            }
            Done::Started(id, job) => Self::json(Success::Created, id, &job_view::view(&job), None),
            Done::Ran(id, answer) => Ok(Self::Exec(id, Box::new(ExecBody::of(*answer)))),
            Done::Checkpointed(id, answer) => {
                let view = time_travel_view::checkpointed(&answer);
                Self::json(Success::Created, id, &view, None)
            }
            Done::Restored(id, answer) => {
                let view = time_travel_view::restored(&answer);
                Self::json(Success::Done, id, &view, None)
            }
            Done::Forked(id, answer) => {
                let view = time_travel_view::forked(&answer);
                Self::json(Success::Created, id, &view, None)
            }
            Done::Branched(id, answer) => {
                let view = time_travel_view::forked(&answer);
                Self::json(Success::Done, id, &view, None)
            }
            Done::Moved(answer) => {
                let view = time_travel_view::moved(&answer);
                Self::json(Success::Done, answer.session.id, &view, None)
            }
            Done::Promoted(id, answer) => {
                let view = changes_view::promoted(&answer);
                Self::json(Success::Done, id, &view, None)
            }
            Done::Evaluated(id, answer) => {
                let view = evaluate_view::evaluated(&answer);
                Self::json(Success::Done, id, &view, None)
            }
        }
    }

    /// Something done to a session, as JSON, with the session's revision since.
    pub(crate) fn json(
        success: Success,
        session: SessionId,
        value: &impl Serialize,
        revision: Option<u64>,
    ) -> Result<Self, ApiError> {
        let body = serde_json::to_vec(value).map_err(|_| ApiError::internal())?;
        Ok(Self::Json(Changed {
            success,
            session,
            body: body.into(),
            revision,
        }))
    }

    fn into_response(self) -> Response {
        match self {
            Self::Created(id, body) => {
                status::located(status::answer(Success::Created, JSON, body.into()), id)
            }
            Self::Exec(_, body) => status::answer(Success::Done, JSON, body.into_body()),
            Self::Json(changed) => {
                let answer = status::answer(changed.success, JSON, changed.body.into());
                match changed.revision {
                    Some(revision) => status::at_revision(answer, revision),
                    None => answer,
                }
            }
        }
    }

    /// The bytes that every retry gets. An outcome that is too large to be kept is shortened, for the
    /// first caller too: to refuse it would hide that the command ran, and to not keep it would let a
    /// retry run it again. What was cut is in the ledger.
    fn into_kept(self) -> Result<Kept, ApiError> {
        let fits = |body: &Bytes| body.len() <= IDEMPOTENCY_ANSWER_BYTES_MAX;
        let (success, session, body) = match self {
            Self::Created(id, body) => (Success::Created, id, body),
            Self::Json(changed) => (changed.success, changed.session, changed.body),
            Self::Exec(id, outcome) => {
                let whole = outcome.to_bytes();
                let body = if fits(&whole) {
                    whole
                } else {
                    outcome.shortened().to_bytes()
                };
                (Success::Done, id, body)
            }
        };
        if fits(&body) {
            Ok(Kept {
                success,
                session,
                body,
            })
        } else {
            Err(ApiError::answer_too_large(IDEMPOTENCY_ANSWER_BYTES_MAX))
        }
    }
}

/// Does something in one session, once per key, to its end whether or not the client stays.
pub(crate) async fn in_session<Run>(
    app: &App,
    engine: Engine,
    caller: Caller,
    id: SessionId,
    key: Option<RequestKey>,
    work: impl FnOnce(Engine, Caller) -> Run + Send + 'static,
) -> Result<Response, ApiError>
where
    Run: Future<Output = Result<Reply, ApiError>> + Send + 'static,
{
    let whole = async move {
        // A session that this caller may not know of must not even make its key claimed.
        engine.session(&caller, id).await?;
        let run = work(engine.clone(), caller.clone());
        once(&engine, &caller, key, run).await
    };
    app.detached(whole).await
}

/// A job that runs, or ran.
pub(crate) struct Started {
    pub(crate) job: JobId,
    /// An earlier request with the same key started it.
    pub(crate) replayed: bool,
}

/// Starts a job in one session, once per key. What is kept for the key is which job that was: whoever asks
/// again follows the same one from its beginning.
pub(crate) async fn job_in_session(
    app: &App,
    engine: &Engine,
    caller: &Caller,
    id: SessionId,
    key: Option<RequestKey>,
    request: StartJob,
) -> Result<Started, ApiError> {
    let (engine, caller) = (engine.clone(), caller.clone());
    let whole = async move {
        let Some(key) = key else {
            let job = engine.start_job(&caller, id, request).await?.id;
            return Ok(Started {
                job,
                replayed: false,
            });
        };
        // A session that this caller may not know of must not even make its key claimed.
        engine.session(&caller, id).await?;
        let run = {
            let (engine, caller) = (engine.clone(), caller.clone());
            async move {
                let job = engine.start_job(&caller, id, request).await?;
                Reply::json(Success::Done, id, &job_view::view(&job), None)
            }
        };
        let (answer, replayed) = kept_once(&engine, &caller, key, run).await?;
        let job = job_of(&answer.body).ok_or_else(ApiError::internal)?;
        Ok(Started { job, replayed })
    };
    app.detached(whole).await
}

/// The job that a kept answer is about.
fn job_of(body: &[u8]) -> Option<JobId> {
    let kept: serde_json::Value = serde_json::from_slice(body).ok()?;
    let job = kept.get("job")?.as_str()?;
    Uuid::try_parse(job).ok().map(JobId)
}

/// Runs a request once per key; without a key, runs it.
pub(crate) async fn once(
    engine: &Engine,
    caller: &Caller,
    key: Option<RequestKey>,
    work: impl Future<Output = Result<Reply, ApiError>> + Send + 'static,
) -> Result<Response, ApiError> {
    let Some(key) = key else {
        return work.await.map(Reply::into_response);
    };
    let (answer, replayed) = kept_once(engine, caller, key, work).await?;
    let response = status::kept(answer.status, &answer.content_type, answer.body);
    Ok(match replayed {
        true => status::marked_replayed(response),
        false => response,
    })
}

/// The answer that every request with a key gets.
struct KeptAnswer {
    status: u16,
    content_type: String,
    body: Bytes,
}

/// Runs a request once per key. Answers with what is kept for the key, and whether it was kept before.
async fn kept_once(
    engine: &Engine,
    caller: &Caller,
    key: RequestKey,
    work: impl Future<Output = Result<Reply, ApiError>> + Send + 'static,
) -> Result<(KeptAnswer, bool), ApiError> {
    let claimed = match engine
        .claim_key(caller, &key.name, &key.body_blake3)
        .await?
    {
        KeyClaim::Fresh(claimed) => claimed,
        KeyClaim::Answered {
            status,
            content_type,
            body,
        } => {
            let answer = KeptAnswer {
                status,
                content_type,
                body,
            };
            return Ok((answer, true));
        }
        KeyClaim::Done(claimed, done) => {
            let kept = Reply::of(done)?.into_kept()?;
            return Ok((keep(engine, caller, claimed, kept).await?, true));
        }
    };
    // A task of its own: even a panic must not leave the key claimed for ever.
    let outcome = tokio::spawn(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a request with an Idempotency-Key ended early");
        Err(ApiError::internal())
    });
    match outcome.and_then(Reply::into_kept) {
        Ok(kept) => Ok((keep(engine, caller, claimed, kept).await?, false)),
        Err(error) => {
            if let Err(error) = engine.release_key(caller, claimed).await {
                tracing::error!(%error, "an Idempotency-Key was not released");
            }
            Err(error)
        }
    }
}

/// The answer is durable before anyone gets it.
async fn keep(
    engine: &Engine,
    caller: &Caller,
    key: ClaimedKey,
    kept: Kept,
) -> Result<KeptAnswer, ApiError> {
    let answer = KeptAnswer {
        status: kept.success.as_u16(),
        content_type: JSON.to_owned(),
        body: kept.body,
    };
    let durable = KeyAnswer {
        status: answer.status,
        content_type: answer.content_type.clone(),
        body: answer.body.clone(),
        session: Some(kept.session),
    };
    engine.answer_key(caller, key, durable).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use fluxvm_eventstore::Actor;
    use fluxvm_eventstore::CorrelationId;

    use super::*;

    fn caller(actor: &str, tenant: Option<&str>) -> Caller {
        Caller {
            actor: Actor::parse(actor).expect("actor"),
            tenant: tenant.map(Into::into),
            request: CorrelationId::new(Uuid::from_u128(1)),
        }
    }

    fn head(path: &str) -> Parts {
        Request::post(path)
            .body(())
            .expect("request")
            .into_parts()
            .0
    }

    fn key(caller: &Caller, path: &str, key: &str) -> Result<Option<RequestKey>, ApiError> {
        let mut head = head(path);
        let value = HeaderValue::from_bytes(key.as_bytes()).expect("header");
        head.headers.insert(HEADER, value);
        RequestKey::of(&head, caller, b"{}")
    }

    #[test]
    fn a_key_is_one_to_255_visible_characters() {
        let ops = caller("admin:ops", None);
        for good in ["k", &"k".repeat(255), "a!~b"] {
            assert!(key(&ops, "/x", good).expect("valid").is_some());
        }
        for bad in ["", "a b", &"k".repeat(256), "caf\u{e9}"] {
            assert_eq!(key(&ops, "/x", bad).expect_err(bad).code(), "invalid_field");
        }
        let none = RequestKey::of(&head("/x"), &ops, b"");
        assert_eq!(none.expect("fine"), None);
    }

    #[test]
    fn a_key_belongs_to_a_tenant_or_an_actor_and_to_a_path() {
        let ops = caller("admin:ops", None);
        let name = |caller: &Caller, path: &str| {
            key(caller, path, "k").expect("valid").expect("there").name
        };
        assert_eq!(name(&ops, "/x"), name(&ops, "/x"));
        assert_ne!(name(&ops, "/x"), name(&ops, "/y"));
        assert_ne!(name(&ops, "/x"), name(&caller("admin:dev", None), "/x"));
        let tenant = |actor: &str| caller(actor, Some("a"));
        assert_eq!(
            name(&tenant("admin:ops"), "/x"),
            name(&tenant("admin:dev"), "/x")
        );
        assert_ne!(name(&tenant("admin:ops"), "/x"), name(&ops, "/x"));
    }
}
