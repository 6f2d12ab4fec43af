//! `POST …/replay`.

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use fluxvm_api_types::Milliseconds;
use fluxvm_api_types::ReplayRequest;
use fluxvm_commands::Replay;
use fluxvm_commands::ReplayAnswer;
use fluxvm_commands::ReplayStep;
use fluxvm_projections::SessionId;

use super::StrictBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::auth::Identity;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn replay(
    State(app): State<App>,
    Admin(caller): Admin,
    Extension(identity): Extension<Identity>,
    SessionPath(source): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
    body: StrictBody<ReplayRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let request = understood(body.value);
    if let Some(scope) = &identity.scope {
        scope
            .replays_into(request.target)
            .map_err(ApiError::out_of_scope)?;
        if makes_a_child(&request) {
            let message = "no session token makes a child: name a target".to_owned();
            return Err(ApiError::out_of_scope(message));
        }
    }
    let work = async move { Ok(engine.replay(&caller, source, request).await?) };
    let answer = app.detached(work).await?;
    let body = serde_json::to_vec(&view(answer)).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}

/// Whether a child becomes the target.
fn makes_a_child(request: &Replay) -> bool {
    request.checkpoint.is_some() && request.target.is_none() && !request.dry_run
}

fn understood(request: ReplayRequest) -> Replay {
    Replay {
        target: request.target.map(SessionId),
        dry_run: request.dry_run.unwrap_or(false),
        since: request.since,
        until: request.until,
        checkpoint: request.checkpoint,
        from: request.from,
        to: request.to,
        stop_on_failure: request.stop_on_failure.unwrap_or(true),
        timeout_ms: request.timeout_seconds.map(Milliseconds::get),
    }
}

fn view(answer: ReplayAnswer) -> fluxvm_api_types::ReplayAnswer {
    fluxvm_api_types::ReplayAnswer {
        source: answer.source.0,
        target: answer.target.map(|target| target.0),
        dry_run: answer.dry_run,
        seq: answer.seq,
        steps: answer.steps.into_iter().map(step).collect(),
        skipped: answer
            .skipped
            .into_iter()
            .map(|skipped| fluxvm_api_types::SkippedStep {
                seq: skipped.seq,
                kind: skipped.kind,
                reason: skipped.reason,
            })
            .collect(),
        stopped_at: answer.stopped_at,
        stopped_because: answer.stopped_because,
        diverged_at: answer.diverged_at,
    }
}

fn step(step: ReplayStep) -> fluxvm_api_types::ReplayStep {
    let result = step.result.as_ref();
    let exec = result.and_then(|result| result.exec);
    fluxvm_api_types::ReplayStep {
        seq: step.seq,
        kind: step.kind,
        command: step.command,
        recorded: step.recorded,
        replayed: result.map(|result| result.replayed.clone()),
        same: result.map(|result| result.same),
        recorded_exit_code: step.recorded_exit_code,
        exit_code: exec.map(|exec| exec.exit_code),
        same_exit_code: exec.map(|exec| exec.same_exit_code),
        same_stdout: exec.map(|exec| exec.same_stdout),
        same_stderr: exec.map(|exec| exec.same_stderr),
        target_seq: result.map(|result| result.seq),
        duration_ms: exec.map(|exec| exec.duration_ms),
        error: step.error.map(|error| fluxvm_api_types::StepError {
            code: error.code,
            message: error.message,
        }),
    }
}
