//! Bringing processes back instead of starting a guest daemon.
//!
//! CRIU makes the process tree. What it needs is made here: the root file system, the control groups
//! that everything inherits, user and network namespaces in which the guest daemon's socket lies,
//! and descriptors for all that the images call external.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{
    DEVICE_NODES, LaunchFacts, LaunchRequest, MOUNT_POINT, MemoryRequest, Users,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, OpenHow, ResolveFlag, fcntl, openat2};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, fchown, pipe2};

use crate::control::Control;
use crate::criu;
use crate::fault::{Context, Failure, at};
use crate::mounts::{self, ROOT};
use crate::namespaces;
use crate::sys;

const STAGE: CreateStage = CreateStage::Memory;
/// Holds CRIU's words on a restore, in the sandbox's folder.
const LOG: &str = "restore.log";
const PID_FILE: &str = "restore.pid";
/// How much of CRIU's complaint is passed on.
const COMPLAINT_BYTES_MAX: usize = 400;

/// A process that holds namespaces until CRIU's have joined them.
struct Holder {
    pid: Pid,
    gate: Option<OwnedFd>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.gate = None;
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// The whole of it, in order.
pub(crate) fn restore(
    control: &Control,
    request: &LaunchRequest,
    memory: &MemoryRequest,
    log: &File,
) -> Result<LaunchFacts, Failure> {
    let mut facts = LaunchFacts::default();
    umask(Mode::from_bits_truncate(0o022));
    namespaces::join_cgroups(&request.cgroup_procs)?;
    namespaces::enter_own(&request.users)?;
    mounts::enter_scratch(&request.folder)?;
    let holder = hold_users(request)?;
    mounts::build_root(request, holder.pid.as_raw().unsigned_abs(), &mut facts)?;
    at(STAGE)?;
    let pid = run_criu(request, memory, log)?;
    drop(holder);
    let reported = sys::pidfd_open(pid).and_then(|pidfd| control.send_spawned(pid, pidfd.as_fd()));
    reported.stage(STAGE, || "reporting the first process".into())?;
    control.wait_for_go()?;
    Ok(facts)
}

/// Makes a user namespace like the one that CRIU will make: the lower file system is shown under
/// its users.
fn hold_users(request: &LaunchRequest) -> Result<Holder, Failure> {
    let Users::Shifted { base, count } = request.users else {
        let what = "an ordinary user's sandbox";
        return Err(Failure::new(STAGE, what, Errno::EPERM));
    };
    let what = || "a user namespace".to_owned();
    let (gate_read, gate) = pipe2(OFlag::O_CLOEXEC).stage(STAGE, what)?;
    let Some(pid) = sys::clone_process(libc::CLONE_NEWUSER).stage(STAGE, what)? else {
        drop(gate);
        let _ = nix::unistd::read(&gate_read, &mut [0_u8; 1]);
        // SAFETY: ends this process at once; the launcher's own cleanup must not run twice.
        unsafe { libc::_exit(0) }
    };
    let gate = Some(gate);
    let holder = Holder { pid, gate };
    namespaces::map_users(pid.as_raw().unsigned_abs(), base, count)?;
    Ok(holder)
}

fn run_criu(request: &LaunchRequest, memory: &MemoryRequest, log: &File) -> Result<u32, Failure> {
    let what = || "preparing to bring processes back".to_owned();
    let folder = &request.folder;
    let root = folder
        .parent()
        .unwrap_or(folder)
        .join(MOUNT_POINT)
        .join(ROOT);
    let pid_file = folder.join(PID_FILE);
    let text = |path: &PathBuf| path.display().to_string();
    let mut arguments: Vec<String> = [
        "restore",
        "-d",
        "-v2",
        "--manage-cgroups=ignore",
        "--file-locks",
        "--link-remap",
        "--ext-unix-sk",
        "--tcp-established",
        "--root",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend([text(&root), "-D".into(), text(&memory.images)]);
    arguments.extend(["-W".into(), text(folder), "-o".into(), LOG.into()]);
    arguments.extend(["--pidfile".into(), text(&pid_file)]);
    arguments.extend(["--empty-ns".into(), "net".into()]);
    for node in DEVICE_NODES {
        arguments.extend(["--external".into(), format!("mnt[dev-{node}]:/dev/{node}")]);
    }
    let mut opened = Vec::new();
    for (key, path) in &memory.mapped {
        opened.push((
            key.clone(),
            open_inside(path).stage(STAGE, || format!("opening {path}"))?,
        ));
    }
    // CRIU opens what it inherits anew, as the sandbox's root.
    if let Users::Shifted { base, .. } = request.users {
        let (owner, group) = (Uid::from_raw(base), Gid::from_raw(base));
        fchown(log, Some(owner), Some(group)).stage(STAGE, what)?;
    }
    let given = std::iter::once((&memory.log, log.as_fd()));
    let mapped = opened.iter().map(|(key, file)| (key, file.as_fd()));
    for (key, file) in given.chain(mapped) {
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).stage(STAGE, what)?;
        let number = file.as_raw_fd();
        arguments.extend(["--inherit-fd".into(), format!("fd[{number}]:{key}")]);
    }
    criu::prepare(&memory.cache);
    let ended = criu::command(&memory.criu, &arguments).status();
    criu::keep(&memory.cache);
    if !ended.stage(STAGE, || "starting CRIU".into())?.success() {
        return Err(Failure::new(
            STAGE,
            complaint(&folder.join(LOG)),
            Errno::EIO,
        ));
    }
    let pid = fs::read_to_string(&pid_file).stage(STAGE, what)?;
    let _ = fs::remove_file(&pid_file);
    pid.trim()
        .parse()
        .map_err(|_| Failure::new(STAGE, what(), Errno::EINVAL))
}

/// Opens a file of the new root, no link of it leading out.
fn open_inside(path: &str) -> Result<OwnedFd, Errno> {
    let root = nix::fcntl::open(ROOT, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    openat2(&root, path, how)
}

/// What CRIU said of its failure.
fn complaint(log: &std::path::Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let errors = text.lines().filter(|line| line.contains("Error"));
    let mut said: String = errors.collect::<Vec<_>>().join("; ");
    while said.len() > COMPLAINT_BYTES_MAX {
        said.pop();
    }
    format!("CRIU could not bring the processes back: {said}")
}
