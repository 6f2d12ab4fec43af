//! Server-sent events from a byte stream. Pure over `BufRead`; knows fields and frames, nothing of
//! what they carry. A frame that is cut off by the end of the stream is dropped, as the SSE
//! specification wants: the reader resumes after the last whole one.

use std::io;
use std::io::BufRead;
use std::io::Read;

/// Longest line accepted: a ledger event is at most 4 MiB of payload and its escapes.
const LINE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// One whole frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// `id:`, when the frame had one.
    pub(crate) id: Option<String>,
    /// `event:`; empty when none was named.
    pub(crate) event: String,
    /// The `data:` lines, joined by newlines.
    pub(crate) data: String,
}

/// Frames, one after the other.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    reader: R,
}

impl<R: BufRead> Frames<R> {
    /// Frames of this stream.
    pub(crate) fn new(reader: R) -> Self {
        Self { reader }
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let mut frame = Frame::default();
        let mut data: Option<String> = None;
        loop {
            let Some(line) = self.next_line()? else {
                return Ok(None);
            };
            if line.is_empty() {
                if let Some(data) = data.take() {
                    return Ok(Some(Frame { data, ..frame }));
                }
                frame = Frame::default();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" if !value.contains('\0') => frame.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut frame.event),
                "data" => match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                },
                _ => {}
            }
        }
    }

    fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut bytes = Vec::new();
        (&mut self.reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut bytes)?;
        if bytes.pop_if(|byte| *byte == b'\n').is_none() {
            if u64::try_from(bytes.len()).is_ok_and(|length| length == LINE_BYTES_MAX) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a line is too long",
                ));
            }
            return Ok(None);
        }
        bytes.pop_if(|byte| *byte == b'\r');
        String::from_utf8(bytes)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(text: &str) -> Vec<Frame> {
        let mut frames = Frames::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(frame) = frames.next_frame().expect("reads") {
            all.push(frame);
        }
        all
    }

    fn frame(id: Option<&str>, event: &str, data: &str) -> Frame {
        Frame {
            id: id.map(str::to_owned),
            event: event.to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn frames_end_at_an_empty_line() {
        assert_eq!(
            frames("id: 7\nevent: ledger\ndata: {}\n\nid:8\r\ndata:a\r\ndata: b\r\n\r\n"),
            [
                frame(Some("7"), "ledger", "{}"),
                frame(Some("8"), "", "a\nb")
            ]
        );
    }

    #[test]
    fn comments_and_unknown_fields_are_ignored() {
        assert_eq!(
            frames(": alive\n\nretry: 9\n\ndata\n\n"),
            [frame(None, "", "")]
        );
    }

    #[test]
    fn a_frame_cut_off_by_the_end_is_dropped() {
        assert_eq!(
            frames("data: whole\n\nid: 2\ndata: cut\n"),
            [frame(None, "", "whole")]
        );
        assert_eq!(
            frames("data: whole\n\ndata: cu"),
            [frame(None, "", "whole")]
        );
    }
}
