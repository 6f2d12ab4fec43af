//! System calls for which nix has no wrapper.
#![allow(
    unsafe_code,
    reason = "pidfds and extended attributes have no safe wrapper here"
)]

use std::ffi::{CStr, CString};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::backend::ExitReason;

/// Makes this process the one that inherits what its descendants leave behind.
///
/// A daemon calls this once at its start: the first processes of its sandboxes are then its own to
/// wait for, however they were started, and none lingers with an init that is slow to reap.
pub fn become_subreaper() -> io::Result<()> {
    Ok(nix::sys::prctl::set_child_subreaper(true)?)
}

/// A descriptor that stands for exactly this process, however often its number is used again.
pub(super) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, libc::PIDFD_NONBLOCK) };
    let fd = i32::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Kills the process. One that has ended already is no failure.
pub(super) fn pidfd_kill(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a null siginfo asks the kernel to fill in its own.
    let status = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    let error = io::Error::last_os_error();
    if status == 0 || error.raw_os_error() == Some(libc::ESRCH) {
        Ok(())
    } else {
        Err(error)
    }
}

/// Whether the process has ended within the given time.
pub(super) fn pidfd_wait(pidfd: BorrowedFd<'_>, wait_ms: u16) -> io::Result<bool> {
    let mut fds = [PollFd::new(pidfd, PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, PollTimeout::from(wait_ms)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives one packet, and the descriptor that came with it.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let mut slices = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut received = None;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part {
            // SAFETY: the kernel has just made these descriptors for this message; nobody else has
            // them.
            let fds = fds
                .into_iter()
                .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            received = fds.fold(received, |_, fd| Some(fd));
        }
    }
    Ok((message.bytes, received))
}

/// Registers a descriptor with the runtime, for reading alone.
pub(super) fn readiness(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the value owns its descriptor, which therefore stays open and the same until it is
    // dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// Takes the exit status of an ended process off the kernel's hands. `None` while it runs.
pub(super) fn reap(pidfd: &OwnedFd) -> Option<ExitReason> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
    match waitid(Id::PIDFd(pidfd.as_fd()), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(ExitReason::Exited { code }),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitReason::Killed {
            signal: signal as i32,
        }),
        Ok(_) => None,
        // Not this process's child: only that it has ended can be known.
        Err(_) => pidfd_wait(pidfd.as_fd(), 0)
            .unwrap_or(true)
            .then_some(ExitReason::Unknown),
    }
}

/// Sets an extended attribute of a path, not of what a link points to.
pub(super) fn set_xattr(path: &Path, name: &CStr, value: &[u8]) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both strings end with NUL and outlive the call; the value is passed with its length.
    let status = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
