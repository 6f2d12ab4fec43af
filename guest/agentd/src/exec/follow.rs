//! An exec's output as an event stream: the body of a streaming answer.

use std::pin::Pin;
use std::rc::Rc;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use agentd_protocol::ExitEvent;
use agentd_protocol::GapEvent;
use agentd_protocol::event_names;
use agentd_protocol::limits::OUTPUT_EVENT_BYTES_MAX;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::Instant;
use tokio::time::Sleep;

use super::Exec;
use super::output::NextEvent;
use super::output::ReaderKey;
use super::ring::Piece;

/// Bytes of an output event beside its base64.
const EVENT_OVERHEAD_BYTES: usize = 96;

/// A reader of one exec. While it lives the exec's output is held for it.
pub(crate) struct Follow {
    exec: Rc<Exec>,
    key: ReaderKey,
    keepalive: Duration,
    last_sent: Instant,
    silence: Pin<Box<Sleep>>,
    finished: bool,
}

impl Follow {
    /// Attaches at `offset`.
    pub(crate) fn attach(exec: Rc<Exec>, offset: u64, keepalive: Duration) -> Self {
        let key = exec.output.borrow_mut().attach(offset);
        // What was held for this reader is no longer.
        exec.room_made.notify_one();
        let silence = Box::pin(tokio::time::sleep(keepalive));
        Self {
            exec,
            key,
            keepalive,
            last_sent: Instant::now(),
            silence,
            finished: false,
        }
    }

    /// The next frame; `None` after the exit.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.finished {
            return Poll::Ready(None);
        }
        let mut output = self.exec.output.borrow_mut();
        let event = output.next_event(self.key, OUTPUT_EVENT_BYTES_MAX, context.waker());
        let frame = match event {
            NextEvent::Gap(gap) => gap_frame(gap),
            NextEvent::Exit(exit) => {
                self.finished = true;
                exit_frame(exit)
            }
            NextEvent::Output(piece) => {
                let (frame, bytes) = (output_frame(piece), piece.bytes.len());
                output.advance(self.key, bytes);
                self.exec.room_made.notify_one();
                frame
            }
            NextEvent::Wait => {
                drop(output);
                return self.poll_silence(context);
            }
        };
        self.last_sent = Instant::now();
        Poll::Ready(Some(frame))
    }

    /// A comment when nothing was sent for a while. The timer is only moved when it fires, not
    /// with every frame.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        while self.silence.as_mut().poll(context).is_ready() {
            let due = self.last_sent + self.keepalive;
            if due <= Instant::now() {
                self.last_sent = Instant::now();
                self.silence.as_mut().reset(self.last_sent + self.keepalive);
                return Poll::Ready(Some(Bytes::from_static(b": keep-alive\n\n")));
            }
            self.silence.as_mut().reset(due);
        }
        Poll::Pending
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.exec.output.borrow_mut().detach(self.key);
        self.exec.room_made.notify_one();
    }
}

/// Written by hand: it is the one event whose cost counts.
fn output_frame(piece: Piece<'_>) -> Bytes {
    let encoded_bytes = piece.bytes.len().div_ceil(3) * 4;
    let mut frame = String::with_capacity(encoded_bytes + EVENT_OVERHEAD_BYTES);
    frame.push_str("event: output\ndata: {\"offset\":");
    frame.push_str(&piece.offset.to_string());
    frame.push_str(",\"stream\":\"");
    frame.push_str(piece.stream.as_str());
    frame.push_str("\",\"output\":\"");
    base64_simd::STANDARD.encode_append(piece.bytes, &mut frame);
    frame.push_str("\"}\n\n");
    frame.into()
}

fn gap_frame(gap: GapEvent) -> Bytes {
    json_frame(event_names::GAP, &gap)
}

fn exit_frame(exit: &ExitEvent) -> Bytes {
    json_frame(event_names::EXIT, exit)
}

fn json_frame(name: &str, data: &impl Serialize) -> Bytes {
    // Neither event holds anything that JSON cannot say, so there is nothing to lose here.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use agentd_protocol::OutputEvent;
    use agentd_protocol::OutputStream;

    use super::*;

    #[test]
    fn the_frame_written_by_hand_is_the_event_that_the_protocol_names() {
        let piece = Piece {
            offset: 12,
            stream: OutputStream::Stderr,
            bytes: b"\xff\x00hi",
        };
        let frame = output_frame(piece);
        let text = std::str::from_utf8(&frame).unwrap();
        let data = text.strip_prefix("event: output\ndata: ").unwrap();
        let data = data.strip_suffix("\n\n").unwrap();
        let event: OutputEvent = serde_json::from_str(data).unwrap();
        let expected = OutputEvent {
            offset: 12,
            stream: OutputStream::Stderr,
            output: "/wBoaQ==".into(),
        };
        assert_eq!(event, expected);
        assert_eq!(serde_json::to_string(&expected).unwrap(), data);
    }
}
