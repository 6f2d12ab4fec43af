//! Request bodies: bounded in size and time, and never left half read in front of an answer.
//!
//! A server that answers while a client still sends, and then closes, makes the client's kernel throw
//! the answer away. So a body goes into a [`BodySlot`] at the edge; whoever wants it takes it out, and
//! what nobody wanted is read and thrown away, within limits, beside the answer: a client that reads while it
//! sends has the answer at once, and one that sends first is let finish.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::task::ready;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header;
use bytes::Bytes;
use bytes::BytesMut;
use futures_util::Stream;
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::body::Body as _;

use crate::limits::BODY_BYTES_MAX;
use crate::limits::BODY_READ_TIME_MAX;
use crate::limits::DRAIN_BYTES_MAX;
use crate::limits::DRAIN_TIME_MAX;
use crate::limits::STREAMED_DRAIN_TIME_MAX;
use crate::status::ApiError;

/// The body of one request, for whoever wants it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodySlot {
    body: Arc<Mutex<Option<Body>>>,
    /// The client sends the body only once it was asked to. Not asking is how to refuse it.
    waits: bool,
    /// It is passed on as it comes, so that it may be of any length.
    streamed: Arc<AtomicBool>,
}

impl BodySlot {
    /// Takes the body out of a request, which goes on without.
    pub(crate) fn of(request: &mut Request) -> Self {
        let body = std::mem::take(request.body_mut());
        let waits = waits_for_continue(request.headers());
        Self {
            body: Arc::new(Mutex::new(Some(body))),
            waits,
            streamed: Arc::default(),
        }
    }

    /// The body itself, for a route that passes it on as it comes.
    pub(crate) fn take(&self) -> Option<Body> {
        self.body
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Gives back what is left of a body that was taken.
    pub(crate) fn put_back(&self, body: Body) {
        *self.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    /// The whole body.
    pub(crate) async fn read(&self) -> Result<Bytes, ApiError> {
        self.read_up_to(BODY_BYTES_MAX).await
    }

    /// The whole body, if it is no longer than that.
    pub(crate) async fn read_up_to(&self, bytes_max: usize) -> Result<Bytes, ApiError> {
        let Some(mut body) = self.take() else {
            return Ok(Bytes::new());
        };
        let over = || ApiError::body_too_large(bytes_max);
        let declared = body.size_hint().lower();
        if usize::try_from(declared).is_ok_and(|bytes| bytes <= bytes_max) {
            let read =
                tokio::time::timeout(BODY_READ_TIME_MAX, collect(&mut body, bytes_max)).await;
            match read {
                Ok(Ok(Some(bytes))) => return Ok(bytes),
                Ok(Ok(None)) => {}
                Ok(Err(message)) => return Err(ApiError::body_broken(message)),
                Err(_) => return Err(ApiError::body_timeout()),
            }
        }
        self.put_back(body);
        Err(over())
    }

    /// The body as it comes. What is not taken stays for [`Self::drain`].
    pub(crate) fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        self.streamed.store(true, Ordering::Relaxed);
        stream::poll_fn(move |context| self.poll_bytes(context))
    }

    fn poll_bytes(&self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let mut slot = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some(body) = slot.as_mut() else {
                return Poll::Ready(None);
            };
            match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => {
                    *slot = None;
                    return Poll::Ready(Some(Err(io::Error::other(error))));
                }
                None => {
                    *slot = None;
                    return Poll::Ready(None);
                }
            }
        }
    }

    /// Reads and throws away what nobody wanted.
    pub(crate) async fn drain(&self) {
        let Some(mut body) = self.take() else { return };
        if self.waits || body.is_end_stream() {
            return;
        }
        let (mut left, time_max) = match self.streamed.load(Ordering::Relaxed) {
            true => (usize::MAX, STREAMED_DRAIN_TIME_MAX),
            false => (DRAIN_BYTES_MAX, DRAIN_TIME_MAX),
        };
        let all = async {
            while let Some(Ok(frame)) = body.frame().await {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                match left.checked_sub(bytes) {
                    Some(rest) => left = rest,
                    None => return,
                }
            }
        };
        // Whoever has not sent it by then does not wait for an answer either.
        let _ = tokio::time::timeout(time_max, all).await;
    }
}

/// Collects a body; `None` when it goes over the limit.
async fn collect(body: &mut Body, bytes_max: usize) -> Result<Option<Bytes>, String> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the body broke off: {error}"))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if kept.len() + data.len() > bytes_max {
            return Ok(None);
        }
        kept.extend_from_slice(data);
    }
    Ok(Some(kept.freeze()))
}

/// The content type of a body that is bytes and nothing else.
const BYTES: &str = "application/octet-stream";

/// Whether a body says that it is bytes and nothing else.
pub(crate) fn is_bytes(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let text = value.and_then(|value| value.to_str().ok());
    let media = text.and_then(|text| text.split(';').next());
    media.is_some_and(|media| media.trim().eq_ignore_ascii_case(BYTES))
}

fn waits_for_continue(headers: &HeaderMap) -> bool {
    let expect = headers.get(header::EXPECT).map(|value| value.as_bytes());
    expect.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(body: Body) -> BodySlot {
        BodySlot::of(&mut Request::new(body))
    }

    fn chunks(count: usize) -> Body {
        let chunk = Bytes::from(vec![b'x'; 1024]);
        let chunks = std::iter::repeat_n(Ok::<_, std::convert::Infallible>(chunk), count);
        Body::from_stream(futures_util::stream::iter(chunks))
    }

    #[tokio::test]
    async fn a_body_is_read_once_and_whole() {
        let slot = slot("{}".into());
        assert_eq!(slot.read().await.expect("read"), "{}");
        assert_eq!(slot.read().await.expect("nothing left"), "");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_whether_it_says_its_size_or_not() {
        let said = slot(vec![b'x'; BODY_BYTES_MAX + 1].into());
        assert_eq!(
            said.read().await.expect_err("refused").code(),
            "body_too_large"
        );
        let unsaid = slot(chunks(BODY_BYTES_MAX / 1024 + 1));
        assert_eq!(
            unsaid.read().await.expect_err("refused").code(),
            "body_too_large"
        );
        unsaid.drain().await;
        let just_so = slot(chunks(BODY_BYTES_MAX / 1024));
        assert_eq!(just_so.read().await.expect("read").len(), BODY_BYTES_MAX);
    }
}
