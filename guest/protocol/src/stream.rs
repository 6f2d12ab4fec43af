//! Events of an exec's output stream.
//!
//! ```text
//! event: output
//! data: {"offset":0,"stream":"stdout","output":"aGk="}
//!
//! event: exit
//! data: {"exit_code":0,"signal":null,…,"offset":2}
//! ```

use serde::Deserialize;
use serde::Serialize;

use crate::Enforcement;

/// The names in an event's `event:` line.
pub mod event_names {
    /// Bytes of output.
    pub const OUTPUT: &str = "output";
    /// Bytes that are no longer retained.
    pub const GAP: &str = "gap";
    /// The end; always last.
    pub const EXIT: &str = "exit";
}

/// Which of the two streams bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// The name as it is spelled on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Bytes of output at their place in the exec's one offset space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputEvent {
    /// The offset of the first byte.
    pub offset: u64,
    /// Where the bytes came from.
    pub stream: OutputStream,
    /// The bytes, standard base64.
    pub output: String,
}

/// The bytes `from..to` were lost to this reader; the stream goes on at `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapEvent {
    /// The first lost offset.
    pub from: u64,
    /// The offset after the last lost one.
    pub to: u64,
}

/// The end of an exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitEvent {
    /// The leader's exit code, unless a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended the leader.
    pub signal: Option<i32>,
    /// Whether a captured stream (not this one) hit its cap.
    pub truncated: bool,
    /// Whether some process still held an output pipe when reading stopped.
    pub writers_may_be_alive: bool,
    /// Bytes of output in total.
    pub offset: u64,
    /// Whether the deadline fired.
    #[serde(default)]
    pub timed_out: bool,
    /// What this project adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<ExitExtension>,
}

/// What this project adds to an exit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitExtension {
    /// Processes of the exec that were alive when its result was published, the first of them.
    #[serde(default)]
    pub survivors: Vec<Survivor>,
    /// How many there were in all.
    #[serde(default)]
    pub survivors_total: u64,
    /// From the start to the leader's exit.
    #[serde(default)]
    pub duration_ms: u64,
    /// When the leader exited, in milliseconds since the epoch on the guest's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
    /// What of the start's policy was enforced; absent when it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Box<Enforcement>>,
}

/// A process that outlived the exec that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survivor {
    /// Its pid in the guest.
    pub pid: u32,
    /// Its command line, arguments joined by spaces, cut to a limit.
    pub command: String,
}
