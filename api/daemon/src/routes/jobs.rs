//! Jobs: start, list, read, signal.

use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_api_types::JobPageView;
use fluxvm_api_types::JobSignalView;
use fluxvm_api_types::List;
use fluxvm_api_types::Milliseconds;
use fluxvm_api_types::StartJobRequest;
use fluxvm_commands::Caller;
use fluxvm_commands::Engine;
use fluxvm_commands::JobNow;
use fluxvm_commands::JobReader;
use fluxvm_commands::OutputStream;
use fluxvm_commands::StartJob;
use serde::Serialize;
use tokio::time::Instant;

use super::StrictBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::JobPath;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::job_view;
use crate::lifecycle::Stage;
use crate::limits::JOB_PAGE_BYTES;
use crate::query::Parameters;
use crate::status;
use crate::status::ApiError;
use crate::status::JSON;
use crate::status::Success;

pub(super) async fn start(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<StartJobRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let asked = body.value;
    let request = StartJob {
        command: asked.command,
        stdin: asked.stdin.unwrap_or(false),
        given: None,
        stdin_lost_ms: asked.stdin_lost_seconds.map(Milliseconds::get),
        max_output_bytes: asked.max_output_bytes,
        timeout_ms: asked.timeout_seconds.map(Milliseconds::get),
        approval_id: asked.approval_id,
        approval_wait_seconds: asked.approval_wait_seconds,
    };
    let work = async move |engine: Engine, caller: Caller| {
        let job = engine.start_job(&caller, id, request).await?;
        Reply::json(Success::Created, id, &job_view::view(&job), None)
    };
    idempotency::in_session(&app, engine, caller, id, key, work).await
}

pub(super) async fn list(
    Admin(caller): Admin,
    SessionPath(id): SessionPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    no_parameters(&uri)?;
    let jobs = engine.jobs(&caller, id).await?;
    json(&List {
        items: jobs.iter().map(job_view::view).collect(),
    })
}

pub(super) async fn get(
    State(app): State<App>,
    Admin(caller): Admin,
    JobPath(session, id): JobPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["offset", "stderr_offset", "wait_ms"])?;
    let from = Places {
        stdout: parameters.number("offset")?.unwrap_or(0),
        stderr: parameters.number("stderr_offset")?.unwrap_or(0),
    };
    let wait_ms = parameters.number("wait_ms")?.unwrap_or(0);
    if wait_ms > fluxvm_commands::limits::JOB_WAIT_MS_MAX {
        let max = fluxvm_commands::limits::JOB_WAIT_MS_MAX;
        return Err(ApiError::invalid_parameter(
            "wait_ms",
            &format!("must be at most {max}"),
        ));
    }
    let mut reader = engine.job(&caller, session, id).await?;
    let deadline = Instant::now() + Duration::from_millis(wait_ms);
    loop {
        let page = page(&mut reader, from).await?;
        let is_news = page.eof || page.next_offset > from.stdout;
        if is_news || page.stderr_next_offset > from.stderr || Instant::now() >= deadline {
            return json(&page);
        }
        tokio::select! {
            () = reader.changed() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = app.lifecycle().reached(Stage::Stopping) => return Err(ApiError::stopping()),
        }
    }
}

pub(super) async fn kill(
    State(app): State<App>,
    Admin(caller): Admin,
    JobPath(session, id): JobPath,
    Ready(engine): Ready,
    uri: Uri,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["signal"])?;
    let signal = parameters.text("signal").map(str::to_owned);
    let work = async move { Ok(engine.kill_job(&caller, session, id, signal).await?) };
    let sent = app.detached(work).await?;
    json(&JobSignalView {
        job: id.0,
        seq: sent.seq,
        signal: sent.signal,
        delivered: sent.delivered,
    })
}

/// The header with which a client says where it was.
pub(super) const LAST_EVENT_ID: &str = "Last-Event-ID";

/// Where a client wrote its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// In `offset` and `stderr_offset`.
    InQuery,
    /// In `Last-Event-ID`.
    InHeader,
}

/// A place in each of the two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) stdout: u64,
    pub(super) stderr: u64,
}

impl Places {
    /// Refuses a place behind what there is.
    pub(super) fn check(self, now: &JobNow, named: Named) -> Result<(), ApiError> {
        let wrong = |name: &str, there_bytes: u64| {
            let message = format!(
                "is behind the job's output, of which {there_bytes} bytes are there; begin at 0 or at a \
                 next offset"
            );
            Err(ApiError::invalid_parameter(name, &message))
        };
        let (stdout_name, stderr_name) = match named {
            Named::InQuery => ("offset", "stderr_offset"),
            Named::InHeader => (LAST_EVENT_ID, LAST_EVENT_ID),
        };
        if self.stdout > now.stdout_bytes {
            return wrong(stdout_name, now.stdout_bytes);
        }
        if self.stderr > now.stderr_bytes {
            return wrong(stderr_name, now.stderr_bytes);
        }
        Ok(())
    }
}

async fn page(reader: &mut JobReader, from: Places) -> Result<JobPageView, ApiError> {
    let now = reader.now()?;
    from.check(&now, Named::InQuery)?;
    let stdout = part(reader, &now, OutputStream::Stdout, from.stdout).await?;
    let stderr = part(reader, &now, OutputStream::Stderr, from.stderr).await?;
    let next_offset = from.stdout + stdout.len() as u64;
    let stderr_next_offset = from.stderr + stderr.len() as u64;
    let read_up = next_offset == now.stdout_bytes && stderr_next_offset == now.stderr_bytes;
    let full = stdout.len() >= JOB_PAGE_BYTES - 3 || stderr.len() >= JOB_PAGE_BYTES - 3;
    let exit = job_view::exit(&now);
    let text = |bytes, dropped_bytes| job_view::text(job_view::shown(bytes, dropped_bytes));
    Ok(JobPageView {
        output: text(&stdout, now.stdout_dropped_bytes).into_owned(),
        output_base64: job_view::base64(&stdout),
        next_offset,
        stderr: text(&stderr, now.stderr_dropped_bytes).into_owned(),
        stderr_base64: job_view::base64(&stderr),
        stderr_next_offset,
        // The beginning of a character alone is nothing to come back for at once.
        more: !read_up && (full || now.ended()),
        truncated: exit.truncated,
        dropped_bytes: exit.dropped_bytes,
        eof: now.ended() && read_up,
        job: job_view::view(&now.job),
    })
}

async fn part(
    reader: &mut JobReader,
    now: &JobNow,
    stream: OutputStream,
    from: u64,
) -> Result<Bytes, ApiError> {
    let kept_bytes = match stream {
        OutputStream::Stdout => now.stdout_bytes,
        OutputStream::Stderr => now.stderr_bytes,
    };
    if from >= kept_bytes {
        return Ok(Bytes::new());
    }
    let wanted = usize::try_from(kept_bytes - from).unwrap_or(usize::MAX);
    let mut bytes = reader
        .read(stream, from, wanted.min(JOB_PAGE_BYTES))
        .await?;
    let is_end = now.ended() && from + bytes.len() as u64 == kept_bytes;
    bytes.truncate(job_view::whole_text(&bytes, is_end));
    Ok(bytes)
}

pub(super) fn json(value: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(value).map_err(|_| ApiError::internal())?;
    Ok(status::answer(Success::Done, JSON, body.into()))
}
