//! What a command may do beyond what its user may not: the policy of an exec, and the report of
//! what of it is really enforced.
//!
//! A policy only ever takes rights away, from the command and from everything that it starts, for
//! good. It is strict: what cannot be enforced here refuses the start, unless the policy says
//! `best_effort`. A key that the daemon does not know is refused too: it may be a restriction.

use serde::Deserialize;
use serde::Serialize;

/// Which TCP ports a command may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortPolicy {
    /// All of them.
    #[default]
    Any,
    /// None.
    Deny,
    /// These.
    Ports(Vec<u16>),
}

impl PortPolicy {
    fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

/// What a call that is not allowed comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeccompPolicy {
    /// The call fails with `EPERM`.
    Errno,
    /// The process ends.
    Kill,
}

/// Whether a command gets namespaces of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// No.
    #[default]
    Off,
    /// Where possible.
    Auto,
    /// Yes, or it does not run.
    Strict,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunAs {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// What a command may do. Everything that is left out is not restricted, but for signals and
/// abstract sockets, which stay among its own processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecPolicy {
    /// Trees and files that may be read and executed. With this or `write`, nothing else may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Vec<String>>,
    /// Trees and files in which everything is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<Vec<String>>,
    /// Programs that may be executed, by absolute path or by bare name; beside them the shell,
    /// `true` and the dynamic loader always may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execute: Option<Vec<String>>,
    /// Ports that may be connected to.
    #[serde(default, skip_serializing_if = "PortPolicy::is_any")]
    pub tcp_connect: PortPolicy,
    /// Ports that may be bound.
    #[serde(default, skip_serializing_if = "PortPolicy::is_any")]
    pub tcp_bind: PortPolicy,
    /// Whether signals and abstract sockets of processes outside are out of reach.
    #[serde(default = "yes")]
    pub scope_ipc: bool,
    /// Whether calls that administer a machine are filtered, and what they come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<SeccompPolicy>,
    /// Whether the filter lets namespaces be made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_namespaces: bool,
    /// Whether the filter lets Unix sockets be made.
    #[serde(default = "yes")]
    pub allow_unix: bool,
    /// Whether the filter lets Internet sockets other than TCP be made where TCP is restricted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_udp: bool,
    /// Bytes of address space of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<u64>,
    /// Processes and threads beyond those that the command's user runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<u64>,
    /// Seconds of processor time of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    /// Seconds after which the command is stopped; the shorter of this and the start's counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u64>,
    /// Whether the command's variables are those of the policy and of the start, and no others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub clean_env: bool,
    /// Variables, over all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// The working directory of a start that names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether what cannot be enforced is reported instead of refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best_effort: bool,
    /// Bytes of each output stream that a poll returns, if fewer than the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
    /// Who the command runs as, over the start's own `user` and `group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// Namespaces of its own.
    #[serde(default)]
    pub isolation: Isolation,
}

fn yes() -> bool {
    true
}

impl Default for ExecPolicy {
    fn default() -> Self {
        Self {
            read: None,
            write: None,
            execute: None,
            tcp_connect: PortPolicy::Any,
            tcp_bind: PortPolicy::Any,
            scope_ipc: true,
            seccomp: None,
            allow_namespaces: false,
            allow_unix: true,
            allow_udp: false,
            max_memory: None,
            max_processes: None,
            cpu_seconds: None,
            timeout_secs: None,
            clean_env: false,
            env: Vec::new(),
            cwd: None,
            best_effort: false,
            max_output_bytes: None,
            run_as: None,
            isolation: Isolation::Off,
        }
    }
}

/// What of a policy is enforced. A restriction that was not asked for is `false`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforcement {
    /// The kernel's Landlock version; 0 is none.
    pub landlock_abi: u32,
    /// Files: reading, writing.
    pub filesystem: bool,
    /// Programs: which may be executed.
    pub execute: bool,
    /// Ports to connect to.
    pub tcp_connect: bool,
    /// Ports to bind.
    pub tcp_bind: bool,
    /// Abstract sockets of processes outside.
    pub scope_abstract_unix: bool,
    /// Signals to processes outside.
    pub scope_signal: bool,
    /// Calls that administer a machine.
    pub seccomp: bool,
    /// Kinds of sockets.
    pub seccomp_sockets: bool,
    /// Memory, processes and processor time, as far as they were asked for.
    pub limits: bool,
    /// Whether the command runs as another user than the daemon.
    pub uid_dropped: bool,
    /// Namespaces of its own.
    pub namespaces: bool,
    /// A network of its own.
    pub network_isolated: bool,
    /// What was asked for and is not enforced, by the policy's names. Empty unless `best_effort`.
    pub not_enforced: Vec<String>,
    /// Paths and programs that are not there: what is made in their place later is not allowed.
    pub absent: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_empty_policy_restricts_nothing_but_what_reaches_other_processes() {
        let policy: ExecPolicy = serde_json::from_value(json!({})).unwrap();
        assert_eq!(policy, ExecPolicy::default());
        assert!(policy.scope_ipc && policy.allow_unix && !policy.best_effort);
    }

    #[test]
    fn ports_are_any_none_or_a_list() {
        let read = |value| serde_json::from_value::<PortPolicy>(value);
        assert_eq!(read(json!("any")).unwrap(), PortPolicy::Any);
        assert_eq!(read(json!("deny")).unwrap(), PortPolicy::Deny);
        let ports = PortPolicy::Ports(vec![80, 443]);
        assert_eq!(read(json!({"ports": [80, 443]})).unwrap(), ports);
        for wrong in [json!("some"), json!({"ports": [65536]}), json!([80])] {
            assert!(read(wrong).is_err());
        }
    }

    #[test]
    fn what_is_not_known_may_be_a_restriction_and_is_refused() {
        for unknown in [
            json!({"later": true}),
            json!({"run_as": {"uid": 1, "gid": 1, "groups": []}}),
            json!({"seccomp": "log"}),
            json!({"isolation": "some"}),
        ] {
            assert!(serde_json::from_value::<ExecPolicy>(unknown).is_err());
        }
    }
}
