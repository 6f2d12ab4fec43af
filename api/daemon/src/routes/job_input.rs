//! `POST …/jobs/{job}/stdin`: what a job reads while it runs.
//!
//! It comes in one of two ways. A JSON body holds a piece, and the answer says how much of it the job took. A
//! body of the content type `application/octet-stream` *is* what the job reads, of any size and passed on as
//! it comes, and is answered when the job has all of it or has ended.

use std::io;
use std::task::Poll;

use axum::extract::FromRequest;
use axum::extract::Request;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use fluxvm_api_types::JobInputView;
use fluxvm_api_types::JobStdinRequest;
use fluxvm_commands::InputBytes;
use fluxvm_commands::JobInput;
use fluxvm_commands::StdinSource;
use futures_util::FutureExt;
use futures_util::Stream;
use futures_util::stream;

use super::exec;
use super::jobs::json;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::JobPath;
use crate::app::Ready;
use crate::body::BodySlot;
use crate::body::is_bytes;
use crate::lifecycle::Stage;
use crate::query::Parameters;
use crate::status::ApiError;

pub(super) async fn stdin(
    State(app): State<App>,
    Admin(caller): Admin,
    JobPath(session, id): JobPath,
    Ready(engine): Ready,
    asked: Asked,
) -> Result<Response, ApiError> {
    let input = asked.input(&app)?;
    let stopping = app.clone();
    let work = async move {
        let taken = engine.write_to_job(&caller, session, id, input).await;
        taken.map_err(
            |error| match stopping.lifecycle().stage() >= Stage::Stopping {
                // The body did not break off by itself.
                true => ApiError::stopping(),
                false => error.into(),
            },
        )
    };
    let taken = app.detached(work).await?;
    json(&JobInputView {
        job: id.0,
        seq: taken.seq,
        written: taken.written,
        closed: taken.closed,
        next_offset: taken.taken,
    })
}

/// A request as it came.
pub(super) enum Asked {
    /// Everything is in a JSON body.
    Json(Box<JobStdinRequest>),
    /// The body is what the job reads.
    Bytes {
        /// How many bytes were written before it.
        offset: Option<u64>,
        /// Whether the job's standard input is closed after it.
        close: bool,
        body: BodySlot,
    },
}

impl FromRequest<App> for Asked {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let slot = request.extensions().get::<BodySlot>().cloned();
        let body = slot.unwrap_or_default();
        if is_bytes(request.headers()) {
            let (offset, close) = in_query(request.uri())?;
            return Ok(Self::Bytes {
                offset,
                close,
                body,
            });
        }
        no_parameters(request.uri())?;
        let asked = fluxvm_api_types::parse(&body.read().await?)?;
        Ok(Self::Json(Box::new(asked)))
    }
}

fn in_query(uri: &Uri) -> Result<(Option<u64>, bool), ApiError> {
    let parameters = Parameters::read(uri, &["offset", "close"])?;
    Ok((parameters.number("offset")?, parameters.flag("close")?))
}

impl Asked {
    fn input(self, app: &App) -> Result<JobInput, ApiError> {
        match self {
            Self::Json(asked) => whole(*asked),
            Self::Bytes {
                offset,
                close,
                body,
            } => Ok(JobInput {
                bytes: InputBytes::Stream(until_stopping(app.clone(), body.stream())),
                offset,
                close,
            }),
        }
    }
}

fn whole(asked: JobStdinRequest) -> Result<JobInput, ApiError> {
    let close = asked.close.unwrap_or(false);
    let (field, bytes) = match (asked.text, asked.data_base64) {
        (Some(text), None) => ("text", Bytes::from(text)),
        (None, Some(encoded)) => ("data_base64", exec::decoded("data_base64", &encoded)?),
        (None, None) if close => ("text", Bytes::new()),
        (None, None) => {
            let message = "nothing to write and nothing to close";
            return Err(ApiError::invalid_parameter("text", message));
        }
        (Some(_), Some(_)) => {
            let message = "is there beside text; one of the two";
            return Err(ApiError::invalid_parameter("data_base64", message));
        }
    };
    Ok(JobInput {
        bytes: InputBytes::Whole(field, bytes),
        offset: asked.offset,
        close,
    })
}

/// A body that breaks off when the daemon is told to stop: its sender comes back to the next one.
fn until_stopping(
    app: App,
    body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> StdinSource {
    let mut body = Box::pin(body);
    let stopping = async move { app.lifecycle().reached(Stage::Stopping).await };
    let mut stopping = Box::pin(stopping.fuse());
    Box::pin(stream::poll_fn(move |context| {
        if stopping.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(io::Error::other("the daemon is stopping"))));
        }
        body.as_mut().poll_next(context)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_where_a_body_belongs_and_whether_it_is_the_last() {
        let read = |query: &str| in_query(&format!("/x?{query}").parse().expect("uri"));
        assert_eq!(read("").expect("read"), (None, false));
        let both = read("offset=7&close=true").expect("read");
        assert_eq!(both, (Some(7), true));
        for (query, code) in [
            ("offset=-1", "invalid_field"),
            ("close=yes", "invalid_field"),
            ("text=a", "unknown_field"),
        ] {
            assert_eq!(read(query).expect_err(query).code(), code);
        }
    }
}
