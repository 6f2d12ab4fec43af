//! Bodies of the exec routes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

use crate::DiscoveryExtension;
use crate::Enforcement;
use crate::ExecId;
use crate::ExecPolicy;

/// The body of a start (and of the additive run route).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartRequest {
    /// The caller's idempotency key.
    pub exec_id: ExecId,
    /// The argument vector; with a shell, lines of one script.
    pub command: Vec<String>,
    /// Whether a shell runs the command, and which.
    #[serde(default, skip_serializing_if = "ShellChoice::is_none")]
    pub shell: ShellChoice,
    /// The working directory; absent inherits the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables over those of the launch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The user that the command runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<PrincipalRef>,
    /// The group that the command runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<PrincipalRef>,
    /// Seconds after which the command is stopped; absent is unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_sec: Option<f64>,
    /// Whether standard input is a pipe; otherwise it is the null device.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin: bool,
    /// Whether what is left of the process group is stopped when the leader exits.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reap_group_on_exit: bool,
    /// Whether the guest powers off after the group is gone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub poweroff_on_exit: bool,
    /// Whether the daemon's startup environment is the lowest layer of the child's.
    #[serde(default, skip_serializing_if = "is_false")]
    pub inherit_image_env: bool,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<StartExtension>,
}

impl StartRequest {
    /// A request with nothing but a name and an argument vector.
    pub fn new<I>(exec_id: ExecId, command: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self {
            exec_id,
            command: command.into_iter().map(Into::into).collect(),
            shell: ShellChoice::default(),
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            group: None,
            timeout_sec: None,
            stdin: false,
            reap_group_on_exit: false,
            poweroff_on_exit: false,
            inherit_image_env: false,
            x: None,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands a reference
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Whether a shell runs the command: `false`, `true` for `/bin/sh`, or a shell by name or path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ShellChoice {
    /// No shell, or `/bin/sh`.
    Flag(bool),
    /// A shell that the guest looks up.
    Named(String),
}

impl ShellChoice {
    fn is_none(&self) -> bool {
        matches!(self, Self::Flag(false))
    }
}

impl Default for ShellChoice {
    fn default() -> Self {
        Self::Flag(false)
    }
}

/// A user or a group, by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PrincipalRef {
    /// A uid or gid.
    Id(u32),
    /// A name, or digits.
    Name(String),
}

/// How far a timeout or a kill reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillScope {
    /// The process group, as the protocol says.
    #[default]
    Group,
    /// Every descendant of the exec, those in other sessions and groups included.
    Tree,
}

/// What this project adds to a start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StartExtension {
    /// Milliseconds between SIGTERM and SIGKILL, instead of the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill_grace_ms: Option<u64>,
    /// Milliseconds of reading after the leader's exit, instead of the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_linger_ms: Option<u64>,
    /// How far the timeout and the kill route reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<KillScope>,
    /// What the command may do; absent is all that its user may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confine: Option<Box<ExecPolicy>>,
    /// A terminal in the place of the three standard streams, and its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Bytes of output that are held until an acknowledgement names an offset after them, whether or
    /// not anybody reads. The command waits once that much is held, and polls show none of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_bytes: Option<u64>,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Characters in a line.
    pub cols: u16,
    /// Lines.
    pub rows: u16,
}

/// The answer to a terminal's resizing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeState {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Characters in a line.
    pub cols: u16,
    /// Lines.
    pub rows: u16,
}

/// Where an exec is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No result yet.
    Running,
    /// A result that waits for its acknowledgement.
    Exited,
    /// Acknowledged: the output is released and the entry will be collected.
    Acked,
}

/// The answer to a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedState {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Always running: a start says nothing about the result.
    pub phase: Phase,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<StartedExtension>,
}

/// What this project adds to the answer to a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedExtension {
    /// What of the start's policy is enforced; absent when it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<Enforcement>>,
}

/// The answer to a poll or an acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecState {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Where the exec is in its life.
    pub phase: Phase,
    /// The result, flattened; absent while running and in polls after the acknowledgement.
    #[serde(flatten)]
    pub outcome: Option<Outcome>,
}

/// How an exec ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The leader's exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended the leader.
    pub signal: Option<i32>,
    /// Standard output, invalid UTF-8 replaced. The stream has the exact bytes.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// Whether either capture hit its cap.
    pub truncated: bool,
    /// Whether some process still held an output pipe when reading stopped.
    pub writers_may_be_alive: bool,
    /// Whether the deadline fired, whatever the code or signal says.
    #[serde(default)]
    pub timed_out: bool,
}

/// The body of a write to an exec's standard input. The data is written first, then the signal is
/// given; either may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinRequest {
    /// The bytes, standard base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_b64: Option<String>,
    /// [`StdinRequest::EOF`], or nothing. Text, because a daemon judges it after the exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<StdinExtension>,
}

/// What this project adds to a write to standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinExtension {
    /// How many bytes were written before these. What of them the command took before is not written
    /// again, so that a write whose answer got lost can be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl StdinRequest {
    /// The signal that closes standard input.
    pub const EOF: &'static str = "eof";
}

/// The answer to a write to standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinState {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Decoded bytes that the command's pipe took, of a write with an offset those before it included.
    pub written: u64,
    /// Whether standard input was closed.
    pub eof: bool,
    /// What this project adds, to the answer to a write that has an extension too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<StdinStateExtension>,
}

/// What this project adds to the answer to a write to standard input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinStateExtension {
    /// Bytes that the command's pipe took of all writes together: the offset of the next one.
    #[serde(default)]
    pub taken: u64,
}

/// One exec in the account of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcGroup {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Its process group; absent while the command is being started.
    pub pgid: Option<u32>,
    /// Seconds since the epoch on the daemon's clock.
    pub started_at: u64,
    /// Whether its leader has exited.
    pub child_exited: bool,
    /// Whether the start asked for what is left of the group to be stopped.
    pub reap: bool,
    /// The live members of its process group.
    pub pids: Vec<u32>,
}

/// The account of processes: every registered exec, in the order of their starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Procs {
    /// One entry for each exec, in any phase.
    pub procs: Vec<ProcGroup>,
}

/// What the image configures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// The user of a start that names none: a name, digits, or the image's `uid:gid`.
    pub default_user: Option<String>,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<DiscoveryExtension>,
}

/// The answer to a kill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillState {
    /// The exec's name.
    pub exec_id: ExecId,
    /// Whether there was a live process to signal.
    pub killed: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(value: serde_json::Value) -> Result<StartRequest, serde_json::Error> {
        serde_json::from_value(value)
    }

    #[test]
    fn a_minimal_request_sends_only_what_every_daemon_knows() {
        let start = StartRequest::new(ExecId::new("e1").unwrap(), ["true"]);
        let sent = serde_json::to_value(&start).unwrap();
        assert_eq!(sent, json!({"exec_id": "e1", "command": ["true"]}));
        assert_eq!(request(sent).unwrap(), start);
    }

    #[test]
    fn unknown_keys_are_ignored_and_wrong_types_are_not() {
        assert!(request(json!({"exec_id": "e", "command": [], "later": 1})).is_ok());
        for wrong in [
            json!({"exec_id": "", "command": ["true"]}),
            json!({"exec_id": "e", "command": "true"}),
            json!({"exec_id": "e", "command": [1]}),
            json!({"command": ["true"]}),
            json!({"exec_id": "e", "command": ["true"], "env": {"A": 1}}),
            json!({"exec_id": "e", "command": ["true"], "user": -1}),
            json!({"exec_id": "e", "command": ["true"], "shell": 1}),
        ] {
            assert!(request(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_outcome_is_flattened_into_the_state() {
        let outcome = Outcome {
            exit_code: Some(0),
            signal: None,
            stdout: "hi".into(),
            stderr: String::new(),
            truncated: false,
            writers_may_be_alive: false,
            timed_out: false,
        };
        let exec_id = ExecId::new("e").unwrap();
        let state = ExecState {
            exec_id: exec_id.clone(),
            phase: Phase::Exited,
            outcome: Some(outcome),
        };
        let sent = serde_json::to_value(&state).unwrap();
        assert_eq!(sent["stdout"], "hi");
        assert_eq!(serde_json::from_value::<ExecState>(sent).unwrap(), state);
        let running = ExecState {
            exec_id,
            phase: Phase::Running,
            outcome: None,
        };
        let sent = serde_json::to_value(&running).unwrap();
        assert_eq!(sent, json!({"exec_id": "e", "phase": "running"}));
        assert_eq!(serde_json::from_value::<ExecState>(sent).unwrap(), running);
    }
}
