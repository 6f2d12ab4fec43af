//! A streaming parser of server-sent events.
//!
//! Bytes come in any portions; whole events come out. It holds at most one frame and what arrived
//! with it, and a frame over the cap is an error for good: the sender is not one of ours. It cannot
//! fail in any other way, whatever the bytes are.

use bytes::Buf;
use bytes::Bytes;
use bytes::BytesMut;

/// One event: its name and its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event` field; empty when there was none.
    pub name: Bytes,
    /// The `data` lines, joined by newlines.
    pub data: Bytes,
}

/// A frame grew over the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event-stream frame is longer than {cap_bytes} bytes")]
pub struct FrameTooLarge {
    /// The cap.
    pub cap_bytes: usize,
}

/// The parser's state between portions.
#[derive(Debug)]
pub struct SseParser {
    buffer: BytesMut,
    /// Bytes of the buffer, from its front, that are known to hold no newline past `line_start`.
    scanned: usize,
    line_start: usize,
    cap_bytes: usize,
}

impl SseParser {
    /// A parser that refuses frames over `cap_bytes`.
    pub fn new(cap_bytes: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanned: 0,
            line_start: 0,
            cap_bytes,
        }
    }

    /// Adds a portion.
    pub fn push(&mut self, portion: &[u8]) {
        self.buffer.extend_from_slice(portion);
    }

    /// The next whole event, or `None` until more bytes come. Comments are passed over.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, FrameTooLarge> {
        loop {
            let unscanned = self.buffer.get(self.scanned..).unwrap_or_default();
            let Some(found) = memchr::memchr(b'\n', unscanned) else {
                self.scanned = self.buffer.len();
                self.check_size(self.scanned)?;
                return Ok(None);
            };
            let newline = self.scanned + found;
            let line = self
                .buffer
                .get(self.line_start..newline)
                .unwrap_or_default();
            let blank = matches!(line, b"" | b"\r");
            self.scanned = newline + 1;
            self.line_start = newline + 1;
            if !blank {
                continue;
            }
            let frame = self.buffer.split_to(newline + 1).freeze();
            self.scanned = 0;
            self.line_start = 0;
            self.check_size(frame.len())?;
            if let Some(event) = parse_frame(frame) {
                return Ok(Some(event));
            }
        }
    }

    fn check_size(&self, frame_bytes: usize) -> Result<(), FrameTooLarge> {
        if frame_bytes > self.cap_bytes {
            return Err(FrameTooLarge {
                cap_bytes: self.cap_bytes,
            });
        }
        Ok(())
    }
}

/// Reads a frame's fields; `None` when it holds only comments or nothing.
fn parse_frame(frame: Bytes) -> Option<SseEvent> {
    let mut name = Bytes::new();
    let mut data: Option<Bytes> = None;
    let mut rest = frame;
    while let Some(end) = memchr::memchr(b'\n', &rest) {
        let mut line = rest.split_to(end);
        rest.advance(1);
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if let Some(value) = field_value(&line, b"data") {
            data = Some(match data {
                // The usual event has one data line, and that one is not copied.
                None => value,
                Some(before) => [&before, &b"\n"[..], &value].concat().into(),
            });
        } else if let Some(value) = field_value(&line, b"event") {
            name = value;
        }
    }
    match data {
        Some(data) => Some(SseEvent { name, data }),
        None if !name.is_empty() => Some(SseEvent {
            name,
            data: Bytes::new(),
        }),
        None => None,
    }
}

fn field_value(line: &Bytes, field: &[u8]) -> Option<Bytes> {
    let value = line.strip_prefix(field)?.strip_prefix(b":")?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Some(line.slice(line.len() - value.len()..))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(portions: &[&[u8]], cap: usize) -> Result<Vec<(String, String)>, FrameTooLarge> {
        let mut parser = SseParser::new(cap);
        let mut found = Vec::new();
        for portion in portions {
            parser.push(portion);
            while let Some(event) = parser.next_event()? {
                let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
                found.push((text(&event.name), text(&event.data)));
            }
        }
        Ok(found)
    }

    #[test]
    fn events_come_out_whole_and_comments_are_passed_over() {
        let stream = b": hi\n\nevent: output\ndata: {\"a\":1}\n\nevent:exit\r\ndata:x\r\n\r\n";
        let expected = vec![
            ("output".to_owned(), "{\"a\":1}".to_owned()),
            ("exit".to_owned(), "x".to_owned()),
        ];
        assert_eq!(events(&[stream], 1024).unwrap(), expected);
        let single: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&single, 1024).unwrap(), expected);
    }

    #[test]
    fn data_lines_are_joined_by_newlines() {
        let found = events(&[b"data: a\ndata: b\nid: 3\n\n"], 1024).unwrap();
        assert_eq!(found, vec![(String::new(), "a\nb".to_owned())]);
    }

    #[test]
    fn an_endless_frame_is_refused_at_the_cap_and_many_short_ones_are_not() {
        let portion = [b'a'; 100];
        assert!(events(&[&portion[..]; 11], 1000).is_err());
        let short = b"data: 0123456789\n\n".repeat(200);
        assert_eq!(events(&[&short], 1000).unwrap().len(), 200);
    }

    proptest! {
        #[test]
        fn no_bytes_in_any_portions_make_it_fail_otherwise(
            bytes in proptest::collection::vec(
                prop_oneof![
                    Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), any::<u8>()
                ],
                0..400,
            ),
            portion in 1_usize..50,
        ) {
            let portions: Vec<&[u8]> = bytes.chunks(portion).collect();
            let in_portions = events(&portions, 1 << 20).unwrap();
            let at_once = events(&[&bytes], 1 << 20).unwrap();
            prop_assert_eq!(in_portions, at_once);
            let _ = events(&portions, 16);
        }
    }
}
