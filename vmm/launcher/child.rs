//! The sandbox's first process, from its birth to the moment at which it becomes the guest daemon.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{
    ABSTRACT_SOCKET, AGENTD_GUEST_PATH, LISTEN_FD, LaunchFacts, LaunchFailure, LaunchRequest,
    SOCKET, Users,
};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, socket};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{
    Gid, Pid, Uid, execve, pipe2, pivot_root, setgroups, setresgid, setresuid, setsid,
};

use crate::control::{Descriptors, read_to_end};
use crate::fault::{Context, Failure, at};
use crate::mounts::{ROOT, own};
use crate::sys;

/// Open files per process inside. The guest daemon holds several for each command, so its soft
/// limit is the hard one; 65,536 is what common servers ask for.
const OPEN_FILES_MAX: u64 = 65_536;
/// What the kernel's killer adds to the guest daemon's score, in thousandths of all memory: below
/// every command, and not -1000, which would let a machine without memory hang rather than end it.
const SPARED_OOM_SCORE_ADJ: &str = "-900";
/// Connections that wait for the guest daemon: as many as it serves at once.
const BACKLOG: i32 = 128;
/// The status pipe in the child, above the listener; it closes by itself when the guest daemon
/// starts.
const STATUS_FD: i32 = LISTEN_FD + 1;

/// The first process, seen from the launcher. It dies with this value unless it was started.
pub(crate) struct FirstProcess {
    pid: Pid,
    gate: OwnedFd,
    status: OwnedFd,
    started: bool,
}

impl FirstProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Lets it go on to its next waiting point.
    pub(crate) fn release(&self) -> Result<(), Failure> {
        // It may have failed already: the status pipe tells more than the broken gate.
        match nix::unistd::write(&self.gate, b".") {
            Ok(_) | Err(Errno::EPIPE) => Ok(()),
            Err(errno) => Err(Failure::new(CreateStage::Exec, "opening the gate", errno)),
        }
    }

    /// Ends it, and tells what it had failed at, if it had.
    pub(crate) fn end(self) -> Option<Failure> {
        let _ = kill(self.pid, Signal::SIGKILL);
        let said = read_to_end(self.status.as_fd()).ok()?;
        match last_word(&said)? {
            Outcome::Failed(failure) => Some(failure.into()),
            Outcome::Started { .. } => None,
        }
    }

    /// Makes it the last that the kernel ends when memory is short: without it, everything inside
    /// is lost. Only a root of the host with `CAP_SYS_RESOURCE` may; for others it stays an equal
    /// of its commands. It must have been released once, for before that it sets the value itself.
    pub(crate) fn spare(&self) {
        let path = format!("/proc/{}/oom_score_adj", self.pid);
        let _ = fs::write(path, SPARED_OOM_SCORE_ADJ);
    }

    /// Waits until it has become the guest daemon, or has said why it could not.
    pub(crate) fn wait_until_started(mut self, facts: &mut LaunchFacts) -> Result<(), Failure> {
        let what = || "waiting for the first process".to_owned();
        let said = read_to_end(self.status.as_fd()).stage(CreateStage::Exec, what)?;
        let broken = || Failure::new(CreateStage::Exec, "the first process died", Errno::ECHILD);
        match last_word(&said).ok_or_else(broken)? {
            Outcome::Started {
                no_sysfs,
                landlock_abi,
                seccomp,
            } => {
                facts.no_sysfs = no_sysfs;
                facts.landlock_abi = landlock_abi;
                facts.seccomp = seccomp;
                self.started = true;
                Ok(())
            }
            Outcome::Failed(failure) => Err(failure.into()),
        }
    }
}

/// It says that it starts, and once more if that fails after all.
fn last_word(said: &[u8]) -> Option<Outcome> {
    let words = serde_json::Deserializer::from_slice(said).into_iter::<Outcome>();
    words.filter_map(Result::ok).last()
}

impl Drop for FirstProcess {
    fn drop(&mut self) {
        if !self.started {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

/// What the first process says of itself, just before it starts the guest daemon or ends.
#[derive(serde::Serialize, serde::Deserialize)]
enum Outcome {
    Started {
        no_sysfs: Option<String>,
        landlock_abi: u32,
        seccomp: bool,
    },
    Failed(LaunchFailure),
}

/// Makes the first process in its namespaces. It waits at its gate.
pub(crate) fn spawn(request: &LaunchRequest, fds: Descriptors) -> Result<FirstProcess, Failure> {
    const STAGE: CreateStage = CreateStage::SandboxNamespace;
    at(STAGE)?;
    let pipes = || "pipes to the first process".to_owned();
    let (gate_read, gate) = pipe2(OFlag::O_CLOEXEC).stage(STAGE, pipes)?;
    let (status, status_write) = pipe2(OFlag::O_CLOEXEC).stage(STAGE, pipes)?;
    // The user namespace comes first in one call and so owns the others: root inside may then bring
    // up its own loopback, set its own host name and mount its own /proc.
    let mut flags = libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP;
    if matches!(request.users, Users::Shifted { .. }) {
        flags |= libc::CLONE_NEWUSER;
    }
    let what = || "user, process and control group namespaces".to_owned();
    match sys::clone_process(flags).stage(STAGE, what)? {
        Some(pid) => Ok(FirstProcess {
            pid,
            gate,
            status,
            started: false,
        }),
        None => {
            drop(gate);
            drop(status);
            let code = run(request, &fds, &gate_read, &status_write);
            // SAFETY: ends this process at once; the launcher's own cleanup must not run twice.
            unsafe { libc::_exit(code) }
        }
    }
}

/// The child's descriptors, all above the numbers that the guest daemon will use.
struct Own {
    gate: OwnedFd,
    log: OwnedFd,
}

fn run(request: &LaunchRequest, fds: &Descriptors, gate: &OwnedFd, status: &OwnedFd) -> i32 {
    let lifted = || {
        let own = Own {
            gate: lift(gate)?,
            log: lift(&fds.log)?,
        };
        // At its number from the start, so that every failure is said over the same descriptor.
        place(&lift(status)?, STATUS_FD)?;
        set_close_on_exec(STATUS_FD)?;
        Ok::<_, Errno>(own)
    };
    let Ok(own) = lifted() else { return 1 };
    let Err(failure) = become_guest_daemon(request, own);
    say(&Outcome::Failed(failure.into()));
    1
}

/// Every step from the fork to the exec.
fn become_guest_daemon(request: &LaunchRequest, own: Own) -> Result<Infallible, Failure> {
    let listener = separate(request)?;
    wait_at(&own.gate)?;
    let namespace = || "a mount namespace of its own".to_owned();
    unshare(CloneFlags::CLONE_NEWNS).stage(CreateStage::MountNamespace, namespace)?;
    take_root_credentials(request)?;
    let no_sysfs = kernel_file_systems(request)?;
    change_root()?;
    identity(request)?;
    workspace(&request.workspace)?;
    at(CreateStage::Exec)?;
    wait_at(&own.gate)?;
    start(request, own, listener, no_sysfs)
}

/// Makes the namespaces that need not exist before the mounts do: the network namespace is the slow
/// one, and the launcher mounts in the meantime.
///
/// Returns the socket on which the guest daemon will listen. It is made here, for only what belongs
/// to the sandbox's own network namespace can be kept with its memory.
fn separate(request: &LaunchRequest) -> Result<OwnedFd, Failure> {
    const STAGE: CreateStage = CreateStage::SandboxNamespace;
    let flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    unshare(flags).stage(STAGE, || "network, host name and IPC namespaces".into())?;
    setsid().map(drop).stage(STAGE, || "a session".into())?;
    // A daemon that is spared by the kernel's killer must not pass that on.
    let _ = fs::write("/proc/self/oom_score_adj", "0");
    // A host without keyrings has no keys to hide.
    let _ = sys::leave_keyring();
    listen(request).stage(STAGE, || "binding the guest daemon's socket".into())
}

/// Binds the guest daemon's socket.
fn listen(request: &LaunchRequest) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match request.users {
        // Only its own network namespace knows this name, and nothing inside can take it away.
        Users::Shifted { .. } => {
            let address = UnixAddr::new_abstract(ABSTRACT_SOCKET)?;
            bind(listener.as_raw_fd(), &address)?;
        }
        // Who may not enter the namespace needs a path. It is bound by a bare name, so that the
        // state folder's path may be longer than a socket address.
        Users::Single { .. } => {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let here = nix::fcntl::open(".", flags, Mode::empty())?;
            nix::unistd::chdir(own(request, "").as_str())?;
            let bound = bind(listener.as_raw_fd(), &UnixAddr::new(SOCKET)?);
            nix::unistd::fchdir(&here)?;
            bound?;
        }
    }
    nix::sys::socket::listen(&listener, Backlog::new(BACKLOG)?)?;
    lift(&listener)
}

/// Waits for the launcher. One that is gone takes this process with it.
fn wait_at(gate: &OwnedFd) -> Result<(), Failure> {
    let mut byte = [0_u8; 1];
    let what = || "waiting for the launcher".to_owned();
    loop {
        match nix::unistd::read(gate, &mut byte) {
            Ok(1) => return Ok(()),
            Err(Errno::EINTR) => {}
            Ok(_) => return Err(Failure::new(CreateStage::Exec, what(), Errno::EPIPE)),
            Err(errno) => return Err(Failure::new(CreateStage::Exec, what(), errno)),
        }
    }
}

/// Becomes root inside: until here this process is an unmapped user.
fn take_root_credentials(request: &LaunchRequest) -> Result<(), Failure> {
    const STAGE: CreateStage = CreateStage::Identity;
    let (root, wheel) = (Uid::from_raw(0), Gid::from_raw(0));
    if matches!(request.users, Users::Shifted { .. }) {
        setgroups(&[]).stage(STAGE, || "dropping groups".into())?;
    }
    setresgid(wheel, wheel, wheel).stage(STAGE, || "becoming the root group".into())?;
    setresuid(root, root, root).stage(STAGE, || "becoming root".into())
}

/// Mounts what must be mounted from inside. Returns why `/sys` is empty, if it is.
fn kernel_file_systems(request: &LaunchRequest) -> Result<Option<String>, Failure> {
    const STAGE: CreateStage = CreateStage::KernelFilesystems;
    at(STAGE)?;
    let no_exec = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let no_device = no_exec | MsFlags::MS_NODEV;
    // Bound onto itself, with its device nodes: only a mount of this namespace can become its root.
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(ROOT), ROOT, None::<&str>, bind, None::<&str>)
        .stage(CreateStage::PivotRoot, || "binding the root".into())?;
    let inside = |path: &str| format!("{ROOT}/{path}");
    mount(
        Some("proc"),
        inside("proc").as_str(),
        Some("proc"),
        no_device,
        None::<&str>,
    )
    .stage(STAGE, || "mounting /proc".into())?;
    let terminals = match request.users {
        // Group 5 is the terminal group of every distribution.
        Users::Shifted { .. } => "newinstance,ptmxmode=0666,mode=0620,gid=5",
        Users::Single { .. } => "newinstance,ptmxmode=0666,mode=0620",
    };
    mount(
        Some("devpts"),
        inside("dev/pts").as_str(),
        Some("devpts"),
        no_exec,
        Some(terminals),
    )
    .stage(STAGE, || "mounting /dev/pts".into())?;
    // A size of its own: what lies there is memory that no process's end frees.
    let shared = format!("mode=1777,size={}", request.shm_bytes);
    let no_set_id = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(
        Some("shm"),
        inside("dev/shm").as_str(),
        Some("tmpfs"),
        no_set_id,
        Some(shared.as_str()),
    )
    .stage(STAGE, || "mounting /dev/shm".into())?;
    let read_only = no_device | MsFlags::MS_RDONLY;
    let sysfs = mount(
        Some("sysfs"),
        inside("sys").as_str(),
        Some("sysfs"),
        read_only,
        None::<&str>,
    );
    Ok(sysfs.err().map(|errno| errno.desc().to_owned()))
}

/// Makes the built root the root, and lets go of the host's.
fn change_root() -> Result<(), Failure> {
    const STAGE: CreateStage = CreateStage::PivotRoot;
    at(STAGE)?;
    std::env::set_current_dir(ROOT).stage(STAGE, || "entering the root".into())?;
    pivot_root(".", ".").stage(STAGE, || "pivot_root".into())?;
    umount2(".", MntFlags::MNT_DETACH).stage(STAGE, || "letting go of the host's root".into())?;
    std::env::set_current_dir("/").stage(STAGE, || "entering the new root".into())
}

/// Host name, loopback, limits.
fn identity(request: &LaunchRequest) -> Result<(), Failure> {
    const STAGE: CreateStage = CreateStage::Identity;
    at(STAGE)?;
    nix::unistd::sethostname(&request.hostname).stage(STAGE, || "setting the host name".into())?;
    sys::loopback_up().stage(STAGE, || "bringing up loopback".into())?;
    let limit = || "setting resource limits".to_owned();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).stage(STAGE, limit)?;
    let files = most.min(OPEN_FILES_MAX);
    setrlimit(Resource::RLIMIT_NOFILE, files, files).stage(STAGE, limit)?;
    let (_, most) = getrlimit(Resource::RLIMIT_CORE).stage(STAGE, limit)?;
    setrlimit(Resource::RLIMIT_CORE, 0, most).stage(STAGE, limit)?;
    sys::reset_signals();
    Ok(())
}

fn workspace(path: &str) -> Result<(), Failure> {
    const STAGE: CreateStage = CreateStage::Workspace;
    at(STAGE)?;
    fs::create_dir_all(path).stage(STAGE, || format!("making {path}"))?;
    std::env::set_current_dir(Path::new(path)).stage(STAGE, || format!("entering {path}"))
}

/// Arranges the descriptors and becomes the guest daemon.
fn start(
    request: &LaunchRequest,
    own: Own,
    listener: OwnedFd,
    no_sysfs: Option<String>,
) -> Result<Infallible, Failure> {
    const STAGE: CreateStage = CreateStage::Exec;
    let arrange = || "arranging descriptors".to_owned();
    let text = |value: &str| CString::new(value).map_err(|_| Errno::EINVAL);
    let path = text(AGENTD_GUEST_PATH).stage(STAGE, arrange)?;
    let pairs = request
        .env
        .iter()
        .map(|(name, value)| text(&format!("{name}={value}")));
    let env: Vec<CString> = pairs.collect::<Result<_, _>>().stage(STAGE, arrange)?;
    let null = OpenOptions::new()
        .read(true)
        .open("/dev/null")
        .stage(STAGE, arrange)?;
    place(&null, libc::STDIN_FILENO).stage(STAGE, arrange)?;
    place(&own.log, libc::STDOUT_FILENO).stage(STAGE, arrange)?;
    place(&own.log, libc::STDERR_FILENO).stage(STAGE, arrange)?;
    place(&listener, LISTEN_FD).stage(STAGE, arrange)?;
    // They are closed with everything else above the ones that were placed.
    std::mem::forget((own, listener, null));
    sys::close_from(STATUS_FD.unsigned_abs() + 1).stage(STAGE, arrange)?;
    say(&Outcome::Started {
        no_sysfs,
        landlock_abi: sys::landlock_abi(),
        seccomp: sys::filters_calls(),
    });
    if request.trial {
        // SAFETY: ends this process at once; there is nothing to run.
        unsafe { libc::_exit(0) }
    }
    let Err(errno) = execve(&path, &[path.as_c_str()], &env);
    Err(Failure::new(STAGE, "starting the guest daemon", errno))
}

/// Says something over the status pipe once it has its number.
fn say(outcome: &Outcome) {
    // SAFETY: the number is the status pipe's, or closed, in which case the write fails harmlessly.
    let status = unsafe { BorrowedFd::borrow_raw(STATUS_FD) };
    if let Ok(text) = serde_json::to_vec(outcome) {
        let _ = nix::unistd::write(status, &text);
    }
}

/// A copy of a descriptor, above every number that has a meaning.
fn lift(fd: &impl AsRawFd) -> Result<OwnedFd, Errno> {
    const FIRST: libc::c_int = 16;
    // SAFETY: this takes numbers and makes a new descriptor.
    let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FIRST) };
    let copy = Errno::result(copy)?;
    // SAFETY: the call has just made this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Gives a descriptor a second, fixed number that survives exec.
fn place(fd: &impl AsRawFd, number: libc::c_int) -> Result<(), Errno> {
    // SAFETY: whatever had that number was the launcher's, and this process no longer uses it.
    Errno::result(unsafe { libc::dup2(fd.as_raw_fd(), number) }).map(drop)
}

fn set_close_on_exec(number: libc::c_int) -> Result<(), Errno> {
    // SAFETY: only a flag of that number changes.
    Errno::result(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }).map(drop)
}
