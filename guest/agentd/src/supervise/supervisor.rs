//! The two children between agentd and a program: a supervisor that adopts orphans, and the leader.
//!
//! ```text
//! agentd ──fork──► supervisor (subreaper, own group, all signals blocked)
//!                      └──vfork──► leader (own group) ──► its descendants
//! ```
//!
//! A process that leaves its group and its session is still a descendant: when its parent dies,
//! the supervisor adopts it, never agentd. So everything that an exec ever started stays
//! attributable, and "has it ended?" has an answer: when the supervisor has no child left.
//!
//! The supervisor tells what happens over a pipe in fixed records. It writes the leader's fate
//! *before* it reaps the leader: if it is killed in between, agentd adopts the leader and reaps
//! it, so the fate is never lost.
//!
//! Between fork and exec only async-signal-safe calls are made: raw system calls on memory that
//! was prepared before. The leader shares the supervisor's memory until it execs (`CLONE_VFORK`),
//! which saves a copy and lets it leave its error where the supervisor finds it.
#![allow(unsafe_code)] // clone and exec exist only as raw calls

use std::ptr;

use libc::c_int;
use libc::c_long;
use libc::c_void;
use libc::pid_t;

use super::report::RECORD_BYTES;
use super::report::Record;
use super::report::SpawnStage;
use super::spawn::LEADER_STACK_BYTES;
use super::spawn::Plan;

/// The highest signal number.
const SIGNAL_MAX: c_int = 64;

/// What the kernel calls a signal's action: all zero is the default one, without flags or mask.
type KernelSigaction = [usize; 4];

/// Highest descriptor closed one by one on a kernel without `close_range`.
const CLOSE_FALLBACK_FD_MAX: c_int = 4096;

/// The supervisor's whole life.
pub(super) fn supervise(plan: &mut Plan) -> ! {
    become_supervisor(plan);
    let plan_pointer: *mut Plan = plan;
    // SAFETY: the pointer is to the end of the live stack buffer, rounded down to what the ABI
    // asks for.
    let stack_top = unsafe {
        let top = plan.stack.as_mut_ptr().add(LEADER_STACK_BYTES);
        top.sub(top as usize % 16)
    };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack and the plan outlive the leader's use of them, because CLONE_VFORK holds
    // this process until the leader execs or exits.
    let leader =
        unsafe { libc::clone(lead, stack_top.cast::<c_void>(), flags, plan_pointer.cast()) };
    // SAFETY: the plan is live. The leader may have written to it, hence the volatile reads.
    let (stage, errno) = unsafe {
        (
            ptr::read_volatile(&raw const (*plan_pointer).failed_stage),
            ptr::read_volatile(&raw const (*plan_pointer).failed_errno),
        )
    };
    // SAFETY: closing descriptors of this process that are not used again. The supervisor must
    // not hold the pipes that its command's readers wait on.
    unsafe {
        libc::close(plan.stdin);
        libc::close(plan.stdout);
        libc::close(plan.stderr);
        // Nor what a memory checkpoint cannot keep.
        if plan.ruleset != plan.null {
            libc::close(plan.ruleset);
        }
    }
    if leader < 0 {
        report(
            plan.report,
            Record::SpawnFailed {
                stage: SpawnStage::Fork,
                errno: last_errno(),
            },
        );
        exit_now(1);
    }
    if errno != 0 {
        // SAFETY: a null status pointer is allowed.
        unsafe { libc::waitpid(leader, ptr::null_mut(), 0) };
        report(plan.report, Record::SpawnFailed { stage, errno });
        exit_now(1);
    }
    report(plan.report, Record::Started);
    keep_reaping(leader, plan.report)
}

/// Makes this process nobody's burden: own group, no descriptors but the needed ones, default
/// dispositions, and the parent of every orphan below it.
fn become_supervisor(plan: &Plan) {
    // SAFETY: plain system calls on this process; the name is a live string.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"exec-sup".as_ptr(), 0, 0, 0);
        for target in 0..=2 {
            libc::dup2(plan.null, target);
        }
        for signal in 1..=SIGNAL_MAX {
            // Raw, because libc keeps two signals to itself and would leave those ignored.
            let default: KernelSigaction = [0; 4];
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<KernelSigaction>(),
                size_of::<u64>(),
            );
        }
    }
    prefer_to_be_ended();
    let mut first = 3;
    for kept in plan.kept {
        close_between(first, kept - 1);
        first = first.max(kept + 1);
    }
    close_between(first, c_int::MAX);
}

/// Where memory is short, what agentd starts must end before agentd does, for without it everything is
/// lost. It may not be allowed to lower its own score, but anybody may raise theirs. Half of the scale:
/// what a command takes beyond others still tells them apart.
fn prefer_to_be_ended() {
    const PREFERRED: &[u8] = b"500";
    // SAFETY: plain system calls on a live path and buffer, and on the descriptor just opened.
    unsafe {
        let path = c"/proc/self/oom_score_adj".as_ptr();
        let file = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, PREFERRED.as_ptr().cast(), PREFERRED.len());
            libc::close(file);
        }
    }
}

fn close_between(first: c_int, last: c_int) {
    if first > last {
        return;
    }
    // SAFETY: closing descriptors that this process does not use; the arguments are numbers.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if closed != 0 {
        for descriptor in first..=last.min(CLOSE_FALLBACK_FD_MAX) {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// The leader until it execs. Runs on its own stack in the supervisor's memory.
extern "C" fn lead(argument: *mut c_void) -> c_int {
    let plan = argument.cast::<Plan>();
    // SAFETY: the argument is the supervisor's plan, which outlives this process's use of it, and
    // the supervisor is held until then, so the access is exclusive.
    let plan = unsafe { &mut *plan };
    let (stage, errno) = try_lead(plan);
    // SAFETY: as above; volatile, because the supervisor reads it after this process is gone.
    unsafe {
        ptr::write_volatile(&raw mut plan.failed_stage, stage);
        ptr::write_volatile(&raw mut plan.failed_errno, errno);
    }
    exit_now(127);
}

/// Returns only when a step failed.
fn try_lead(plan: &mut Plan) -> (SpawnStage, c_int) {
    // SAFETY: plain system calls on this process, with live pointers from the plan. Ids are set by
    // raw calls, because libc's own would look for other threads to change.
    unsafe {
        if plan.terminal {
            // A session of its own is a group of its own too, and only it can have a terminal.
            if libc::setsid() < 0 || libc::ioctl(plan.stdout, libc::TIOCSCTTY, 0) != 0 {
                return (SpawnStage::Descriptors, last_errno());
            }
        } else {
            libc::setpgid(0, 0);
        }
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const plan.files_max);
        for (source, target) in [(plan.stdin, 0), (plan.stdout, 1), (plan.stderr, 2)] {
            if libc::dup2(source, target) < 0 {
                return (SpawnStage::Descriptors, last_errno());
            }
        }
        if (plan.uid.is_some() || plan.gid.is_some())
            && libc::syscall(libc::SYS_setgroups, 0, ptr::null::<u32>()) != 0
        {
            return (SpawnStage::Group, last_errno());
        }
        if let Some(gid) = plan.gid
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) != 0
        {
            return (SpawnStage::Group, last_errno());
        }
        if let Some(uid) = plan.uid
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) != 0
        {
            return (SpawnStage::User, last_errno());
        }
        if !plan.directory.is_null() && libc::chdir(plan.directory) != 0 {
            return (SpawnStage::Directory, last_errno());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        report(
            plan.report,
            Record::Leading {
                leader: libc::getpid(),
            },
        );
    }
    if let Err(errno) = confine(plan) {
        return (SpawnStage::Confinement, errno);
    }
    (SpawnStage::Exec, exec_first(plan))
}

/// Takes from this process, and so from all that will descend from it, what its policy takes. The
/// last thing before exec: whatever runs from here on runs without.
fn confine(plan: &Plan) -> Result<(), c_int> {
    const SET_MODE_FILTER: libc::c_uint = 1;
    let done = |answer: c_long| {
        if answer == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    };
    for (resource, most) in &plan.limits {
        // SAFETY: the limit lives in the plan.
        done(unsafe { libc::setrlimit(*resource, most) }.into())?;
    }
    if !plan.confined {
        return Ok(());
    }
    // SAFETY: numbers only. Without new rights, no program gives back what is taken.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    if plan.ruleset != plan.null {
        // SAFETY: the descriptor is a rule set's and open.
        done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, plan.ruleset, 0) })?;
    }
    if let Some(filter) = &plan.filter {
        let filter: *const libc::sock_fprog = filter;
        // SAFETY: the filter points to as many instructions as it says, which live in the command.
        done(unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, filter) })?;
    }
    Ok(())
}

/// Tries each place where the program may lie, as `execvp` does; returns why none worked.
fn exec_first(plan: &mut Plan) -> c_int {
    let mut outcome = libc::ENOENT;
    let environment = plan.environment.as_ptr();
    for index in 0..plan.programs.len() {
        let Some(&program) = plan.programs.get(index) else {
            break;
        };
        // SAFETY: the strings and the null-terminated arrays live in the plan.
        unsafe { libc::execve(program, plan.arguments.as_ptr(), environment) };
        let mut errno = last_errno();
        if errno == libc::ENOEXEC {
            if let Some(script) = plan.script_arguments.get_mut(1) {
                *script = program;
            }
            let shell = c"/bin/sh".as_ptr();
            // SAFETY: as above.
            unsafe { libc::execve(shell, plan.script_arguments.as_ptr(), environment) };
            errno = last_errno();
        }
        match errno {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => outcome = libc::EACCES,
            _ => return errno,
        }
    }
    outcome
}

/// Reaps until there is nobody left, and tells the leader's fate on the way.
fn keep_reaping(leader: pid_t, report_pipe: c_int) -> ! {
    let mut leader_gone = false;
    let mut remain_told = false;
    loop {
        let look_only = leader_gone && !remain_told;
        let Some((pid, fate)) = next_exited(look_only) else {
            // Children live on. Said once, so that nobody has to look when there are none.
            report(report_pipe, Record::DescendantsRemain);
            remain_told = true;
            continue;
        };
        if pid == leader && !leader_gone {
            report(report_pipe, fate);
            leader_gone = true;
        }
        // SAFETY: a null status pointer is allowed; the child has exited, so this does not block.
        unsafe { libc::waitpid(pid, ptr::null_mut(), libc::__WALL) };
    }
}

/// The next exited child, not yet reaped; `None` if `look_only` and none has. Ends this process
/// when there is no child at all.
fn next_exited(look_only: bool) -> Option<(pid_t, Record)> {
    let block = if look_only { libc::WNOHANG } else { 0 };
    loop {
        // SAFETY: a zeroed siginfo is a valid value, and the pointer is live over the call.
        let (waited, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT | libc::__WALL | block;
            (libc::waitid(libc::P_ALL, 0, &raw mut info, flags), info)
        };
        if waited != 0 {
            if last_errno() == libc::EINTR {
                continue;
            }
            exit_now(0);
        }
        // SAFETY: waitid filled the child's fields, or left them zero.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if pid == 0 {
            return None;
        }
        let fate = if info.si_code == libc::CLD_EXITED {
            Record::Exited { code: status }
        } else {
            Record::Signalled { signal: status }
        };
        return Some((pid, fate));
    }
}

fn report(pipe: c_int, record: Record) {
    let bytes: [u8; RECORD_BYTES] = record.encode();
    // SAFETY: the buffer is live and as long as said. A record is shorter than PIPE_BUF, so it is
    // written whole or not at all; nobody listening is nobody to tell.
    unsafe { libc::write(pipe, bytes.as_ptr().cast(), RECORD_BYTES) };
}

fn last_errno() -> c_int {
    // SAFETY: the location is this thread's and always valid.
    unsafe { *libc::__errno_location() }
}

fn exit_now(code: c_int) -> ! {
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(code) }
}
