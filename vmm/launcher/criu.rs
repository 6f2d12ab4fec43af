//! Running CRIU, and being run by it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use fluxvm_vmm::procbox::wire::{CriuRequest, HOOK_CAPTURED, HOOK_FOLDER_VARIABLE, HOOK_STOPPED};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};

use crate::sys;

/// Where CRIU keeps what it found out about the kernel.
const CACHE: &str = "/run/criu.kdat";
/// Set by CRIU for the programs that it calls.
const ACTION_VARIABLE: &str = "CRTOOLS_SCRIPT_ACTION";
const INIT_VARIABLE: &str = "CRTOOLS_INIT_PID";

/// Runs CRIU in a mount namespace of its own, with its standard error as ours.
pub(crate) fn run(request: &CriuRequest) -> ExitCode {
    // What is captured stands still for as long as CRIU waits for the daemon: with the daemon goes the
    // capture, so that the sandbox runs on.
    if set_pdeathsig(Signal::SIGKILL).is_err() {
        return ExitCode::from(3);
    }
    umask(Mode::from_bits_truncate(0o022));
    let alone = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
    });
    if alone.is_err() {
        return ExitCode::from(3);
    }
    prepare(&request.cache);
    let ended = command(&request.program, &request.arguments).status();
    keep(&request.cache);
    match ended.map(|status| status.code()) {
        Ok(Some(0)) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(_) => ExitCode::from(4),
    }
}

/// CRIU, not yet started. It calls this program at each of its steps.
pub(crate) fn command(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    if let Ok(own) = std::env::current_exe() {
        command.arg("--action-script").arg(own);
    }
    // SAFETY: one system call that changes the new process alone.
    unsafe {
        command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
    }
    command
}

/// Gives CRIU a `/run` of its own, with what it found out before: it writes that only where it
/// goes with the machine's uptime.
pub(crate) fn prepare(cache: &Path) {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let size = Some("mode=700,size=4m");
    let mounted = mount(Some("fluxvm"), "/run", Some("tmpfs"), flags, size);
    // Without either it finds everything out anew, which takes a moment.
    if mounted.is_ok() {
        let _ = fs::copy(cache, CACHE);
    }
}

/// Keeps what CRIU found out, if it did.
pub(crate) fn keep(cache: &Path) {
    if cache.exists() || !Path::new(CACHE).exists() {
        return;
    }
    let fresh = cache.with_extension(format!("new-{}", std::process::id()));
    if fs::copy(CACHE, &fresh).is_ok() {
        let _ = fs::rename(&fresh, cache);
    }
}

/// If CRIU runs this program at one of its steps, does what is to be done there.
pub(crate) fn as_hook() -> Option<ExitCode> {
    let action = std::env::var_os(ACTION_VARIABLE)?;
    set_pdeathsig(Signal::SIGKILL).ok()?;
    let done = match action.to_str() {
        Some("post-dump") => at_standstill(),
        Some("setup-namespaces") => in_new_namespaces(),
        _ => Some(()),
    };
    Some(done.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// Everything stands still: has the daemon capture the disk, and waits until it has.
fn at_standstill() -> Option<()> {
    let folder = PathBuf::from(std::env::var_os(HOOK_FOLDER_VARIABLE)?);
    let mut stopped = OpenOptions::new()
        .write(true)
        .open(folder.join(HOOK_STOPPED))
        .ok()?;
    let mut captured = File::open(folder.join(HOOK_CAPTURED)).ok()?;
    stopped.write_all(b".").ok()?;
    let mut answer = [0_u8; 1];
    captured.read_exact(&mut answer).ok()?;
    (answer == *b"y").then_some(())
}

/// Turns on the loopback interface, before anything wants to listen on it.
fn in_new_namespaces() -> Option<()> {
    let pid: OsString = std::env::var_os(INIT_VARIABLE)?;
    let net = Path::new("/proc").join(pid).join("ns/net");
    setns(File::open(net).ok()?, CloneFlags::CLONE_NEWNET).ok()?;
    sys::loopback_up().ok()
}
