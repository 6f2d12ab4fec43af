//! An exec's standard input: a pipe that writes go into one after the other.
//!
//! A write that the command does not take in time is refused, and what was taken of it is said. The
//! pipe stays open then. It closes when a caller says so, when the leader exits, and when nobody is
//! left who could read it.

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
}

impl Stdin {
    pub(super) fn new(requested: bool) -> Self {
        Self(requested.then(|| {
            Box::new(Pipe {
                pipe: Mutex::default(),
                closed: watch::Sender::new(false),
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
        let written = input.write(&data, eof).await?;
        Ok(Taken { written, eof })
    }
}

impl Pipe {
    fn close(&self) {
        self.closed.send_replace(true);
        if let Ok(mut slot) = self.pipe.try_lock() {
            *slot = None;
        }
    }

    async fn write(&self, data: &[u8], eof: bool) -> Result<u64, Refusal> {
        let mut written = 0;
        let deadline = Instant::now() + STDIN_WRITE_DEADLINE;
        let mut closed = self.closed.subscribe();
        if *closed.borrow_and_update() {
            return Err(closed_refusal(written));
        }
        let writing = async {
            let mut slot = self.pipe.lock().await;
            let Some(pipe) = slot.clone() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let mut end = write_all(&pipe, data, &mut written).await;
            let end_of_input = pipe.end_of_input();
            if let (true, Some(bytes), true) = (eof, end_of_input, end.is_ok()) {
                end = write_all(&pipe, bytes, &mut 0).await;
            }
            let closes = eof && end.is_ok() && end_of_input.is_none();
            let broken = end
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
            if broken || closes {
                *slot = None;
                self.closed.send_replace(true);
            }
            end
        };
        let end = tokio::select! {
            biased;
            end = timeout_at(deadline, writing) => Some(end),
            _ = closed.wait_for(|closed| *closed) => None,
        };
        match end {
            Some(Ok(Ok(()))) => Ok(written),
            Some(Ok(Err(error))) if error.kind() != io::ErrorKind::BrokenPipe => {
                let detail = format!("the pipe refused the bytes: {error}");
                Err(Refusal::new(Slug::StdinWriteFailed, detail).with(extension(written)))
            }
            Some(Err(_)) => {
                let detail = format!(
                    "the command took {written} of {} bytes in {} s; the pipe stays open",
                    data.len(),
                    STDIN_WRITE_DEADLINE.as_secs()
                );
                Err(Refusal::new(Slug::StdinWriteTimeout, detail).with(extension(written)))
            }
            Some(Ok(Err(_))) => Err(closed_refusal(written)),
            None => {
                // The writer that was given up held the lock when the pipe was to be closed.
                self.close();
                Err(closed_refusal(written))
            }
        }
    }
}

async fn write_all(pipe: &Channel, data: &[u8], written: &mut u64) -> io::Result<()> {
    let mut rest = data;
    while !rest.is_empty() {
        pipe.writable().await?;
        match pipe.try_write(rest) {
            Ok(bytes) => {
                rest = rest.get(bytes..).unwrap_or_default();
                *written += u64::try_from(bytes).unwrap_or(0);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn extension(written: u64) -> ErrorExtension {
    ErrorExtension {
        written: Some(written),
    }
}

fn closed_refusal(written: u64) -> Refusal {
    Refusal::new(Slug::StdinClosed, "the exec's standard input is closed").with(extension(written))
}

fn malformed(detail: &str) -> Refusal {
    Refusal::new(Slug::MalformedRequest, detail)
}
