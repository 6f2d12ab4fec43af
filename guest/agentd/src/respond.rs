//! Answers: the body type, and the shapes that errors take.

use std::io;
use std::pin::Pin;
use std::task::Context;
use std::task::Poll;

use agentd_protocol::ErrorBody;
use agentd_protocol::Slug;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::StatusCode;
use hyper::body::Body;
use hyper::body::Frame;
use hyper::body::SizeHint;
use hyper::header::ALLOW;
use hyper::header::CACHE_CONTROL;
use hyper::header::CONNECTION;
use hyper::header::CONTENT_TYPE;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::exec::Follow;
use crate::exec::Refusal;

/// An answer.
pub(crate) type Answer = Response<AnswerBody>;

/// What an answer carries.
pub(crate) enum AnswerBody {
    Whole(Full<Bytes>),
    Stream(Box<Follow>),
    /// What a thread reads; an error cuts the answer off, so that it never looks whole.
    Download(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body)
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            Self::Stream(follow) => follow
                .poll_next(context)
                .map(|frame| frame.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Download(portions) => portions
                .poll_recv(context)
                .map(|portion| portion.map(|bytes| bytes.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Stream(_) | Self::Download(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Stream(_) | Self::Download(_) => SizeHint::default(),
        }
    }
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    whole(status, Bytes::new())
}

/// The answer to a method that a path does not know.
pub(crate) fn method_not_allowed(allowed: &str) -> Answer {
    let mut answer = empty(StatusCode::METHOD_NOT_ALLOWED);
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        answer.headers_mut().insert(ALLOW, allowed);
    }
    answer
}

/// Prose.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = whole(status, text.into().into());
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// A JSON value.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    let Ok(bytes) = serde_json::to_vec(value) else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut answer = whole(status, bytes.into());
    let kind = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// Bytes at hand.
pub(crate) fn bytes(kind: &'static str, bytes: Bytes) -> Answer {
    let mut answer = whole(StatusCode::OK, bytes);
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// A refusal on an exec route.
pub(crate) fn refused(refusal: &Refusal) -> Answer {
    let status = match refusal.slug {
        Slug::MalformedRequest
        | Slug::UnknownUser
        | Slug::UnknownGroup
        | Slug::UnknownShell
        | Slug::PoweroffUnavailable
        | Slug::PolicyUnenforceable => StatusCode::BAD_REQUEST,
        Slug::StdinWriteTimeout => StatusCode::REQUEST_TIMEOUT,
        Slug::StdinClosed => StatusCode::GONE,
        Slug::StdinWriteTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Slug::UnknownExec => StatusCode::NOT_FOUND,
        Slug::StillRunning
        | Slug::AlreadyAcked
        | Slug::StdinNotRequested
        | Slug::StdinGap
        | Slug::NoTerminal
        | Slug::GenerationConflict => StatusCode::CONFLICT,
        Slug::SpawnFailed | Slug::StdinWriteFailed | Slug::InternalError => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let error = refusal.slug.as_str().to_owned();
    json(
        status,
        &ErrorBody {
            error,
            detail: refusal.detail.clone(),
            x: refusal.x,
        },
    )
}

/// An exec's events.
pub(crate) fn event_stream(follow: Follow) -> Answer {
    let mut answer = Response::new(AnswerBody::Stream(Box::new(follow)));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    answer
}

/// Bytes that a thread reads as they are sent.
pub(crate) fn download(kind: &'static str, portions: mpsc::Receiver<io::Result<Bytes>>) -> Answer {
    let mut answer = Response::new(AnswerBody::Download(portions));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Has the connection closed after this answer.
pub(crate) fn closing(mut answer: Answer) -> Answer {
    answer
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn whole(status: StatusCode, bytes: Bytes) -> Answer {
    let mut answer = Response::new(AnswerBody::Whole(Full::new(bytes)));
    *answer.status_mut() = status;
    answer
}
