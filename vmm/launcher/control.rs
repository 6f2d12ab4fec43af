//! The launcher's end of the dialogue with the daemon.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{GO, LaunchReport, MESSAGE_BYTES_MAX, Request};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, recv, recvmsg, send, sendmsg,
};

use crate::fault::{Context, Failure};

/// The descriptors that come with a request.
pub(crate) struct Descriptors {
    /// Where its output goes.
    pub(crate) log: File,
}

/// The control socket: standard input.
pub(crate) struct Control {
    socket: RawFd,
}

impl Control {
    /// Takes the request and its descriptor from standard input.
    pub(crate) fn receive_request() -> Result<(Self, Request, Descriptors), Errno> {
        let socket = libc::STDIN_FILENO;
        let mut bytes = vec![0_u8; MESSAGE_BYTES_MAX];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(socket, &mut slices, Some(&mut space), flags)?;
        let length = message.bytes;
        let mut received = Vec::new();
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = part {
                // SAFETY: the kernel has just made these descriptors for this message; nobody else
                // has them.
                received.extend(
                    fds.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
        let mut received = received.into_iter();
        let Some(log) = received.next() else {
            return Err(Errno::EBADMSG);
        };
        let text = bytes.get(..length).ok_or(Errno::EBADMSG)?;
        let request = serde_json::from_slice(text).map_err(|_| Errno::EBADMSG)?;
        Ok((
            Self { socket },
            request,
            Descriptors {
                log: File::from(log),
            },
        ))
    }

    /// Sends one report.
    pub(crate) fn send(&self, report: &LaunchReport) -> Result<(), Errno> {
        let bytes = serde_json::to_vec(report).map_err(|_| Errno::EBADMSG)?;
        send(self.socket, &bytes, MsgFlags::MSG_NOSIGNAL).map(drop)
    }

    /// Reports the first process, and hands over a descriptor that stands for it: its number alone
    /// could be somebody else's by the time it is read.
    pub(crate) fn send_spawned(&self, pid: u32, pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let report = LaunchReport::Spawned { pid };
        let bytes = serde_json::to_vec(&report).map_err(|_| Errno::EBADMSG)?;
        let slices = [IoSlice::new(&bytes)];
        let fds = [pidfd.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        sendmsg::<()>(self.socket, &slices, &rights, MsgFlags::MSG_NOSIGNAL, None).map(drop)
    }

    /// Waits for the daemon's word that the record is written. A daemon that is gone never gives
    /// it.
    pub(crate) fn wait_for_go(&self) -> Result<(), Failure> {
        let what = || "waiting for the daemon".to_owned();
        let mut bytes = [0_u8; 16];
        let length =
            recv(self.socket, &mut bytes, MsgFlags::empty()).stage(CreateStage::Exec, what)?;
        if bytes.get(..length) == Some(GO) {
            Ok(())
        } else {
            Err(Failure::new(CreateStage::Exec, what(), Errno::ECONNRESET))
        }
    }
}

/// Reads at most one message's worth until the other end closes.
pub(crate) fn read_to_end(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    let mut chunk = [0_u8; 4096];
    loop {
        match nix::unistd::read(fd, &mut chunk) {
            Ok(0) => return Ok(all),
            Ok(length) if all.len() + length <= MESSAGE_BYTES_MAX => {
                all.extend_from_slice(chunk.get(..length).unwrap_or_default());
            }
            Ok(_) => return Err(Errno::EMSGSIZE),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
