//! A session's live events, as a client receives them.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;

use serde_json::Value;

use crate::wait::PATIENCE;

/// One frame of the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// `id:`, where it is an event's ledger number.
    pub id: Option<u64>,
    /// `id:`, as it came.
    pub place: Option<String>,
    /// `event:`.
    pub event: String,
    /// `data:`.
    pub data: Value,
}

impl Frame {
    /// The kind of the event that it carries.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.data["kind"].as_str().unwrap_or_default()
    }

    /// The ledger number of the event that it carries.
    ///
    /// # Panics
    ///
    /// When it carries none.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.data["seq"]
            .as_u64()
            .unwrap_or_else(|| panic!("a frame without seq: {self:?}"))
    }
}

/// A stream that is read beside the test, so that waiting for it has a limit.
#[derive(Debug)]
pub struct EventStream {
    frames: Receiver<Frame>,
}

impl EventStream {
    pub(crate) fn new(body: impl Read + Send + 'static) -> Self {
        let (sender, frames) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(body).lines();
            while let Some(frame) = next_frame(&mut lines) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        Self { frames }
    }

    /// The next frame, or `None` when the stream has ended.
    ///
    /// # Panics
    ///
    /// When nothing comes.
    pub fn next_or_end(&mut self) -> Option<Frame> {
        match self.frames.recv_timeout(PATIENCE) {
            Ok(frame) => Some(frame),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no event within {PATIENCE:?}"),
        }
    }

    /// The next frame.
    ///
    /// # Panics
    ///
    /// When the stream has ended or nothing comes.
    pub fn next_frame(&mut self) -> Frame {
        self.next_or_end()
            .expect("another event before the stream's end")
    }

    /// All frames up to and with the first event of this kind.
    ///
    /// # Panics
    ///
    /// When it does not come.
    pub fn until(&mut self, kind: &str) -> Vec<Frame> {
        let mut seen = Vec::new();
        loop {
            let frame = self.next_frame();
            let found = frame.kind() == kind;
            seen.push(frame);
            if found {
                return seen;
            }
        }
    }

    /// Everything until the stream ends.
    pub fn rest(mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.next_or_end()).collect()
    }
}

/// Reads one frame. A broken connection is the end, as it is for a client.
fn next_frame(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Option<Frame> {
    let (mut place, mut event, mut data) = (None, String::new(), String::new());
    loop {
        let line = lines.next()?.ok()?;
        if line.is_empty() {
            if data.is_empty() {
                continue;
            }
            let data = serde_json::from_str(&data).expect("data is JSON");
            let id = place.as_ref().and_then(|place: &String| place.parse().ok());
            return Some(Frame {
                id,
                place,
                event,
                data,
            });
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => place = Some(value.to_owned()),
            "event" => value.clone_into(&mut event),
            "data" => data.push_str(value),
            _ => {}
        }
    }
}
