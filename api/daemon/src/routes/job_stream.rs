//! `GET …/jobs/{job}/stream` and `POST …/exec/stream`: a job's output as it comes.
//!
//! The id of each frame is the place in both streams after it, `<stdout>:<stderr>`. A client that comes
//! back with it, to this daemon or the next, gets what follows. What is sent is read from the disk when the
//! client reads: a slow one holds back nobody.

use std::convert::Infallible;
use std::io::Write;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Uri;
use axum::http::header;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_api_types::ExecRequest;
use fluxvm_commands::JobNow;
use fluxvm_commands::JobReader;
use fluxvm_commands::OutputStream;
use fluxvm_commands::StartJob;
use fluxvm_commands::limits::EXEC_TIMEOUT_DEFAULT_MS;
use fluxvm_commands::limits::JOB_OUTPUT_BYTES_MAX;
use fluxvm_projections::JobState;
use futures_util::stream;
use tokio::time::Instant;

use super::StrictBody;
use super::exec;
use super::jobs::LAST_EVENT_ID;
use super::jobs::Named;
use super::jobs::Places;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::JobPath;
use crate::app::Ready;
use crate::app::SessionPath;
use crate::event_view::write_error_frame;
use crate::idempotency;
use crate::idempotency::RequestKey;
use crate::idempotency::Started;
use crate::job_streams::JobStreamPermit;
use crate::job_view;
use crate::lifecycle::Stage;
use crate::limits::JOB_FRAME_BYTES;
use crate::limits::STREAM_KEEP_ALIVE;
use crate::limits::STREAM_TIME_MAX;
use crate::query::Parameters;
use crate::query::read_number;
use crate::status;
use crate::status::ApiError;
use crate::status::Success;

/// The content type.
const EVENT_STREAM: &str = "text/event-stream";

/// The first bytes: they send the head out at once, and tell how soon to come back.
const OPENING: &[u8] = b": output of this job\nretry: 1000\n\n";

const KEEP_ALIVE: &[u8] = b": still here\n\n";

pub(super) async fn follow(
    State(app): State<App>,
    Admin(caller): Admin,
    JobPath(session, id): JobPath,
    Ready(engine): Ready,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let parameters = Parameters::read(&uri, &["offset", "stderr_offset", "encoding"])?;
    // Where the client was wins over where it first started: it comes back with the same URL.
    let in_query = Places {
        stdout: parameters.number("offset")?.unwrap_or(0),
        stderr: parameters.number("stderr_offset")?.unwrap_or(0),
    };
    let (from, named) = match last_event_id(&headers)? {
        Some(resumed) => (resumed, Named::InHeader),
        None => (in_query, Named::InQuery),
    };
    let encoding = Encoding::read(parameters.text("encoding"))?;
    let mut reader = engine.job(&caller, session, id).await?;
    from.check(&reader.now()?, named)?;
    let permit = app.job_streams().permit(session)?;
    Ok(answer(Follower {
        app,
        reader,
        at: from,
        encoding,
        deadline: Instant::now() + STREAM_TIME_MAX,
        next: Next::Open(OPENING.into()),
        _permit: permit,
    }))
}

pub(super) async fn exec(
    State(app): State<App>,
    Admin(caller): Admin,
    SessionPath(session): SessionPath,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<ExecRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let (request, stdin) = exec::understood(body.value)?;
    // Before the command: one that nobody can follow is not started.
    let permit = app.job_streams().permit(session)?;
    let request = StartJob {
        command: request.command,
        stdin: stdin.is_some(),
        given: stdin,
        stdin_lost_ms: None,
        // As much as there can be, so that a client that keeps up gets everything.
        max_output_bytes: Some(JOB_OUTPUT_BYTES_MAX),
        timeout_ms: Some(request.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS)),
        approval_id: request.approval_id,
        approval_wait_seconds: request.approval_wait_seconds,
    };
    let started = idempotency::job_in_session(&app, &engine, &caller, session, key, request);
    let Started { job, replayed } = started.await?;
    let reader = engine.job(&caller, session, job).await?;
    let mut opening = OPENING.to_vec();
    // An id and a UUID: writing it to memory cannot fail.
    let _ = write!(
        opening,
        "event: start\nid: 0:0\ndata: {{\"job\":\"{job}\"}}\n\n"
    );
    let answer = answer(Follower {
        app,
        reader,
        at: Places {
            stdout: 0,
            stderr: 0,
        },
        encoding: Encoding::Both,
        deadline: Instant::now() + STREAM_TIME_MAX,
        next: Next::Open(opening.into()),
        _permit: permit,
    });
    Ok(match replayed {
        true => status::marked_replayed(answer),
        false => answer,
    })
}

fn answer(follower: Follower) -> Response {
    let chunks = stream::unfold(follower, async |mut follower: Follower| {
        let chunk = follower.next_chunk().await?;
        Some((Ok::<_, Infallible>(chunk), follower))
    });
    let mut response = status::answer(Success::Done, EVENT_STREAM, Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Proxies that buffer answers would undo the pushing.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Places>, ApiError> {
    let Some(value) = headers.get(LAST_EVENT_ID) else {
        return Ok(None);
    };
    let parts = value.to_str().ok().and_then(|text| text.split_once(':'));
    let places = parts.and_then(|(stdout, stderr)| {
        Some(Places {
            stdout: read_number(stdout)?,
            stderr: read_number(stderr)?,
        })
    });
    let message = "must be the id of a frame: <stdout>:<stderr>";
    places
        .map(Some)
        .ok_or_else(|| ApiError::invalid_parameter(LAST_EVENT_ID, message))
}

/// How output is written into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As text and in base64. The beginning of a character waits for its rest.
    Both,
    /// In base64 alone: half as much to send, and nothing waits.
    Base64,
}

impl Encoding {
    fn read(text: Option<&str>) -> Result<Self, ApiError> {
        match text {
            None => Ok(Self::Both),
            Some("base64") => Ok(Self::Base64),
            Some(_) => Err(ApiError::invalid_parameter("encoding", "must be base64")),
        }
    }
}

/// One client's place in one job's output.
struct Follower {
    app: App,
    reader: JobReader,
    at: Places,
    encoding: Encoding,
    deadline: Instant,
    next: Next,
    _permit: JobStreamPermit,
}

/// What the next chunk is about.
enum Next {
    /// These bytes.
    Open(Bytes),
    /// Output.
    Output,
    /// Nothing: the last frame is out.
    Nothing,
}

impl Follower {
    async fn next_chunk(&mut self) -> Option<Bytes> {
        match std::mem::replace(&mut self.next, Next::Output) {
            Next::Open(opening) => return Some(opening),
            Next::Output => {}
            Next::Nothing => {
                self.next = Next::Nothing;
                return None;
            }
        }
        loop {
            let now = match self.reader.now() {
                Ok(now) => now,
                Err(error) => return Some(self.end(&error.into())),
            };
            match self.output(&now).await {
                Ok(chunk) if !chunk.is_empty() => return Some(chunk.into()),
                Ok(_) => {}
                Err(error) => return Some(self.end(&error)),
            }
            if now.ended() {
                return Some(self.exit(&now));
            }
            tokio::select! {
                () = self.reader.changed() => {}
                () = self.app.lifecycle().reached(Stage::Stopping) => {
                    return Some(self.end(&ApiError::stopping()));
                }
                () = tokio::time::sleep_until(self.deadline) => return Some(self.end(&time_limit())),
                () = tokio::time::sleep(STREAM_KEEP_ALIVE) => {
                    return Some(Bytes::from_static(KEEP_ALIVE));
                }
            }
        }
    }

    /// The frames of what can be read now, at most one of each stream.
    async fn output(&mut self, now: &JobNow) -> Result<Vec<u8>, ApiError> {
        let mut chunk = Vec::new();
        for (stream, from, kept_bytes) in [
            (OutputStream::Stdout, self.at.stdout, now.stdout_bytes),
            (OutputStream::Stderr, self.at.stderr, now.stderr_bytes),
        ] {
            if from >= kept_bytes {
                continue;
            }
            let wanted = usize::try_from(kept_bytes - from).unwrap_or(usize::MAX);
            let mut bytes = self
                .reader
                .read(stream, from, wanted.min(JOB_FRAME_BYTES))
                .await?;
            if self.encoding == Encoding::Both {
                let is_end = now.ended() && from + bytes.len() as u64 == kept_bytes;
                bytes.truncate(job_view::whole_text(&bytes, is_end));
            }
            if !bytes.is_empty() {
                let dropped_bytes = match (from + bytes.len() as u64 == kept_bytes, stream) {
                    (false, _) => 0,
                    (true, OutputStream::Stdout) => now.stdout_dropped_bytes,
                    (true, OutputStream::Stderr) => now.stderr_dropped_bytes,
                };
                self.write(&mut chunk, stream, from, (&bytes, dropped_bytes));
            }
        }
        Ok(chunk)
    }

    /// Writes one frame, of bytes after which so many were dropped.
    fn write(
        &mut self,
        chunk: &mut Vec<u8>,
        stream: OutputStream,
        from: u64,
        (bytes, dropped_bytes): (&[u8], u64),
    ) {
        let next = from + bytes.len() as u64;
        let name = match stream {
            OutputStream::Stdout => {
                self.at.stdout = next;
                "output"
            }
            OutputStream::Stderr => {
                self.at.stderr = next;
                "stderr"
            }
        };
        chunk.reserve(bytes.len() * 5 / 2 + 128);
        let Places { stdout, stderr } = self.at;
        // Writing to memory cannot fail.
        let _ = write!(
            chunk,
            "event: {name}\nid: {stdout}:{stderr}\ndata: {{\"offset\":{from},\"next_offset\":{next}"
        );
        if self.encoding == Encoding::Both {
            chunk.extend_from_slice(b",\"output\":");
            let text = job_view::text(job_view::shown(bytes, dropped_bytes));
            let _ = serde_json::to_writer(&mut *chunk, &text);
        }
        chunk.extend_from_slice(b",\"output_base64\":\"");
        job_view::write_base64(chunk, bytes);
        chunk.extend_from_slice(b"\"}\n\n");
    }

    /// The last frame of a job that ended.
    fn exit(&mut self, now: &JobNow) -> Bytes {
        if now.job.state == JobState::Failed {
            let (code, reason) = now.job.failure.clone().unwrap_or_default();
            return self.end(&ApiError::job_end(code, reason));
        }
        self.next = Next::Nothing;
        let Places { stdout, stderr } = self.at;
        let view = serde_json::to_string(&job_view::exit(now)).unwrap_or_default();
        format!("event: exit\nid: {stdout}:{stderr}\ndata: {view}\n\n").into()
    }

    fn end(&mut self, end: &ApiError) -> Bytes {
        self.next = Next::Nothing;
        let mut chunk = Vec::new();
        write_error_frame(&mut chunk, &end.body());
        chunk.into()
    }
}

fn time_limit() -> ApiError {
    ApiError::stream_end(
        "stream_time_limit",
        "a job's stream lasts an hour; come back with Last-Event-ID",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_two_numbers() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("last-event-id", HeaderValue::from_static(text));
            last_event_id(&headers)
        };
        let place = Places {
            stdout: 12,
            stderr: 0,
        };
        assert_eq!(read("12:0").expect("read"), Some(place));
        assert_eq!(last_event_id(&HeaderMap::new()).expect("none"), None);
        for bad in ["", "12", "12:", ":", "-1:0", "1:2:3", "a:b"] {
            assert_eq!(read(bad).expect_err(bad).code(), "invalid_field");
        }
    }
}
