//! Lines of bounded length out of any reader.

use std::io;
use std::io::BufRead;

/// What comes next in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// A line without its line feed.
    Whole(&'a [u8]),
    /// Bytes at the end of the file that no line feed follows.
    Unended(&'a [u8]),
    /// A line that is too long; it was skipped.
    TooLong,
    /// Nothing more.
    End,
}

/// Reads lines and holds no more than one of them.
pub(super) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    line_bytes_max: usize,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R, line_bytes_max: usize) -> Lines<R> {
        Lines {
            reader,
            buffer: Vec::new(),
            line_bytes_max,
        }
    }

    pub(super) fn next(&mut self) -> io::Result<Line<'_>> {
        self.buffer.clear();
        let mut too_long = false;
        let mut anything = false;
        loop {
            let chunk = match self.reader.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            if chunk.is_empty() {
                return Ok(match (too_long, anything) {
                    (true, _) => Line::TooLong,
                    (false, true) => Line::Unended(&self.buffer),
                    (false, false) => Line::End,
                });
            }
            anything = true;
            let feed = chunk.iter().position(|&b| b == b'\n');
            let line = chunk.get(..feed.unwrap_or(chunk.len())).unwrap_or_default();
            too_long |= self.buffer.len() + line.len() > self.line_bytes_max;
            if !too_long {
                self.buffer.extend_from_slice(line);
            }
            let used = line.len() + usize::from(feed.is_some());
            self.reader.consume(used);
            if feed.is_some() {
                return Ok(if too_long {
                    Line::TooLong
                } else {
                    Line::Whole(&self.buffer)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_is_read() {
        let text = b"ab\nabcdef\n\nx".as_slice();
        for buffer_bytes in 1..8 {
            let mut lines = Lines::new(BufReader::with_capacity(buffer_bytes, text), 4);
            assert_eq!(lines.next().unwrap(), Line::Whole(b"ab"));
            assert_eq!(lines.next().unwrap(), Line::TooLong);
            assert_eq!(lines.next().unwrap(), Line::Whole(b""));
            assert_eq!(lines.next().unwrap(), Line::Unended(b"x"));
            assert_eq!(lines.next().unwrap(), Line::End);
        }
    }
}
