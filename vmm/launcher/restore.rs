//! Bringing processes back instead of starting a guest daemon.
//!
//! CRIU makes the process tree. What it needs is made here: the root file system, the control groups
//! that everything inherits, and descriptors for all that the images call external.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

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

/// Runs CRIU on the images. Returns the id of the guest daemon on the host.
fn run_criu(request: &LaunchRequest, memory: &MemoryRequest, log: &File) -> Result<u32, Failure> {
    let what = || "preparing to bring processes back".to_owned();
    let pid_file = request.folder.join(PID_FILE);
    let mut arguments = arguments(request, memory, &pid_file);
    // CRIU opens what it inherits anew, as the sandbox's root.
    if let Users::Shifted { base, .. } = request.users {
        let (owner, group) = (Uid::from_raw(base), Gid::from_raw(base));
        fchown(log, Some(owner), Some(group)).stage(STAGE, what)?;
    }
    // They stay open until CRIU has ended.
    let mut mapped = Vec::new();
    for (key, path) in &memory.mapped {
        let file = open_inside(path).stage(STAGE, || format!("opening {path}"))?;
        mapped.push((key, file));
    }
    let files = mapped.iter().map(|(key, file)| (*key, file.as_fd()));
    for (key, file) in std::iter::once((&memory.log, log.as_fd())).chain(files) {
        fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).stage(STAGE, what)?;
        let number = file.as_raw_fd();
        arguments.extend(["--inherit-fd".to_owned(), format!("fd[{number}]:{key}")]);
    }
    criu::prepare(&memory.cache);
    let ended = criu::command(&memory.criu, &arguments).status();
    criu::keep(&memory.cache);
    if !ended.stage(STAGE, || "starting CRIU".into())?.success() {
        let said = complaint(&request.folder.join(LOG));
        return Err(Failure::new(STAGE, said, Errno::EIO));
    }
    let pid = fs::read_to_string(&pid_file).stage(STAGE, what)?;
    let _ = fs::remove_file(&pid_file);
    pid.trim()
        .parse()
        .map_err(|_| Failure::new(STAGE, what(), Errno::EINVAL))
}

fn arguments(request: &LaunchRequest, memory: &MemoryRequest, pid_file: &Path) -> Vec<String> {
    let folder = &request.folder;
    let scratch = folder.parent().unwrap_or(folder).join(MOUNT_POINT);
    let mut arguments: Vec<String> = [
        "restore",
        "-d",
        "-v2",
        "--manage-cgroups=ignore",
        "--file-locks",
        "--link-remap",
        "--ext-unix-sk",
        "--tcp-established",
        "--empty-ns",
        "net",
        "-o",
        LOG,
    ]
    .map(str::to_owned)
    .to_vec();
    let root = scratch.join(ROOT);
    let places = [
        ("--root", root.as_path()),
        ("-D", &memory.images),
        ("-W", folder),
        ("--pidfile", pid_file),
    ];
    for (option, place) in places {
        arguments.extend([option.to_owned(), place.display().to_string()]);
    }
    for node in DEVICE_NODES {
        let external = format!("mnt[dev-{node}]:/dev/{node}");
        arguments.extend(["--external".to_owned(), external]);
    }
    arguments
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
fn complaint(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let errors = text.lines().filter(|line| line.contains("Error"));
    let mut said: String = errors.collect::<Vec<_>>().join("; ");
    while said.len() > COMPLAINT_BYTES_MAX {
        said.pop();
    }
    format!("CRIU could not bring the processes back: {said}")
}
