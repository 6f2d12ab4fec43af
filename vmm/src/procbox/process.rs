//! A sandbox's first process, held by a descriptor that can never come to mean another one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use tokio::sync::watch;

use super::record::{ProcessRecord, boot_id};
use super::sys;
use crate::backend::ExitReason;

/// A process, its descriptor, and how it ended once it has.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pidfd: OwnedFd,
    ended: watch::Sender<Option<ExitReason>>,
}

impl Process {
    pub(super) fn new(pid: u32, pidfd: OwnedFd) -> Self {
        Self {
            pid,
            pidfd,
            ended: watch::Sender::new(None),
        }
    }

    /// Finds the process that a record names. `None` when it has ended, whoever has its number now.
    pub(super) fn find(record: &ProcessRecord, recorded_boot: &str) -> io::Result<Option<Self>> {
        if boot_id()? != recorded_boot {
            return Ok(None);
        }
        let gone = |error: &io::Error| {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
        };
        let pidfd = match sys::pidfd_open(record.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Looked at after the descriptor was taken: what is read now is about the process it stands
        // for.
        match ProcessRecord::of(record.pid) {
            Ok(now) if now == *record => Ok(Some(Self::new(record.pid, pidfd))),
            Ok(_) => Ok(None),
            Err(error) if gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What names it in a record.
    pub(super) fn record(&self) -> io::Result<ProcessRecord> {
        let record = ProcessRecord::of(self.pid)?;
        // If it had ended in between, its number could have been another's already.
        if self.alive() {
            Ok(record)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    pub(super) fn alive(&self) -> bool {
        self.ended.borrow().is_none() && !sys::pidfd_wait(self.pidfd.as_fd(), 0).unwrap_or(true)
    }

    /// Kills it; the kernel then kills everything in its process namespace before it counts as
    /// ended.
    pub(super) fn kill(&self) -> io::Result<()> {
        sys::pidfd_kill(self.pidfd.as_fd())
    }

    /// Waits, blocking this thread, and takes the exit status. `false` when it still runs.
    pub(super) fn wait_blocking(&self, wait_ms: u16) -> io::Result<bool> {
        if !sys::pidfd_wait(self.pidfd.as_fd(), wait_ms)? {
            return Ok(false);
        }
        self.reap();
        Ok(true)
    }

    /// Takes the exit status, if it has ended. Only the first to ask gets it from the kernel, so it
    /// is kept. While the launcher is still its parent nobody here can be told; asking again later
    /// can.
    pub(super) fn reap(&self) {
        let status = sys::reap(&self.pidfd);
        self.ended.send_if_modified(|ended| {
            let news = match (*ended, status) {
                (None, Some(_)) => true,
                (Some(ExitReason::Unknown), Some(known)) => known != ExitReason::Unknown,
                _ => false,
            };
            if news {
                *ended = status;
            }
            news
        });
    }

    /// Resolves when it has ended.
    pub(super) async fn exited(&self) -> ExitReason {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(reason) => (*reason).unwrap_or(ExitReason::Unknown),
            Err(_) => ExitReason::Unknown,
        }
    }

    /// Starts waiting for its end in the background: nobody has to ask for a zombie to go.
    pub(super) fn watch(self: Arc<Self>) -> io::Result<()> {
        let ready = sys::readiness(self.pidfd.try_clone()?)?;
        tokio::spawn(async move {
            while self.ended.borrow().is_none() {
                let Ok(mut guard) = ready.readable().await else {
                    break;
                };
                self.reap();
                guard.clear_ready();
            }
        });
        Ok(())
    }
}
