//! Small system calls that no safe wrapper offers in the form that is needed here.
#![allow(unsafe_code)] // each is one raw call

use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

use libc::c_int;
use libc::pid_t;

use super::Fate;

/// Reads how many bytes wait in a pipe.
pub(crate) fn waiting_bytes(pipe: BorrowedFd<'_>) -> usize {
    let mut waiting: c_int = 0;
    // SAFETY: the request writes one int to a live location.
    let read = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut waiting) };
    if read == 0 {
        usize::try_from(waiting).unwrap_or(0)
    } else {
        0
    }
}

/// Takes over a descriptor that this process inherited under a number.
pub(crate) fn adopt_descriptor(number: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call only asks whether the number is open, and marks it close-on-exec.
    if number < 3 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is open, and by the contract of the variable that named it, it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Reaps one exited child of this process, without waiting. `None` when there is none.
pub(crate) fn reap_one() -> Option<(pid_t, Fate)> {
    let mut status: c_int = 0;
    let flags = libc::WNOHANG | libc::__WALL;
    // SAFETY: the status pointer is live over the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, flags) };
    if pid <= 0 {
        return None;
    }
    let fate = if libc::WIFEXITED(status) {
        Fate::Exited {
            code: libc::WEXITSTATUS(status),
        }
    } else {
        Fate::Signalled {
            signal: libc::WTERMSIG(status),
        }
    };
    Some((pid, fate))
}
