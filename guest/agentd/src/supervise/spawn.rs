//! Building and forking: from a command to a supervisor at work.
//!
//! What happens after the fork is in `supervisor`; this side prepares all memory that it needs. The
//! child uses that memory and raw calls and nothing else, so it does not matter what other threads
//! of agentd, those that move files, were doing at the moment of the fork.
#![allow(unsafe_code)] // fork and pipes with raw descriptors exist only as raw calls

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::ptr;

use agentd_protocol::TerminalSize;
use libc::c_char;
use libc::c_int;
use libc::pid_t;

use super::report::SpawnStage;
use super::supervisor::supervise;
use super::terminal::Terminal;
use crate::confine::Confinement;

/// Bytes of the leader's stack until it execs; it calls nothing deep.
pub(super) const LEADER_STACK_BYTES: usize = 32 * 1024;

/// Blocks from this size on are mapped by themselves and unmapped when freed.
const LARGE_BLOCK_BYTES: c_int = 256 * 1024;

/// Free memory that stays at the heap's end: a few frames of output, so that a stream does not hand
/// memory back and ask for it again with every frame.
const HEAP_SLACK_BYTES: c_int = 1024 * 1024;

/// libc's name for how many heaps there may be. Threads that move files would each get one, and
/// keep what they freed in it.
const M_ARENA_MAX: c_int = -8;

/// Everything that a command needs, in the form that exec takes.
#[derive(Debug)]
pub(crate) struct Command {
    /// Where the program may lie, in order.
    pub(crate) programs: Vec<CString>,
    /// The argument vector.
    pub(crate) arguments: Vec<CString>,
    /// `NAME=value` each.
    pub(crate) environment: Vec<CString>,
    /// The working directory, unless inherited.
    pub(crate) directory: Option<CString>,
    /// The uid, unless inherited.
    pub(crate) uid: Option<u32>,
    /// The gid, unless inherited.
    pub(crate) gid: Option<u32>,
    /// Whether standard input is a pipe; otherwise it is the null device.
    pub(crate) stdin: bool,
    /// The size of a terminal in the place of all three streams.
    pub(crate) terminal: Option<TerminalSize>,
    /// What is taken from the command.
    pub(crate) confinement: Option<Confinement>,
}

/// What every command shares.
#[derive(Debug)]
pub(crate) struct SpawnContext {
    null: OwnedFd,
    files_max: libc::rlimit,
}

/// A supervisor at work and the pipes that lead to it.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) supervisor: pid_t,
    pub(crate) streams: Streams,
    pub(crate) report: OwnedFd,
}

/// Our ends of a command's streams.
#[derive(Debug)]
pub(crate) enum Streams {
    Pipes {
        stdin: Option<OwnedFd>,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    /// The outer side of a terminal.
    Terminal(OwnedFd),
}

/// The command's own ends, which close here when it has them.
struct InnerEnds {
    /// `None` is the null device.
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    /// `None` is the same as the output.
    stderr: Option<OwnedFd>,
}

fn streams(command: &Command) -> io::Result<(Streams, InnerEnds)> {
    if let Some(size) = command.terminal {
        let Terminal { master, slave } = Terminal::open(size, command.uid)?;
        let inner = InnerEnds {
            stdin: Some(slave.try_clone()?),
            stdout: slave,
            stderr: None,
        };
        return Ok((Streams::Terminal(master), inner));
    }
    let (stdin_reader, stdin) = match command.stdin.then(pipe).transpose()? {
        Some((reader, writer)) => (Some(reader), Some(writer)),
        None => (None, None),
    };
    let (stdout, stdout_writer) = pipe()?;
    let (stderr, stderr_writer) = pipe()?;
    let outer = Streams::Pipes {
        stdin,
        stdout,
        stderr,
    };
    let inner = InnerEnds {
        stdin: stdin_reader,
        stdout: stdout_writer,
        stderr: Some(stderr_writer),
    };
    Ok((outer, inner))
}

impl SpawnContext {
    /// Opens the null device once, so that nothing done to `/dev` later matters, and raises this
    /// process's own limit of open files. Commands get the original limit.
    pub(crate) fn prepare() -> io::Result<Self> {
        keep_memory_small();
        let null = std::fs::File::open("/dev/null")?.into();
        let mut files_max = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointer is to a live rlimit for the duration of the call.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files_max) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let raised = libc::rlimit {
            rlim_cur: files_max.rlim_max,
            ..files_max
        };
        // SAFETY: the pointer is to a live rlimit. Failure leaves the old limit, which works too.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
        Ok(Self { null, files_max })
    }
}

/// Has freed memory go back to the system at once. Left alone, libc raises its own threshold with
/// every large block that is freed and keeps what one command's output needed for good; a fork
/// would copy the tables of all of it, and an idle guest would not be small.
fn keep_memory_small() {
    // SAFETY: sets two numbers inside libc before anything else runs. Failure changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES);
        libc::mallopt(M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_SLACK_BYTES);
    }
}

/// Pointers and numbers for the two children; all memory behind them outlives the fork call.
pub(super) struct Plan {
    pub(super) programs: Vec<*const c_char>,
    pub(super) arguments: Vec<*const c_char>,
    /// `/bin/sh`, the program, its arguments: for an executable text file without `#!`.
    pub(super) script_arguments: Vec<*const c_char>,
    pub(super) environment: Vec<*const c_char>,
    pub(super) directory: *const c_char,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) null: c_int,
    /// The null device too, unless the command has an input.
    pub(super) stdin: c_int,
    pub(super) stdout: c_int,
    pub(super) stderr: c_int,
    pub(super) report: c_int,
    /// The rules of what the command may reach; the null device when there are none.
    pub(super) ruleset: c_int,
    /// The descriptors above in ascending order.
    pub(super) kept: [c_int; 6],
    /// Whether the output is a terminal, which the leader then controls.
    pub(super) terminal: bool,
    pub(super) confined: bool,
    pub(super) filter: Option<libc::sock_fprog>,
    pub(super) limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    pub(super) files_max: libc::rlimit,
    pub(super) stack: Vec<u8>,
    pub(super) failed_stage: SpawnStage,
    pub(super) failed_errno: c_int,
}

/// Starts a supervisor, which starts the command. How that went is the first record of its report.
pub(crate) fn spawn(context: &SpawnContext, command: &Command) -> io::Result<Spawned> {
    let (streams, inner) = streams(command)?;
    let (report, report_writer) = pipe()?;
    let descriptors = Descriptors {
        null: context.null.as_raw_fd(),
        stdin: inner.stdin.as_ref().unwrap_or(&context.null).as_raw_fd(),
        stdout: inner.stdout.as_raw_fd(),
        stderr: inner.stderr.as_ref().unwrap_or(&inner.stdout).as_raw_fd(),
        report: report_writer.as_raw_fd(),
        ruleset: command
            .confinement
            .as_ref()
            .and_then(|confinement| confinement.ruleset.as_ref())
            .unwrap_or(&context.null)
            .as_raw_fd(),
    };
    let mut plan = plan(command, &descriptors, context.files_max);
    let supervisor = fork_supervisor(&mut plan)?;
    Ok(Spawned {
        supervisor,
        streams,
        report,
    })
}

struct Descriptors {
    null: c_int,
    stdin: c_int,
    stdout: c_int,
    stderr: c_int,
    report: c_int,
    ruleset: c_int,
}

/// The call filter and limits of a command, in the form that the kernel takes. The program stays
/// where the command has it.
fn restrictions(
    confinement: &Confinement,
) -> (
    Option<libc::sock_fprog>,
    Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
) {
    let filter = confinement.filter.as_ref().map(|program| libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        // The two types are the same instruction, laid out as the kernel reads it.
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    });
    let limits = confinement.limits.iter().map(|limit| {
        let most = libc::rlimit {
            rlim_cur: limit.most,
            rlim_max: limit.most,
        };
        (limit.resource, most)
    });
    (filter, limits.collect())
}

fn plan(command: &Command, descriptors: &Descriptors, files_max: libc::rlimit) -> Plan {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let arguments = pointers(&command.arguments);
    let mut script_arguments = vec![c"/bin/sh".as_ptr(), ptr::null()];
    script_arguments.extend(arguments.iter().skip(1));
    let &Descriptors {
        null,
        stdin,
        stdout,
        stderr,
        report,
        ruleset,
    } = descriptors;
    let mut kept = [null, stdin, stdout, stderr, report, ruleset];
    kept.sort_unstable();
    let restrictions = command.confinement.as_ref().map(restrictions);
    let confined = restrictions.is_some();
    let (filter, limits) = restrictions.unwrap_or_default();
    Plan {
        programs: command
            .programs
            .iter()
            .map(|program| program.as_ptr())
            .collect(),
        arguments,
        script_arguments,
        environment: pointers(&command.environment),
        directory: command
            .directory
            .as_ref()
            .map_or(ptr::null(), |path| path.as_ptr()),
        uid: command.uid,
        gid: command.gid,
        null,
        stdin,
        stdout,
        stderr,
        report,
        ruleset,
        kept,
        terminal: command.terminal.is_some(),
        confined,
        filter,
        limits,
        files_max,
        stack: vec![0; LEADER_STACK_BYTES],
        failed_stage: SpawnStage::Fork,
        failed_errno: 0,
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the array has room for the two descriptors that the call writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let [reader, writer] = ends;
    // SAFETY: the call succeeded, so both are open descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(reader), OwnedFd::from_raw_fd(writer)) })
}

fn fork_supervisor(plan: &mut Plan) -> io::Result<pid_t> {
    // SAFETY: zeroed signal sets are valid values, and the calls initialise them.
    let (mut all, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: the pointers are to live signal sets. All signals stay blocked over the fork, so no
    // handler of this process ever runs in the child.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: the child only makes async-signal-safe calls on memory that was prepared before the
    // fork, takes no lock that another thread could have held, and never returns.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        supervise(plan);
    }
    let error = io::Error::last_os_error();
    // SAFETY: the pointer is to the live signal set that the first call filled.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    if forked < 0 { Err(error) } else { Ok(forked) }
}
