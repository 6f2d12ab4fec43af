//! Errors on the wire: a stable slug and prose.

use std::fmt;

use serde::Deserialize;
use serde::Serialize;

/// The stable names of what can go wrong on an exec route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slug {
    /// The request does not have the shape that the route asks for.
    MalformedRequest,
    /// No exec has this id.
    UnknownExec,
    /// The command could not be started; nothing was registered.
    SpawnFailed,
    /// The exec has no result yet.
    StillRunning,
    /// The exec's output was released before.
    AlreadyAcked,
    /// `user` names nobody.
    UnknownUser,
    /// `group` names no group.
    UnknownGroup,
    /// `shell` names no program.
    UnknownShell,
    /// This daemon cannot power the guest off.
    PoweroffUnavailable,
    /// The exec was started without a standard input.
    StdinNotRequested,
    /// The exec's standard input is closed.
    StdinClosed,
    /// The command did not take the bytes in time; the pipe stays open.
    StdinWriteTimeout,
    /// More bytes than one write may carry.
    StdinWriteTooLarge,
    /// The kernel refused the write.
    StdinWriteFailed,
    /// The write begins behind what the command took: bytes before it are missing.
    StdinGap,
    /// The start's policy cannot be enforced here, and it is not best effort.
    PolicyUnenforceable,
    /// The exec has no terminal.
    NoTerminal,
    /// The guest has a later identity, or another one of this generation.
    GenerationConflict,
    /// The daemon failed in a way that it did not foresee.
    InternalError,
}

impl Slug {
    /// The name as it is spelled on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MalformedRequest => "malformed_request",
            Self::UnknownExec => "unknown_exec",
            Self::SpawnFailed => "spawn_failed",
            Self::StillRunning => "still_running",
            Self::AlreadyAcked => "already_acked",
            Self::UnknownUser => "unknown_user",
            Self::UnknownGroup => "unknown_group",
            Self::UnknownShell => "unknown_shell",
            Self::PoweroffUnavailable => "poweroff_unavailable",
            Self::StdinNotRequested => "stdin_not_requested",
            Self::StdinClosed => "stdin_closed",
            Self::StdinWriteTimeout => "stdin_write_timeout",
            Self::StdinWriteTooLarge => "stdin_write_too_large",
            Self::StdinWriteFailed => "stdin_write_failed",
            Self::StdinGap => "stdin_gap",
            Self::PolicyUnenforceable => "policy_unenforceable",
            Self::NoTerminal => "no_terminal",
            Self::GenerationConflict => "generation_conflict",
            Self::InternalError => "internal_error",
        }
    }
}

impl fmt::Display for Slug {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The body of an error on an exec route. The slug is text, so that a reader knows how to read
/// the error of a newer daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// A [`Slug`], or the name that a newer daemon uses.
    pub error: String,
    /// Prose for people.
    #[serde(default)]
    pub detail: String,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<ErrorExtension>,
}

/// What this project adds to an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorExtension {
    /// Bytes of a write to standard input that the command took before the refusal: a caller that
    /// repeats the write goes on after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<u64>,
    /// Bytes that the command took of all writes together, where the write had an extension too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<u64>,
}
