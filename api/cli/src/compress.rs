//! Exports that are compressed with zstd. The verifier knows nothing of it: it is handed the lines.
//!
//! Written is one frame for every so many bytes, one behind the other, which every zstd program reads
//! as one file. Read is whatever begins with the mark of such a frame, up to a limit: a file that
//! was made to fill a disk or to take days is refused instead.

use std::io;
use std::io::BufRead;
use std::io::Read;
use std::io::Write;

use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::CompressionLevel;
use ruzstd::encoding::compress_to_vec;

/// How every frame begins.
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that go into one frame: enough for the ratio, little enough for memory.
const FRAME_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that are decompressed at most: more than any ledger that is mailed to somebody.
const DECOMPRESSED_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;

/// Compresses what is written to it. It is whole when [`Compressed::finish`] has returned.
pub(crate) struct Compressed<W> {
    sink: W,
    gathered: Vec<u8>,
}

impl<W: Write> Compressed<W> {
    pub(crate) fn new(sink: W) -> Self {
        let gathered = Vec::new();
        Self { sink, gathered }
    }

    /// Writes what was gathered.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.write_frame()?;
        Ok(self.sink)
    }

    fn write_frame(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let frame = compress_to_vec(self.gathered.as_slice(), CompressionLevel::Fastest);
        self.gathered.clear();
        self.sink.write_all(&frame)
    }
}

impl<W: Write> Write for Compressed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= FRAME_BYTES {
            self.write_frame()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// The lines of an export, decompressed where they are compressed.
pub(crate) fn lines(mut source: Box<dyn BufRead>) -> io::Result<Box<dyn BufRead>> {
    // A file has its first bytes at once; of a pipe that gives fewer nothing can be told.
    if !source.fill_buf()?.starts_with(&MAGIC) {
        return Ok(source);
    }
    let frames = Frames {
        source: Some(source),
        frame: None,
        left: DECOMPRESSED_BYTES_MAX,
    };
    Ok(Box::new(io::BufReader::with_capacity(256 * 1024, frames)))
}

/// Frames, one behind the other.
struct Frames {
    /// What lies behind the frame that is being read.
    source: Option<Box<dyn BufRead>>,
    frame: Option<StreamingDecoder<Box<dyn BufRead>, ruzstd::decoding::FrameDecoder>>,
    left: u64,
}

impl Frames {
    /// Begins the next frame; whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        let Some(mut source) = self.source.take() else {
            return Ok(false);
        };
        if source.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let frame = StreamingDecoder::new(source).map_err(damaged)?;
        self.frame = Some(frame);
        Ok(true)
    }
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                let bytes = u64::try_from(read).unwrap_or(u64::MAX);
                let left = self.left.checked_sub(bytes);
                self.left = left.ok_or_else(|| {
                    let limit = DECOMPRESSED_BYTES_MAX;
                    io::Error::other(format!("it has more than {limit} bytes when decompressed"))
                })?;
                if read > 0 {
                    return Ok(read);
                }
            }
            self.source = self
                .frame
                .take()
                .map_or_else(|| self.source.take(), |frame| Some(frame.into_inner()));
            if !self.next_frame()? {
                return Ok(0);
            }
        }
    }
}

fn damaged(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not a whole zstd file: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut sink = Compressed::new(Vec::new());
        for part in text.chunks(100_000) {
            sink.write_all(part).expect("written");
        }
        sink.finish().expect("finished")
    }

    fn read(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        lines(Box::new(io::Cursor::new(bytes)))?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn what_was_compressed_reads_back_and_what_was_not_is_left_alone() {
        let line = b"{\"type\":\"event\",\"seq\":1}\n";
        let long: Vec<u8> = line
            .iter()
            .copied()
            .cycle()
            .take(2 * FRAME_BYTES + 17)
            .collect();
        for text in [line.as_slice(), &long] {
            let small = compressed(text);
            assert!(small.starts_with(&MAGIC));
            assert!(read(small).expect("read") == text);
            assert!(read(text.to_vec()).expect("read") == text);
        }
        assert_eq!(read(Vec::new()).expect("read"), b"");
    }

    #[test]
    fn a_file_that_was_cut_or_is_followed_by_something_else_is_an_error() {
        let whole = compressed(b"{\"type\":\"event\"}\n{\"type\":\"event\"}\n");
        for length in 4..whole.len() {
            assert!(
                read(whole[..length].to_vec()).is_err(),
                "{length} of {}",
                whole.len()
            );
        }
        assert!(read([whole.as_slice(), b"{}\n"].concat()).is_err());
    }
}
