//! Reads a child's two output pipes into its exec, as fast as attached readers allow.
//!
//! Reading ends when both pipes end, or when it is told to: then what lies in the pipes at that
//! moment is taken still, so that nothing a finished leader wrote is lost, and what writers that
//! live on write later is read and thrown away, so that they do not die of a closed pipe.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;

use agentd_protocol::OutputStream;

use super::Exec;
use crate::supervise::Channel;
use crate::supervise::waiting_bytes;

/// Bytes of one read: what a pipe holds by default.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// Where reads land. Used between two awaits only, so all execs share it.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// One pipe; `None` once it has ended.
struct Source {
    stream: OutputStream,
    pipe: Option<Rc<Channel>>,
}

/// Both pipes of an exec.
pub(crate) struct Pump {
    exec: Rc<Exec>,
    stdout: Source,
    stderr: Source,
}

/// What one look at a pipe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Read,
    Empty,
    Ended,
}

impl Pump {
    /// Of two pipes; of one terminal, which has no second.
    pub(crate) fn new(exec: Rc<Exec>, stdout: Rc<Channel>, stderr: Option<Rc<Channel>>) -> Self {
        Self {
            exec,
            stdout: Source {
                stream: OutputStream::Stdout,
                pipe: Some(stdout),
            },
            stderr: Source {
                stream: OutputStream::Stderr,
                pipe: stderr,
            },
        }
    }

    /// Whether both pipes have ended: nobody can write any more.
    pub(crate) fn ended(&self) -> bool {
        self.stdout.pipe.is_none() && self.stderr.pipe.is_none()
    }

    /// Reads until both pipes end. Dropping the call between two reads loses nothing.
    pub(crate) async fn run(&mut self) {
        while !self.ended() {
            // Made before looking: room that appears in between is not missed.
            let room_made = Rc::clone(&self.exec);
            let room_made = room_made.room_made.notified();
            if self.exec.output.borrow().room() == 0 {
                room_made.await;
                continue;
            }
            let looks = [self.stdout.look(&self.exec), self.stderr.look(&self.exec)];
            if looks.contains(&Look::Read) {
                // Readers of this exec and everybody else get their turn.
                tokio::task::yield_now().await;
            } else if !looks.contains(&Look::Ended) || !self.ended() {
                self.readable().await;
            }
        }
    }

    /// Takes what lies in the pipes now, whatever room there is: at most what two pipes hold.
    pub(crate) fn drain_waiting(&mut self) {
        for source in [&mut self.stdout, &mut self.stderr] {
            let Some(pipe) = &source.pipe else { continue };
            let mut left = waiting_bytes(pipe.as_fd());
            let ended = loop {
                // Past the runtime, which may not have seen yet that there is something to read.
                let taken = with_scratch(|scratch| {
                    let bytes = pipe.read(scratch)?;
                    let read = scratch.get(..bytes).unwrap_or_default();
                    self.exec.output.borrow_mut().push(source.stream, read);
                    Ok::<_, io::Error>(bytes)
                });
                // One read past what was waiting tells whether anybody can write any more.
                match taken.map(|bytes| (bytes, left.checked_sub(bytes))) {
                    Ok((0, _)) => break true,
                    Ok((_, Some(rest))) => left = rest,
                    Ok((_, None)) | Err(_) => break false,
                }
            };
            if ended {
                source.pipe = None;
            }
        }
    }

    /// Reads on and throws away, until both pipes end.
    pub(crate) async fn discard(mut self) {
        while !self.ended() {
            let mut found = false;
            for source in [&mut self.stdout, &mut self.stderr] {
                let Some(pipe) = &source.pipe else { continue };
                match with_scratch(|scratch| pipe.try_read(scratch)) {
                    Ok(0) => source.pipe = None,
                    Ok(_) => found = true,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => source.pipe = None,
                }
            }
            if found {
                tokio::task::yield_now().await;
            } else if !self.ended() {
                self.readable().await;
            }
        }
    }

    async fn readable(&self) {
        match (&self.stdout.pipe, &self.stderr.pipe) {
            (Some(stdout), Some(stderr)) => {
                tokio::select! {
                    _ = stdout.readable() => {}
                    _ = stderr.readable() => {}
                }
            }
            (Some(pipe), None) | (None, Some(pipe)) => {
                let _ = pipe.readable().await;
            }
            (None, None) => {}
        }
    }
}

impl Source {
    fn look(&mut self, exec: &Exec) -> Look {
        let Some(pipe) = &self.pipe else {
            return Look::Ended;
        };
        let room = exec.output.borrow().room();
        if room == 0 {
            return Look::Read;
        }
        match read_into(pipe, exec, self.stream, room) {
            Ok(0) => {}
            Ok(_) => return Look::Read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Look::Empty,
            Err(error) => tracing::warn!(%error, "an output pipe cannot be read"),
        }
        self.pipe = None;
        Look::Ended
    }
}

fn read_into(pipe: &Channel, exec: &Exec, stream: OutputStream, max: usize) -> io::Result<usize> {
    with_scratch(|scratch| {
        let length = scratch.len().min(max);
        let bytes = pipe.try_read(scratch.get_mut(..length).unwrap_or_default())?;
        exec.output
            .borrow_mut()
            .push(stream, scratch.get(..bytes).unwrap_or_default());
        Ok(bytes)
    })
}

fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut scratch = SCRATCH.take();
    scratch.resize(READ_BYTES, 0);
    let result = work(&mut scratch);
    SCRATCH.set(scratch);
    result
}
