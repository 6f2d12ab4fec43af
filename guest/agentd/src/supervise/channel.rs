//! One end of what a command reads from or writes to: a pipe, or the terminal that takes the place
//! of all three.
//!
//! A terminal has no end of its own: when its last program has closed it, the kernel says that
//! reading failed, which is said here as the end that it means.
#![allow(unsafe_code)] // the runtime cannot know that a descriptor stays open

use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::FcntlArg;
use nix::fcntl::OFlag;
use nix::fcntl::fcntl;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What ends a line's input on a terminal: Ctrl-D, as every terminal starts out.
const END_OF_INPUT: &[u8] = b"\x04";

/// An end that never blocks.
#[derive(Debug)]
pub(crate) struct Channel {
    end: AsyncFd<OwnedFd>,
    terminal: bool,
}

impl Channel {
    /// The reading end of a pipe.
    pub(crate) fn reader(pipe: OwnedFd) -> io::Result<Self> {
        Self::new(pipe, Interest::READABLE, false)
    }

    /// The writing end of a pipe.
    pub(crate) fn writer(pipe: OwnedFd) -> io::Result<Self> {
        Self::new(pipe, Interest::WRITABLE, false)
    }

    /// A terminal's outer side.
    pub(crate) fn terminal(master: OwnedFd) -> io::Result<Self> {
        Self::new(master, Interest::READABLE | Interest::WRITABLE, true)
    }

    fn new(end: OwnedFd, interest: Interest, terminal: bool) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&end, FcntlArg::F_GETFL)?);
        fcntl(&end, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        // SAFETY: the descriptor is owned by what is registered, and so stays open and the same for
        // as long as that lives.
        let end = unsafe { AsyncFd::register_with_interest(end, interest) };
        Ok(Self {
            end: end.map_err(io::Error::from)?,
            terminal,
        })
    }

    /// What closes a command's input without closing this end; a pipe has nothing like it.
    pub(crate) fn end_of_input(&self) -> Option<&'static [u8]> {
        self.terminal.then_some(END_OF_INPUT)
    }

    /// Resolves when there may be something to read.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.end.readable().await.map(drop)
    }

    /// Resolves when something may be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.end.writable().await.map(drop)
    }

    /// Reads what the runtime knows to be there.
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        self.end.try_io(Interest::READABLE, |_| self.read(bytes))
    }

    /// Reads what is there, known to the runtime or not.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match nix::unistd::read(self.end.get_ref(), bytes) {
            Err(Errno::EIO) if self.terminal => Ok(0),
            read => Ok(read?),
        }
    }

    /// Writes what there is room for.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.end.try_io(Interest::WRITABLE, |end| {
            match nix::unistd::write(end, bytes) {
                Err(Errno::EIO) if self.terminal => Err(io::ErrorKind::BrokenPipe.into()),
                written => Ok(written?),
            }
        })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}
