//! Which calls a command may make, as programs that the kernel runs at each.
#![allow(unsafe_code)] // asking whether there are filters exists only as a raw call

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;

use agentd_protocol::Enforcement;
use agentd_protocol::ExecPolicy;
use agentd_protocol::SeccompPolicy;
use libc::c_int;
use libc::c_long;
use seccompiler::BpfProgram;
use seccompiler::SeccompAction;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp;
use seccompiler::SeccompCmpOp::Eq;
use seccompiler::SeccompCmpOp::MaskedEq;
use seccompiler::SeccompCmpOp::Ne;
use seccompiler::SeccompCondition;
use seccompiler::SeccompFilter;
use seccompiler::SeccompRule;
use seccompiler::TargetArch;
use seccompiler::sock_filter;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls that administer a machine, look into other processes, or reach parts of the kernel that
/// no command needs.
const ADMINISTRATION: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
const ADMINISTRATION_HERE: &[c_long] = &[libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const ADMINISTRATION_HERE: &[c_long] = &[];

/// Calls whose effect a filter cannot see: their work is described in memory. Programs take them
/// for missing and use the older ones.
const UNSEEN: [c_long; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// What makes a namespace, in the arguments of `clone` and `unshare`.
const NAMESPACES: [c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];
/// The same, of `unshare` alone: a clock of its own.
const NEWTIME: c_int = 0x80;

/// Where a socket's kind is in the argument that also carries flags.
const SOCKET_KIND: u64 = 0xf;
/// Kinds of Internet sockets beside streams: datagrams, raw ones, and their relatives.
const NO_STREAMS: [u64; 5] = [2, 3, 4, 5, 6];

/// Whether the kernel takes filters.
pub(crate) fn available() -> bool {
    const ACTION_AVAILABLE: libc::c_uint = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads one number from a live place.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, ACTION_AVAILABLE, 0, &raw const action) };
    answer == 0
}

/// What programs depend on, and nothing else of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    seccomp: Option<SeccompPolicy>,
    administration: bool,
    sockets: bool,
    tcp: bool,
    namespaces: bool,
    unix: bool,
    udp: bool,
    programs: bool,
}

impl Kind {
    fn of(policy: &ExecPolicy, report: &Enforcement) -> Self {
        Self {
            seccomp: policy.seccomp,
            administration: report.seccomp,
            sockets: report.seccomp_sockets,
            tcp: report.tcp_connect || report.tcp_bind,
            namespaces: policy.allow_namespaces,
            unix: policy.allow_unix,
            udp: policy.allow_udp,
            programs: report.execute,
        }
    }

    fn action(self) -> SeccompAction {
        match self.seccomp {
            Some(SeccompPolicy::Kill) => SeccompAction::KillProcess,
            Some(SeccompPolicy::Errno) | None => SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        }
    }
}

/// Programs that are kept, so that a policy that comes again, as an agent's does with every command,
/// is not translated again. A few kilobytes each.
const KEPT_MAX: usize = 8;

thread_local! {
    static KEPT: RefCell<VecDeque<(Kind, Rc<BpfProgram>)>> = const { RefCell::new(VecDeque::new()) };
}

/// The program of what the report promises; `None` when there is nothing to hold back. There is one
/// at most: the kernel runs all programs of a process at every call that it makes.
pub(super) fn program(
    policy: &ExecPolicy,
    report: &Enforcement,
) -> Result<Option<Rc<BpfProgram>>, String> {
    let kind = Kind::of(policy, report);
    if !kind.administration && !kind.sockets && !kind.programs {
        return Ok(None);
    }
    let known = |kept: &RefCell<VecDeque<(Kind, Rc<BpfProgram>)>>| {
        let kept = kept.borrow();
        kept.iter()
            .find(|(known, _)| *known == kind)
            .map(|(_, program)| Rc::clone(program))
    };
    if let Some(program) = KEPT.with(known) {
        return Ok(Some(program));
    }
    let program = Rc::new(translated(kind).map_err(|error| error.to_string())?);
    KEPT.with_borrow_mut(|kept| {
        kept.truncate(KEPT_MAX - 1);
        kept.push_front((kind, Rc::clone(&program)));
    });
    Ok(Some(program))
}

fn translated(kind: Kind) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules = Rules::new();
    if kind.sockets {
        rules.extend(sockets(kind)?);
    }
    if kind.administration {
        rules.extend(administration(kind)?);
    }
    if kind.programs {
        rules.insert(libc::SYS_memfd_create, vec![executable_memory()?]);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, kind.action(), arch)?;
    let mut program = missing(kind);
    program.extend(BpfProgram::try_from(filter)?);
    Ok(program)
}

/// The beginning of a program: calls that a command takes for missing.
///
/// On this machine those of the x32 interface are among them, the same calls under other numbers,
/// which no list of ours names. Their processes are of this machine's kind, so that nothing else
/// tells them apart.
fn missing(kind: Kind) -> BpfProgram {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const X32_FIRST: u32 = 0x4000_0000;
    let instruction = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let absent = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    // The call's number is the first word.
    let mut program = vec![instruction(LOAD_WORD, 0, 0)];
    let mut refuse = |condition, number| {
        program.push(instruction(condition, 1, number));
        program.push(instruction(RETURN, 0, absent));
    };
    if cfg!(target_arch = "x86_64") {
        refuse(JUMP_IF_AT_LEAST, X32_FIRST);
    }
    let unseen = UNSEEN.into_iter().filter(|_| kind.administration);
    let hidden = kind.administration && !kind.namespaces;
    for call in unseen.chain(hidden.then_some(libc::SYS_clone3)) {
        if let Ok(number) = u32::try_from(call) {
            refuse(JUMP_IF_EQUAL, number);
        }
    }
    program
}

type Condition = (u8, SeccompCmpOp, u64);

fn rule<const N: usize>(
    conditions: [Condition; N],
) -> Result<SeccompRule, seccompiler::BackendError> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, operator, value)| SeccompCondition::new(argument, Dword, operator, value));
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

fn administration(kind: Kind) -> Result<Rules, seccompiler::BackendError> {
    let calls = ADMINISTRATION.iter().chain(ADMINISTRATION_HERE);
    // A call without a rule is meant whatever its arguments are.
    let mut rules: Rules = calls.map(|call| (*call, vec![])).collect();
    // Typing into somebody's terminal.
    let typing = [libc::TIOCSTI, libc::TIOCLINUX];
    let typing = typing.map(|request| rule([(1, Eq, request)]));
    let typing: Result<Vec<_>, _> = typing.into_iter().collect();
    rules.insert(libc::SYS_ioctl, typing?);
    if !kind.namespaces {
        rules.insert(libc::SYS_setns, vec![]);
        let flag = |flag: c_int| {
            let flag = u64::from(flag.unsigned_abs());
            rule([(0, MaskedEq(flag), flag)])
        };
        let made: Result<Vec<_>, _> = NAMESPACES.into_iter().map(flag).collect();
        let mut unshared: Vec<_> = made?;
        rules.insert(libc::SYS_clone, unshared.clone());
        unshared.push(flag(NEWTIME)?);
        rules.insert(libc::SYS_unshare, unshared);
    }
    Ok(rules)
}

/// Files in memory lie in no folder, so that rules about folders do not hold them back from being
/// executed. Those that can never be are left.
fn executable_memory() -> Result<SeccompRule, seccompiler::BackendError> {
    let never = u64::from(libc::MFD_NOEXEC_SEAL);
    rule([(1, MaskedEq(never), 0)])
}

fn sockets(kind: Kind) -> Result<Rules, seccompiler::BackendError> {
    let family = |family: c_int| u64::from(family.unsigned_abs());
    let (unix, netlink) = (family(libc::AF_UNIX), family(libc::AF_NETLINK));
    let (four, six) = (family(libc::AF_INET), family(libc::AF_INET6));
    // Families that reach past every other rule, the host's own among them.
    let last_known = if kind.unix { unix } else { netlink };
    let known = [four, six, netlink, last_known];
    let mut denied = vec![rule(known.map(|family| (0, Ne, family)))?];
    let mut rules = Rules::new();
    if kind.tcp {
        for internet in [four, six] {
            if !kind.udp {
                for kind in NO_STREAMS {
                    denied.push(rule([(0, Eq, internet), (1, MaskedEq(SOCKET_KIND), kind)])?);
                }
            }
            // A stream of another protocol than TCP is not held back by what holds back TCP.
            let tcp = u64::from(libc::IPPROTO_TCP.unsigned_abs());
            let stream = (1, MaskedEq(SOCKET_KIND), 1);
            denied.push(rule([(0, Eq, internet), stream, (2, Ne, 0), (2, Ne, tcp)])?);
        }
        // A first write that connects on the way.
        let fast = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
        for (call, flags) in [
            (libc::SYS_sendto, 3),
            (libc::SYS_sendmsg, 2),
            (libc::SYS_sendmmsg, 3),
        ] {
            rules.insert(call, vec![rule([(flags, MaskedEq(fast), fast)])?]);
        }
    }
    rules.insert(libc::SYS_socket, denied);
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use agentd_protocol::PortPolicy;

    use super::*;

    #[test]
    fn every_policy_has_one_program_that_the_kernel_can_take() {
        let report = Enforcement {
            seccomp: true,
            seccomp_sockets: true,
            tcp_connect: true,
            ..Enforcement::default()
        };
        for seccomp in [None, Some(SeccompPolicy::Errno), Some(SeccompPolicy::Kill)] {
            for (allow_namespaces, allow_unix) in [(true, true), (false, false)] {
                let policy = ExecPolicy {
                    tcp_connect: PortPolicy::Deny,
                    seccomp,
                    allow_namespaces,
                    allow_unix,
                    ..ExecPolicy::default()
                };
                let made = program(&policy, &report).unwrap().unwrap();
                // The kernel's own limit of instructions.
                assert!(made.len() < 4096, "{}", made.len());
                // The same is not made twice, and nobody gets another's.
                let again = program(&policy, &report).unwrap().unwrap();
                assert!(Rc::ptr_eq(&made, &again));
                assert_eq!(*made, translated(Kind::of(&policy, &report)).unwrap());
            }
        }
        let nothing = program(&ExecPolicy::default(), &Enforcement::default());
        assert_eq!(nothing.unwrap(), None);
        KEPT.with_borrow(|kept| assert!(kept.len() <= KEPT_MAX));
    }
}
