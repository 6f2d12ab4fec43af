//! The daemon's side of the dialogue with the launcher. Blocking: it runs on a thread that may
//! wait.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, setsockopt, socketpair,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::process::Process;
use super::sys::receive;
use super::wire::{
    GO, HOOK_FOLDER_VARIABLE, LaunchFacts, LaunchFailure, LaunchReport, MESSAGE_BYTES_MAX, Request,
};
use crate::error::{CreateError, CreateFault, CreateStage};

/// How long the launcher may take for one answer. It waits for nobody but the kernel; a loaded host
/// with a slow disk needs a second.
const ANSWER_SECONDS_MAX: i64 = 20;
/// The same where it brings processes back: gigabytes of memory are read first.
const RESTORE_SECONDS_MAX: i64 = 600;

/// A launcher at work. It dies with this value, and the first process with it unless that was
/// started.
pub(super) struct Launch {
    child: Child,
    control: OwnedFd,
    answered: bool,
}

impl Launch {
    /// Starts the launcher. It waits for its request, and what that names can be made meanwhile.
    pub(super) fn start(launcher: &Path, log: File) -> Result<Self, CreateError> {
        Self::start_command(&mut Command::new(launcher), launcher, log)
    }

    /// The same, with a folder of pipes for what it has to say when CRIU calls it.
    pub(super) fn start_with_hooks(
        launcher: &Path,
        log: File,
        hooks: &Path,
    ) -> Result<Self, CreateError> {
        let mut command = Command::new(launcher);
        command.env(HOOK_FOLDER_VARIABLE, hooks);
        Self::start_command(&mut command, launcher, log)
    }

    fn start_command(
        command: &mut Command,
        launcher: &Path,
        log: File,
    ) -> Result<Self, CreateError> {
        let stage = CreateStage::Launcher;
        let kind = SockType::SeqPacket;
        let (control, theirs) = socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC)
            .map_err(|errno| os(stage, "a control socket", errno.into()))?;
        setsockopt(
            &control,
            ReceiveTimeout,
            &TimeVal::seconds(ANSWER_SECONDS_MAX),
        )
        .map_err(|errno| os(stage, "a time limit", errno.into()))?;
        let child = command
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::from(log))
            .spawn()
            .map_err(|error| os(stage, format!("starting {}", launcher.display()), error))?;
        Ok(Self {
            child,
            control,
            answered: false,
        })
    }

    /// Hands it the request and the log.
    pub(super) fn request(&self, request: &Request, log: &File) -> Result<(), CreateError> {
        let stage = CreateStage::Launcher;
        if matches!(request, Request::Launch(launch) if launch.memory.is_some()) {
            setsockopt(
                &self.control,
                ReceiveTimeout,
                &TimeVal::seconds(RESTORE_SECONDS_MAX),
            )
            .map_err(|errno| os(stage, "a longer time limit", errno.into()))?;
        }
        let bytes = serde_json::to_vec(request)
            .map_err(|error| os(stage, "writing the request", io::Error::other(error)))?;
        let fds = [log.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let slices = [IoSlice::new(&bytes)];
        let flags = MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<()>(self.control.as_raw_fd(), &slices, &rights, flags, None) {
            // One that has ended already says how when its answer is asked for.
            Ok(_) | Err(Errno::EPIPE) => Ok(()),
            Err(errno) => Err(os(stage, "sending the request", errno.into())),
        }
    }

    /// Waits until the first process exists. It runs nothing of its own before [`Self::go`].
    pub(super) fn spawned(&mut self) -> Result<Process, CreateError> {
        let (report, pidfd) = self.answer()?;
        match (report, pidfd) {
            (LaunchReport::Spawned { pid }, Some(pidfd)) => Ok(Process::new(pid, pidfd)),
            (LaunchReport::Failed(failure), _) => Err(failed(failure)),
            (LaunchReport::Ready(_) | LaunchReport::Spawned { .. }, _) => Err(out_of_order()),
        }
    }

    /// Lets the first process become the guest daemon.
    pub(super) fn go(&mut self) -> Result<(), CreateError> {
        let slices = [IoSlice::new(GO)];
        match sendmsg::<()>(
            self.control.as_raw_fd(),
            &slices,
            &[],
            MsgFlags::MSG_NOSIGNAL,
            None,
        ) {
            // A launcher that has already failed says why in its answer.
            Ok(_) | Err(Errno::EPIPE) => Ok(()),
            Err(errno) => Err(os(CreateStage::Launcher, "letting it go on", errno.into())),
        }
    }

    /// Whether it has ended, and if so, whether well.
    pub(super) fn ended(&mut self) -> Option<bool> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.success()),
            Err(_) => Some(false),
        }
    }

    /// Lets nothing go on any more; the launcher says why, or ends.
    pub(super) fn give_up(&self) {
        use nix::sys::socket::{Shutdown, shutdown};
        let _ = shutdown(self.control.as_raw_fd(), Shutdown::Write);
    }

    /// Waits until it has.
    pub(super) fn ready(&mut self) -> Result<LaunchFacts, CreateError> {
        match self.answer()?.0 {
            LaunchReport::Ready(facts) => {
                self.answered = true;
                Ok(facts)
            }
            LaunchReport::Failed(failure) => Err(failed(failure)),
            LaunchReport::Spawned { .. } => Err(out_of_order()),
        }
    }

    /// The next message, and the descriptor that came with it.
    fn answer(&mut self) -> Result<(LaunchReport, Option<OwnedFd>), CreateError> {
        let mut bytes = vec![0_u8; MESSAGE_BYTES_MAX];
        // A launcher that failed before it read the last word makes the kernel say "reset" once;
        // what it had sent is still there behind that.
        let mut resets_left = 1;
        let (length, pidfd) = loop {
            match receive(self.control.as_fd(), &mut bytes) {
                Ok(received) => break received,
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) if resets_left > 0 => resets_left -= 1,
                Err(Errno::EAGAIN) => {
                    return Err(died("no answer in time".to_owned()));
                }
                Err(errno) => return Err(os(CreateStage::Launcher, "its answer", errno.into())),
            }
        };
        if length == 0 {
            let status = self.child.wait().map(|status| status.to_string());
            return Err(died(status.unwrap_or_else(|error| error.to_string())));
        }
        let text = bytes.get(..length).unwrap_or_default();
        let report = serde_json::from_slice(text).map_err(|error| died(error.to_string()))?;
        Ok((report, pidfd))
    }
}

fn out_of_order() -> CreateError {
    died("it answered out of order (is it of another version?)".to_owned())
}

impl Drop for Launch {
    fn drop(&mut self) {
        // After its last answer it ends by itself. Before, it is stuck or not wanted any more: a
        // first process that was not let go ends with it.
        if !self.answered {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn died(detail: String) -> CreateError {
    CreateError {
        stage: CreateStage::Launcher,
        source: CreateFault::LauncherDied(detail),
        hint: Some("its last words are in the daemon's log, if it had any".to_owned()),
    }
}

fn failed(failure: LaunchFailure) -> CreateError {
    os(
        failure.stage,
        failure.what,
        io::Error::from_raw_os_error(failure.errno),
    )
}

/// A refusal of the system, with what is known about its usual cause.
pub(super) fn os(stage: CreateStage, what: impl Into<String>, source: io::Error) -> CreateError {
    let hint = hint(stage, &source).map(str::to_owned);
    CreateError {
        stage,
        source: CreateFault::Os {
            what: what.into(),
            source,
        },
        hint,
    }
}

fn hint(stage: CreateStage, error: &io::Error) -> Option<&'static str> {
    let errno = error.raw_os_error()?;
    match (stage, errno) {
        (CreateStage::LauncherNamespace | CreateStage::SandboxNamespace, libc::ENOSPC) => {
            Some("raise the user.max_*_namespaces sysctls")
        }
        (
            CreateStage::LauncherNamespace
            | CreateStage::SandboxNamespace
            | CreateStage::UserMap
            | CreateStage::LowerLayers,
            libc::EPERM | libc::EACCES | libc::EUSERS,
        ) => Some(
            "user namespaces must be allowed: see the sysctls user.max_user_namespaces, \
             kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns",
        ),
        (_, libc::ENOSPC | libc::EDQUOT) => Some("the disk of the state folder is full"),
        (_, libc::EMFILE | libc::ENFILE) => Some("raise the limit of open files"),
        (CreateStage::RootOverlay | CreateStage::LowerLayers, libc::EINVAL | libc::ENODEV) => Some(
            "overlayfs is needed, and the state folder on a file system that it takes as its upper \
             layer (ext4, xfs, btrfs or tmpfs, not another overlay)",
        ),
        (CreateStage::Launcher, libc::ENOENT | libc::EACCES | libc::ENOEXEC) => {
            Some("fluxvm-procbox must lie beside the daemon and be executable")
        }
        (CreateStage::Cgroup | CreateStage::JoinCgroup, _) => {
            Some("the daemon's user must be allowed to make control groups below its own")
        }
        (CreateStage::KernelFilesystems, libc::EPERM) => {
            Some("inside a container, /proc must not be masked")
        }
        (CreateStage::Exec, libc::ENOENT | libc::ENOEXEC) => {
            Some("the guest daemon must be a static program for this machine")
        }
        _ => None,
    }
}
