//! Small system calls that no safe wrapper offers in the form that is needed here.
#![allow(unsafe_code)] // each is one raw call

use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;

use libc::c_int;
use libc::pid_t;

use super::Fate;

/// Mixes bytes in and counts them: `_IOW('R', 3, int[2])`.
const RNDADDENTROPY: libc::Ioctl = 0x4008_5203;

/// Has what was mixed in be used from now on: `_IO('R', 7)`.
const RNDRESEEDCRNG: libc::Ioctl = 0x5207;

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

/// Mixes bytes into the kernel's randomness and counts them as such. Where that is not allowed they
/// are mixed in all the same, and count for nothing: the kernel's own randomness is shared with the
/// host there.
pub(crate) fn stir_randomness(bytes: &[u8]) -> io::Result<()> {
    const BITS_PER_BYTE: usize = 8;
    let pool = OpenOptions::new().write(true).open("/dev/urandom")?;
    let bits = c_int::try_from(bytes.len() * BITS_PER_BYTE);
    let length = c_int::try_from(bytes.len());
    if let (Ok(bits), Ok(length)) = (bits, length) {
        // The kernel's `rand_pool_info`: two numbers and the bytes.
        let mut record = Vec::with_capacity(8 + bytes.len());
        record.extend_from_slice(&bits.to_ne_bytes());
        record.extend_from_slice(&length.to_ne_bytes());
        record.extend_from_slice(bytes);
        // SAFETY: the request reads the two numbers and as many bytes as the second says, and the
        // record holds them all.
        let counted = unsafe { libc::ioctl(pool.as_raw_fd(), RNDADDENTROPY, record.as_ptr()) };
        // SAFETY: the request takes no argument.
        if counted == 0 && unsafe { libc::ioctl(pool.as_raw_fd(), RNDRESEEDCRNG) } == 0 {
            return Ok(());
        }
    }
    (&pool).write_all(bytes)
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
