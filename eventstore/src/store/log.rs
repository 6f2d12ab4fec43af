//! A log in plain files: frames that are appended one after the other, each whole or not there.
//!
//! ```text
//! file   <folder>/0000000001.log, 0000000002.log, …; a new one behind every 64 MiB
//! frame  marker 8 ‖ number u64 ‖ body_bytes u32 ‖ check u32 ‖ body
//! body   writes, each: key_bytes u16 ‖ value_bytes u32 ‖ key ‖ value
//! marker "FXLOG" 1 "\r\n"
//! check  CRC-32 (IEEE) of number ‖ body_bytes ‖ body
//! ```
//!
//! Integers are big-endian. Frames are numbered 1, 2, 3, … through all files. At most one frame is
//! ever on its way to the disk, so what a crash can leave is one torn frame at the very end: it was
//! not answered for, and opening cuts it off. If a whole frame with a later number is found behind
//! one that does not hold, which is what the marker is for, then it was not a crash, and the log is
//! damaged.

use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::StoreError;
use super::file_system::FileSystem;
use super::file_system::StoreFile;

/// A file that has reached so many bytes gets no further frame.
const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
/// The largest body in bytes. A group of the committer stays far below it.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

const MARKER: [u8; 8] = *b"FXLOG\x01\r\n";
const FRAME_HEADER_BYTES: usize = 8 + 8 + 4 + 4;
const SUFFIX: &str = ".log";

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// What reading a log shows, write after write.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8], Place) -> Result<(), StoreError>;

/// The open log.
pub(crate) struct Log {
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
    segments: Vec<Segment>,
    next_number: u64,
}

struct Segment {
    file: Arc<dyn StoreFile>,
    bytes: u64,
}

/// Whether a log that is opened may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// What a crash left is cut off and what was not synced is synced, for appending to follow.
    Append,
    /// Not a byte is changed.
    ReadOnly,
}

impl Log {
    /// Opens the log in `dir`, checks every frame and shows every write in it.
    pub(crate) fn open(
        files: Arc<dyn FileSystem>,
        dir: &Path,
        mode: Mode,
        visit: Visit<'_>,
    ) -> Result<Log, StoreError> {
        let mut log = Log {
            files,
            dir: dir.to_owned(),
            segments: Vec::new(),
            next_number: 1,
        };
        let names = log.names().map_err(failed("list", dir))?;
        let last = names.len().saturating_sub(1);
        for (at, name) in names.iter().enumerate() {
            let path = dir.join(name);
            if *name != segment_name(at) {
                return Err(StoreError(format!("the log lacks a file before {name}")));
            }
            let file = log.files.open(&path).map_err(failed("open", &path))?;
            let bytes = file.bytes().map_err(failed("read", &path))?;
            let end = log.read_segment(&*file, at, bytes, visit)?;
            if end < bytes {
                log.check_torn(&*file, end, bytes, at == last, &path)?;
                if mode == Mode::Append {
                    tracing::warn!(file = name, at = end, "a torn frame is cut off");
                    file.truncate(end).map_err(failed("cut", &path))?;
                }
            }
            if mode == Mode::Append && at == last {
                // A frame that was read may never have been synced: it is built upon from now on.
                file.sync().map_err(failed("sync", &path))?;
            }
            log.segments.push(Segment { file, bytes: end });
        }
        if mode == Mode::Append {
            log.files.sync_dir(dir).map_err(failed("sync", dir))?;
        }
        Ok(log)
    }

    /// Appends one frame and returns once it is durable, with the place of its body.
    pub(crate) fn append(&mut self, body: &[u8]) -> Result<Place, StoreError> {
        let body_bytes = u32::try_from(body.len()).ok();
        let body_bytes = body_bytes.filter(|_| body.len() <= BODY_BYTES_MAX);
        let body_bytes = body_bytes
            .ok_or_else(|| StoreError(format!("a frame of {} bytes is too large", body.len())))?;
        if self
            .segments
            .last()
            .is_none_or(|last| last.bytes >= SEGMENT_BYTES)
        {
            self.add_segment()?;
        }
        let frame = frame(self.next_number, body_bytes, body);
        let at = self.segments.len().saturating_sub(1);
        let path = self.dir.join(segment_name(at));
        let segment = self.segments.last_mut();
        let segment = segment.ok_or_else(|| StoreError("the log has no file".to_owned()))?;
        let start = segment.bytes;
        let written = segment.file.write_all_at(&frame, start);
        written.map_err(failed("write", &path))?;
        segment.file.sync().map_err(failed("sync", &path))?;
        segment.bytes += bytes_u64(frame.len());
        self.next_number += 1;
        Ok(Place {
            segment: at,
            offset: start + bytes_u64(FRAME_HEADER_BYTES),
            bytes: body_bytes,
        })
    }

    /// The file of a segment, for reading what a place names.
    pub(crate) fn file(&self, segment: usize) -> Option<Arc<dyn StoreFile>> {
        self.segments
            .get(segment)
            .map(|segment| Arc::clone(&segment.file))
    }

    /// How many bytes its frames take.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = self.files.list(&self.dir)?;
        names.retain(|name| name.ends_with(SUFFIX));
        names.sort_unstable();
        Ok(names)
    }

    fn add_segment(&mut self) -> Result<(), StoreError> {
        let path = self.dir.join(segment_name(self.segments.len()));
        let file = self.files.create(&path).map_err(failed("make", &path))?;
        // Before anything in it is answered for, its name has to be durable.
        self.files
            .sync_dir(&self.dir)
            .map_err(failed("sync", &self.dir))?;
        self.segments.push(Segment { file, bytes: 0 });
        Ok(())
    }

    /// Shows the whole frames of a file and returns where they end.
    fn read_segment(
        &mut self,
        file: &dyn StoreFile,
        at: usize,
        bytes: u64,
        visit: Visit<'_>,
    ) -> Result<u64, StoreError> {
        let mut offset = 0;
        while let Some((number, body)) = read_frame(file, offset, bytes) {
            if number != self.next_number {
                break;
            }
            let body_offset = offset + bytes_u64(FRAME_HEADER_BYTES);
            for write in split_body(&body) {
                let (key, value, value_at) = write?;
                let place = Place {
                    segment: at,
                    offset: body_offset + bytes_u64(value_at),
                    bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
                };
                visit(key, value, place)?;
            }
            self.next_number += 1;
            offset = body_offset + bytes_u64(body.len());
        }
        Ok(offset)
    }

    /// Whether what lies behind `end` can be what a crash left. If not, the log is damaged.
    fn check_torn(
        &self,
        file: &dyn StoreFile,
        end: u64,
        bytes: u64,
        is_last: bool,
        path: &Path,
    ) -> Result<(), StoreError> {
        let rest = usize::try_from(bytes - end).ok();
        let mut rest = vec![0; rest.unwrap_or_default()];
        file.read_exact_at(&mut rest, end)
            .map_err(failed("read", path))?;
        let later = rest.windows(MARKER.len()).enumerate().any(|(at, window)| {
            *window == MARKER
                && read_frame(file, end + bytes_u64(at), bytes)
                    .is_some_and(|(number, _)| number >= self.next_number)
        });
        if is_last && !later {
            return Ok(());
        }
        let (number, path) = (self.next_number, path.display());
        Err(StoreError(format!(
            "frame {number} at {end} of {path} is damaged"
        )))
    }
}

/// Puts one more write into a body, and says where in it the value begins.
pub(crate) fn push_write(body: &mut Vec<u8>, key: &[u8], value: &[u8]) -> usize {
    // Keys are some dozens of bytes and values at most a record.
    let key_bytes = u16::try_from(key.len()).unwrap_or(u16::MAX);
    let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
    body.extend_from_slice(&key_bytes.to_be_bytes());
    body.extend_from_slice(&value_bytes.to_be_bytes());
    body.extend_from_slice(key);
    let value_at = body.len();
    body.extend_from_slice(value);
    value_at
}

/// The writes of a body: key, value, and where in the body the value begins.
pub(crate) fn split_body(
    body: &[u8],
) -> impl Iterator<Item = Result<(&[u8], &[u8], usize), StoreError>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let write = split_write(rest).map(|(key, value, behind)| {
            rest = behind;
            (key, value, body.len() - behind.len() - value.len())
        });
        if write.is_none() {
            rest = &[];
        }
        let malformed = || StoreError("a frame holds no whole writes".to_owned());
        Some(write.ok_or_else(malformed))
    })
}

fn split_write(body: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (key_bytes, rest) = body.split_first_chunk::<2>()?;
    let (value_bytes, rest) = rest.split_first_chunk::<4>()?;
    let (key, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_bytes)))?;
    let value_bytes = usize::try_from(u32::from_be_bytes(*value_bytes)).ok()?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    Some((key, value, rest))
}

fn frame(number: u64, body_bytes: u32, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    frame.extend_from_slice(&MARKER);
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend_from_slice(&body_bytes.to_be_bytes());
    frame.extend_from_slice(&check(number, body_bytes, body).to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

fn check(number: u64, body_bytes: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_be_bytes());
    hasher.update(&body_bytes.to_be_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// The frame at `offset` of a file with so many bytes, if a whole one is there.
fn read_frame(file: &dyn StoreFile, offset: u64, bytes: u64) -> Option<(u64, Vec<u8>)> {
    let behind_header = offset.checked_add(bytes_u64(FRAME_HEADER_BYTES))?;
    if behind_header > bytes {
        return None;
    }
    let mut header = [0; FRAME_HEADER_BYTES];
    file.read_exact_at(&mut header, offset).ok()?;
    let rest = header.strip_prefix(&MARKER)?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (body_bytes, expected) = rest.split_first_chunk::<4>()?;
    let number = u64::from_be_bytes(*number);
    let body_bytes = u32::from_be_bytes(*body_bytes);
    let length = usize::try_from(body_bytes).ok()?;
    if length > BODY_BYTES_MAX || behind_header + u64::from(body_bytes) > bytes {
        return None;
    }
    let mut body = vec![0; length];
    file.read_exact_at(&mut body, behind_header).ok()?;
    (check(number, body_bytes, &body).to_be_bytes() == expected).then_some((number, body))
}

fn segment_name(at: usize) -> String {
    format!("{:010}{SUFFIX}", at + 1)
}

fn bytes_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// For `map_err`: what could not be done, and to which file.
fn failed<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |e| StoreError(format!("cannot {what} {}: {e}", path.display()))
}
