//! Reading request bodies: never more than a cap, never longer than a deadline.

use std::time::Duration;

use agentd_protocol::limits::DRAIN_BYTES_MAX;
use agentd_protocol::limits::DRAIN_DEADLINE;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Body;
use hyper::body::Incoming;
use hyper::header::EXPECT;

/// A body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFault {
    TooLong,
    TooSlow,
    CutOff,
}

/// Reads a whole body of at most `bytes_max`. One that is announced longer is not read at all.
pub(crate) async fn read(body: &mut Incoming, bytes_max: usize) -> Result<Vec<u8>, BodyFault> {
    let announced = body.size_hint().lower();
    if announced > u64::try_from(bytes_max).unwrap_or(u64::MAX) {
        return Err(BodyFault::TooLong);
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyFault::CutOff)?;
        let Some(portion) = frame.data_ref() else {
            continue;
        };
        if bytes.len() + portion.len() > bytes_max {
            return Err(BodyFault::TooLong);
        }
        bytes.extend_from_slice(portion);
    }
    Ok(bytes)
}

/// [`read`] within a deadline.
pub(crate) async fn read_within(
    body: &mut Incoming,
    bytes_max: usize,
    deadline: Duration,
) -> Result<Vec<u8>, BodyFault> {
    tokio::time::timeout(deadline, read(body, bytes_max))
        .await
        .unwrap_or(Err(BodyFault::TooSlow))
}

/// Reads and forgets a refused request's body, so that its connection can be used again. `false`
/// when the body is too long or too slow for that, or waits to be asked for.
pub(crate) async fn drain(headers: &HeaderMap, body: &mut Incoming) -> bool {
    if body.is_end_stream() {
        return true;
    }
    let announced = body.size_hint().lower();
    let bytes_max = u64::try_from(DRAIN_BYTES_MAX).unwrap_or(u64::MAX);
    if headers.contains_key(EXPECT) || announced > bytes_max {
        return false;
    }
    let drained = async {
        let mut left = DRAIN_BYTES_MAX;
        while let Some(frame) = body.frame().await {
            let portion = frame.as_ref().ok().and_then(|frame| frame.data_ref());
            match left.checked_sub(portion.map_or(0, bytes::Bytes::len)) {
                Some(less) if frame.is_ok() => left = less,
                _ => return false,
            }
        }
        true
    };
    tokio::time::timeout(DRAIN_DEADLINE, drained)
        .await
        .unwrap_or(false)
}
