//! An exec's standard input: a pipe that writes go into one after the other.
//!
//! A write that the command does not take in time is refused, and what was taken of it is said. The
//! pipe stays open then. It closes when a caller says so, when the leader exits, and when nobody is
//! left who could read it.
//!
//! What was taken is counted, so that a write can say where it belongs. Such a write may be repeated by
//! whoever does not know what became of it: what was taken of it is answered and not written again.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use agentd_protocol::ErrorExtension;
use agentd_protocol::Slug;
use agentd_protocol::StdinRequest;
use agentd_protocol::limits::STDIN_WRITE_DEADLINE;
use tokio::sync::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio::time::timeout_at;

use super::Refusal;
use crate::supervise::Channel;

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) written: u64,
    pub(crate) eof: bool,
    /// Of all writes together.
    pub(crate) taken: u64,
}

/// Bytes at their place.
#[derive(Clone, Copy, Debug)]
struct Write<'a> {
    data: &'a [u8],
    /// How many were written before them, if the caller says so.
    offset: Option<u64>,
    eof: bool,
    /// The caller is told how much was taken of all writes.
    told: bool,
}

/// An exec's input, if it was asked for: most execs have none, and pay nothing for it.
#[derive(Debug)]
pub(super) struct Stdin(Option<Box<Pipe>>);

/// The writing end.
#[derive(Debug)]
struct Pipe {
    /// Locked over a whole write, so that two writes never mix.
    pipe: Mutex<Option<Rc<Channel>>>,
    closed: watch::Sender<bool>,
    /// Bytes that went into the pipe. Counted with each system call, so that a write that is given up
    /// has counted what it did.
    taken: Cell<u64>,
}

impl Stdin {
    pub(super) fn new(requested: bool) -> Self {
        Self(requested.then(|| {
            Box::new(Pipe {
                pipe: Mutex::default(),
                closed: watch::Sender::new(false),
                taken: Cell::default(),
            })
        }))
    }

    /// Takes the pipe of a command that is about to run.
    pub(super) fn open(&self, pipe: Rc<Channel>) {
        // Nobody writes before the start is known, so the lock is free.
        if let Some(input) = &self.0
            && let Ok(mut slot) = input.pipe.try_lock()
        {
            *slot = Some(pipe);
        }
    }

    /// Closes the pipe, under a write that waits too.
    pub(super) fn close(&self) {
        if let Some(input) = &self.0 {
            input.close();
        }
    }

    /// Writes what a request asks for. The order of the checks is the contract's.
    pub(super) async fn take(
        &self,
        request: &StdinRequest,
        bytes_max: u64,
    ) -> Result<Taken, Refusal> {
        let Some(input) = &self.0 else {
            let detail = "the exec was started without `stdin`";
            return Err(Refusal::new(Slug::StdinNotRequested, detail));
        };
        let eof = match request.signal.as_deref() {
            None => false,
            Some(StdinRequest::EOF) => true,
            Some(_) => return Err(malformed("`signal` is not \"eof\"")),
        };
        let encoded = request.data_b64.as_deref().unwrap_or_default();
        let data = base64_simd::STANDARD
            .decode_to_vec(encoded.as_bytes())
            .map_err(|_| malformed("`data_b64` is not standard base64"))?;
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if length > bytes_max {
            let detail = format!("one write carries at most {bytes_max} bytes, not {length}");
            return Err(Refusal::new(Slug::StdinWriteTooLarge, detail));
        }
        let write = Write {
            data: &data,
            offset: request.x.and_then(|x| x.offset),
            eof,
            told: request.x.is_some(),
        };
        let written = input.write(write).await?;
        let taken = input.taken.get();
        Ok(Taken {
            written,
            eof,
            taken,
        })
    }
}

impl Write<'_> {
    /// Those of its bytes that a pipe that took so many does not have yet, or `None` where bytes before
    /// them are missing. Pure.
    fn rest(&self, taken: u64) -> Option<&[u8]> {
        let known = taken.checked_sub(self.offset.unwrap_or(taken))?;
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        Some(self.data.get(known..).unwrap_or_default())
    }

    /// How many of its bytes the pipe has, of which it still lacks so many.
    fn written(&self, lacking: usize) -> u64 {
        u64::try_from(self.data.len().saturating_sub(lacking)).unwrap_or(u64::MAX)
    }
}

impl Pipe {
    fn close(&self) {
        self.closed.send_replace(true);
        if let Ok(mut slot) = self.pipe.try_lock() {
            *slot = None;
        }
    }

    async fn write(&self, write: Write<'_>) -> Result<u64, Refusal> {
        let mut lacking = write.data.len();
        let deadline = Instant::now() + STDIN_WRITE_DEADLINE;
        let mut closed = self.closed.subscribe();
        if *closed.borrow_and_update() {
            return self.repeated(write);
        }
        let writing = async {
            let mut slot = self.pipe.lock().await;
            let Some(pipe) = slot.clone() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let Some(rest) = write.rest(self.taken.get()) else {
                return Ok(false);
            };
            lacking = rest.len();
            let count = |bytes: usize| {
                lacking = lacking.saturating_sub(bytes);
                self.taken.set(self.taken.get() + bytes as u64);
            };
            let mut end = write_all(&pipe, rest, count).await;
            let end_of_input = pipe.end_of_input();
            if let (true, Some(bytes), true) = (write.eof, end_of_input, end.is_ok()) {
                end = write_all(&pipe, bytes, |_| ()).await;
            }
            let closes = write.eof && end.is_ok() && end_of_input.is_none();
            let broken = end
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
            if broken || closes {
                *slot = None;
                self.closed.send_replace(true);
            }
            end.map(|()| true)
        };
        let end = tokio::select! {
            biased;
            end = timeout_at(deadline, writing) => Some(end),
            _ = closed.wait_for(|closed| *closed) => None,
        };
        let written = write.written(lacking);
        match end {
            Some(Ok(Ok(true))) => Ok(written),
            Some(Ok(Ok(false))) => {
                let detail = "bytes before the write's offset are missing";
                Err(Refusal::new(Slug::StdinGap, detail).with(self.extension(write, 0)))
            }
            Some(Ok(Err(error))) if error.kind() != io::ErrorKind::BrokenPipe => {
                let detail = format!("the pipe refused the bytes: {error}");
                let extension = self.extension(write, written);
                Err(Refusal::new(Slug::StdinWriteFailed, detail).with(extension))
            }
            Some(Err(_)) => {
                let detail = format!(
                    "the command took {written} of {} bytes in {} s; the pipe stays open",
                    write.data.len(),
                    STDIN_WRITE_DEADLINE.as_secs()
                );
                let extension = self.extension(write, written);
                Err(Refusal::new(Slug::StdinWriteTimeout, detail).with(extension))
            }
            Some(Ok(Err(_))) => Err(self.closed_refusal(write, written)),
            None => {
                // The writer that was given up held the lock when the pipe was to be closed.
                self.close();
                Err(self.closed_refusal(write, written))
            }
        }
    }

    /// A write to a closed input. One that was taken whole before it closed is only asked about again.
    fn repeated(&self, write: Write<'_>) -> Result<u64, Refusal> {
        let lacking = write.rest(self.taken.get()).map(<[u8]>::len);
        match (write.offset, lacking) {
            (Some(_), Some(0)) => Ok(write.written(0)),
            (Some(_), Some(lacking)) => Err(self.closed_refusal(write, write.written(lacking))),
            _ => Err(self.closed_refusal(write, 0)),
        }
    }

    fn closed_refusal(&self, write: Write<'_>, written: u64) -> Refusal {
        let detail = "the exec's standard input is closed";
        Refusal::new(Slug::StdinClosed, detail).with(self.extension(write, written))
    }

    fn extension(&self, write: Write<'_>, written: u64) -> ErrorExtension {
        ErrorExtension {
            written: Some(written),
            taken: write.told.then(|| self.taken.get()),
        }
    }
}

async fn write_all(pipe: &Channel, data: &[u8], mut count: impl FnMut(usize)) -> io::Result<()> {
    let mut rest = data;
    while !rest.is_empty() {
        pipe.writable().await?;
        match pipe.try_write(rest) {
            Ok(bytes) => {
                rest = rest.get(bytes..).unwrap_or_default();
                count(bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn malformed(detail: &str) -> Refusal {
    Refusal::new(Slug::MalformedRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_before_is_not_written_again() {
        let at = |offset| Write {
            data: b"abc",
            offset,
            eof: false,
            told: true,
        };
        assert_eq!(at(None).rest(7), Some(&b"abc"[..]));
        assert_eq!(at(Some(7)).rest(7), Some(&b"abc"[..]));
        assert_eq!(at(Some(5)).rest(7), Some(&b"c"[..]));
        assert_eq!(at(Some(4)).rest(7), Some(&b""[..]));
        assert_eq!(at(Some(0)).rest(7), Some(&b""[..]));
        assert_eq!(at(Some(8)).rest(7), None, "a byte is missing");
        assert_eq!(at(Some(5)).written(1), 2);
    }
}
