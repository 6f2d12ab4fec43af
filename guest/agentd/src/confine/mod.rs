//! Taking rights from a command: from its policy to what the kernel is told between fork and exec.
//!
//! Everything is made before the fork: a Landlock rule set as an open descriptor, a call filter
//! as a finished program, limits as numbers. The child only hands them to the kernel, on itself and so
//! on everything that will ever descend from it. Nothing of it can be undone from inside.
//!
//! Where the kernel cannot do something that a policy asks for, the start is refused. A policy that
//! is best effort starts all the same, and the report names what is missing.
//!
//! What it does not promise: the dynamic loader is always allowed, because no program starts
//! without it, and it runs any file that can be read. An allow-list of programs keeps honest
//! programs honest; to keep a file from being run, it must not be readable.

mod filter;
mod limits;
mod rules;

use std::os::fd::OwnedFd;
use std::rc::Rc;

use agentd_protocol::Enforcement;
use agentd_protocol::ExecPolicy;
use agentd_protocol::Isolation;
use agentd_protocol::PortPolicy;
use agentd_protocol::Slug;
use seccompiler::BpfProgram;

pub(crate) use filter::available as seccomp_available;
pub(crate) use limits::Limit;
pub(crate) use rules::landlock_abi;

use crate::exec::Refusal;

/// The Landlock version from which on file rights are whole: before it a file could be emptied
/// without the right to write it.
const ABI_FILES: u32 = 3;
/// The version that knows TCP.
const ABI_TCP: u32 = 4;
/// The version that knows signals and abstract sockets.
const ABI_SCOPES: u32 = 6;

/// What a command is started with.
#[derive(Debug)]
pub(crate) struct Confinement {
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) filter: Option<Rc<BpfProgram>>,
    pub(crate) limits: Vec<Limit>,
    pub(crate) report: Enforcement,
}

/// What this kernel can do.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    landlock_abi: u32,
    seccomp: bool,
    /// Whether a limit of processes holds for a user.
    counts_processes: fn(u32) -> bool,
}

/// Makes ready what a policy asks for, for a command that runs as `uid`.
///
/// # Errors
///
/// `malformed_request` when the policy means nothing, `policy_unenforceable` when this kernel cannot
/// do what it asks for, `spawn_failed` when the kernel refuses all the same.
pub(crate) fn prepare(policy: &ExecPolicy, uid: u32) -> Result<Confinement, Refusal> {
    let kernel = Kernel {
        landlock_abi: landlock_abi(),
        seccomp: filter::available(),
        counts_processes: limits::counts_processes,
    };
    rules::check(policy)?;
    let report = judge(policy, kernel, uid)?;
    let mut confinement = Confinement {
        ruleset: None,
        filter: filter::program(policy, &report).map_err(|why| failed(&why))?,
        limits: limits::of(policy, &report, uid),
        report,
    };
    let report = &mut confinement.report;
    confinement.ruleset = rules::ruleset(policy, report).map_err(|why| failed(&why))?;
    Ok(confinement)
}

fn failed(why: &str) -> Refusal {
    Refusal::new(
        Slug::SpawnFailed,
        format!("the policy cannot be prepared: {why}"),
    )
}

/// Says what will be enforced; refuses when that is not all and all is asked for.
fn judge(policy: &ExecPolicy, kernel: Kernel, uid: u32) -> Result<Enforcement, Refusal> {
    let mut missing = Vec::new();
    let mut ask = |name: &str, asked: bool, possible: bool| {
        if asked && !possible {
            missing.push(name.to_owned());
        }
        asked && possible
    };
    let files = kernel.landlock_abi >= ABI_FILES;
    // Without the filter other kinds of sockets would reach what TCP may not.
    let tcp = kernel.landlock_abi >= ABI_TCP && kernel.seccomp;
    let scopes = kernel.landlock_abi >= ABI_SCOPES;
    let read = ask("read", policy.read.is_some(), files);
    let write = ask("write", policy.write.is_some(), files);
    let tcp_connect = ask("tcp_connect", policy.tcp_connect != PortPolicy::Any, tcp);
    let tcp_bind = ask("tcp_bind", policy.tcp_bind != PortPolicy::Any, tcp);
    let scoped = ask("scope_ipc", policy.scope_ipc, scopes);
    let seccomp = ask("seccomp", policy.seccomp.is_some(), kernel.seccomp);
    let unix = ask("allow_unix", !policy.allow_unix, kernel.seccomp);
    let counted = ask(
        "max_processes",
        policy.max_processes.is_some(),
        (kernel.counts_processes)(uid),
    );
    let report = Enforcement {
        landlock_abi: kernel.landlock_abi,
        filesystem: read || write,
        // Without the filter a program could be put into a file in memory.
        execute: ask("execute", policy.execute.is_some(), files && kernel.seccomp),
        tcp_connect,
        tcp_bind,
        scope_abstract_unix: scoped,
        scope_signal: scoped,
        seccomp,
        seccomp_sockets: seccomp || unix || tcp_connect || tcp_bind,
        limits: counted || policy.max_memory.is_some() || policy.cpu_seconds.is_some(),
        uid_dropped: uid != nix::unistd::geteuid().as_raw(),
        // A sandbox is where namespaces are made; a command gets none of its own.
        namespaces: ask("isolation", policy.isolation == Isolation::Strict, false),
        network_isolated: false,
        not_enforced: Vec::new(),
        absent: Vec::new(),
    };
    if !missing.is_empty() && !policy.best_effort {
        let detail = format!("this guest cannot enforce: {}", missing.join(", "));
        return Err(Refusal::new(Slug::PolicyUnenforceable, detail));
    }
    if policy.isolation == Isolation::Auto {
        missing.push("isolation".to_owned());
    }
    Ok(Enforcement {
        not_enforced: missing,
        ..report
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(landlock_abi: u32, seccomp: bool) -> Kernel {
        Kernel {
            landlock_abi,
            seccomp,
            counts_processes: |uid| uid != 0,
        }
    }

    #[test]
    fn what_a_kernel_cannot_do_refuses_a_strict_policy_and_is_named_for_the_other() {
        let everything = ExecPolicy {
            read: Some(vec!["/".into()]),
            execute: Some(vec!["ls".into()]),
            tcp_connect: PortPolicy::Deny,
            seccomp: Some(agentd_protocol::SeccompPolicy::Errno),
            max_processes: Some(1),
            ..ExecPolicy::default()
        };
        for (abi, seccomp, uid, missing) in [
            (6, true, 1, ""),
            (5, true, 1, "scope_ipc"),
            (3, true, 1, "tcp_connect, scope_ipc"),
            (2, true, 1, "read, tcp_connect, scope_ipc, execute"),
            (6, false, 1, "tcp_connect, seccomp, execute"),
            (6, true, 0, "max_processes"),
        ] {
            let strict = judge(&everything, kernel(abi, seccomp), uid);
            if missing.is_empty() {
                let report = strict.unwrap();
                assert!(report.filesystem && report.execute && report.tcp_connect);
                assert!(report.scope_signal && report.seccomp && report.limits);
                continue;
            }
            let refusal = strict.unwrap_err();
            assert_eq!(refusal.slug, Slug::PolicyUnenforceable);
            assert!(refusal.detail.ends_with(missing), "{}", refusal.detail);
            let lenient = ExecPolicy {
                best_effort: true,
                ..everything.clone()
            };
            let report = judge(&lenient, kernel(abi, seccomp), uid).unwrap();
            assert_eq!(report.not_enforced.join(", "), missing);
        }
    }
}
