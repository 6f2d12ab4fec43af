//! An exec's output as it arrives.

use std::sync::Arc;
use std::time::Duration;

use agentd_protocol::ExitEvent;
use agentd_protocol::GapEvent;
use agentd_protocol::OutputStream;
use agentd_protocol::event_names;
use agentd_protocol::limits::SSE_FRAME_BYTES_MAX;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;

use crate::ClientError;
use crate::SseEvent;
use crate::SseParser;
use crate::pool::Pool;
use crate::pool::Sender;

/// How long a finished stream's connection is watched for its end before it is given up.
const END_OF_BODY_MAX: Duration = Duration::from_secs(1);

/// Something that happened to an exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote bytes.
    Output {
        /// The offset of the first byte in the exec's one offset space.
        offset: u64,
        /// Where they were written.
        stream: OutputStream,
        /// The exact bytes.
        bytes: Bytes,
    },
    /// The bytes `from..to` are lost to this reader.
    Gap {
        /// The first lost offset.
        from: u64,
        /// The offset after the last lost one.
        to: u64,
    },
    /// It ended; always last.
    Exit(ExitEvent),
}

impl ExecEvent {
    /// The offset to resume at after this event.
    pub fn next_offset(&self) -> u64 {
        match self {
            Self::Output { offset, bytes, .. } => {
                offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Self::Gap { to, .. } => *to,
            Self::Exit(exit) => exit.offset,
        }
    }
}

/// A followed exec. Dropping it detaches; the exec does not notice.
pub struct ExecStream {
    body: Option<Incoming>,
    sender: Option<Sender>,
    pool: Arc<Pool>,
    parser: SseParser,
}

impl std::fmt::Debug for ExecStream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ExecStream").finish_non_exhaustive()
    }
}

impl ExecStream {
    pub(crate) fn new(body: Incoming, sender: Sender, pool: Arc<Pool>) -> Self {
        let parser = SseParser::new(SSE_FRAME_BYTES_MAX);
        Self {
            body: Some(body),
            sender: Some(sender),
            pool,
            parser,
        }
    }

    /// The next event; `None` after the exit and after an error. A stream that ends without an
    /// exit is a cut connection, and says [`ClientError::Disconnected`]: resume it at the last
    /// event's [`ExecEvent::next_offset`].
    pub async fn next(&mut self) -> Option<Result<ExecEvent, ClientError>> {
        loop {
            match self.parser.next_event() {
                Ok(Some(event)) => match decode(&event) {
                    Ok(Some(event)) => {
                        if matches!(event, ExecEvent::Exit(_)) {
                            self.finish();
                        }
                        return Some(Ok(event));
                    }
                    Ok(None) => continue,
                    Err(error) => return Some(Err(self.fail(error))),
                },
                Ok(None) => {}
                Err(error) => {
                    return Some(Err(self.fail(ClientError::Protocol(error.to_string()))));
                }
            }
            match self.body.as_mut()?.frame().await {
                Some(Ok(frame)) => {
                    if let Some(portion) = frame.data_ref() {
                        self.parser.push(portion);
                    }
                }
                Some(Err(_)) | None => return Some(Err(self.fail(ClientError::Disconnected))),
            }
        }
    }

    fn fail(&mut self, error: ClientError) -> ClientError {
        self.body = None;
        self.sender = None;
        self.parser = SseParser::new(SSE_FRAME_BYTES_MAX);
        error
    }

    /// After the exit the body ends by itself; its connection is then good for another request.
    fn finish(&mut self) {
        let (Some(mut body), Some(sender)) = (self.body.take(), self.sender.take()) else {
            return;
        };
        self.parser = SseParser::new(SSE_FRAME_BYTES_MAX);
        let pool = Arc::clone(&self.pool);
        let end = async move {
            while let Some(frame) = body.frame().await {
                if frame.is_err() {
                    return;
                }
            }
            pool.give_back(sender).await;
        };
        let mut end = Box::pin(end);
        if end.as_mut().now_or_never().is_none() {
            tokio::spawn(tokio::time::timeout(END_OF_BODY_MAX, end));
        }
    }
}

/// An output event whose text stays where it arrived.
#[derive(Deserialize)]
struct BorrowedOutput<'a> {
    offset: u64,
    stream: OutputStream,
    #[serde(borrow)]
    output: std::borrow::Cow<'a, str>,
}

/// Reads an event; `None` for one that a newer daemon knows and we do not.
fn decode(event: &SseEvent) -> Result<Option<ExecEvent>, ClientError> {
    let protocol = |error: serde_json::Error| ClientError::Protocol(error.to_string());
    if event.name == event_names::OUTPUT {
        let output: BorrowedOutput<'_> = serde_json::from_slice(&event.data).map_err(protocol)?;
        let bytes = base64_simd::STANDARD
            .decode_to_vec(output.output.as_bytes())
            .map_err(|_| ClientError::Protocol("output is not base64".into()))?;
        let (offset, stream) = (output.offset, output.stream);
        return Ok(Some(ExecEvent::Output {
            offset,
            stream,
            bytes: bytes.into(),
        }));
    }
    if event.name == event_names::GAP {
        let GapEvent { from, to } = serde_json::from_slice(&event.data).map_err(protocol)?;
        return Ok(Some(ExecEvent::Gap { from, to }));
    }
    if event.name == event_names::EXIT {
        let exit = serde_json::from_slice(&event.data).map_err(protocol)?;
        return Ok(Some(ExecEvent::Exit(exit)));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(name: &str, data: &[u8]) -> SseEvent {
        let copy = Bytes::copy_from_slice;
        SseEvent {
            name: copy(name.as_bytes()),
            data: copy(data),
        }
    }

    #[test]
    fn output_is_decoded_to_its_exact_bytes() {
        let found = decode(&event(
            "output",
            br#"{"offset":7,"stream":"stderr","output":"w4I="}"#,
        ));
        let expected = ExecEvent::Output {
            offset: 7,
            stream: OutputStream::Stderr,
            bytes: Bytes::from_static(b"\xc3\x82"),
        };
        assert_eq!(expected.next_offset(), 9);
        assert_eq!(found.unwrap(), Some(expected));
    }

    #[test]
    fn a_name_that_we_do_not_know_is_passed_over() {
        assert_eq!(decode(&event("later", b"{}")).unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_data_makes_decoding_panic(
            name in prop_oneof![Just("output"), Just("gap"), Just("exit")],
            data in proptest::collection::vec(any::<u8>(), 0..200),
            text in r#"\{"offset":[0-9]{1,25},"stream":"stdout","output":"[A-Za-z=\\]{0,20}"\}"#,
        ) {
            let _ = decode(&event(name, &data));
            let _ = decode(&event(name, text.as_bytes()));
        }
    }
}
