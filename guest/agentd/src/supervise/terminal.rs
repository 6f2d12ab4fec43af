//! Terminals: made before the fork, sized at any time.
#![allow(unsafe_code)] // a terminal is made and sized by raw requests

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use agentd_protocol::TerminalSize;
use libc::c_int;

/// Where new terminals come from. The second is there where the first was never made.
const MULTIPLEXERS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// Both sides of a terminal.
pub(super) struct Terminal {
    pub(super) master: OwnedFd,
    pub(super) slave: OwnedFd,
}

impl Terminal {
    /// Makes a terminal for a user's command. Its inner side is asked for of the outer one, so that
    /// nothing mounted over a path can be taken for it.
    pub(super) fn open(size: TerminalSize, uid: Option<u32>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let [first, second] = MULTIPLEXERS;
        let master: OwnedFd = options
            .open(first)
            .or_else(|_| options.open(second))?
            .into();
        let unlocked: c_int = 0;
        // SAFETY: the request reads one number from a live place.
        let answer =
            unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        // SAFETY: the request takes flags and returns a new descriptor or -1.
        let slave = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
        if slave < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nobody else knows it.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        if let Some(uid) = uid {
            std::os::unix::fs::fchown(&slave, Some(uid), None)?;
        }
        resize(std::os::fd::AsFd::as_fd(&master), size)?;
        Ok(Self { master, slave })
    }
}

/// Gives a terminal a size. Its foreground programs are told by the kernel.
pub(crate) fn resize(master: BorrowedFd<'_>, size: TerminalSize) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads one record from a live place.
    let answer = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
