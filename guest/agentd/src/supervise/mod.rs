//! Processes: how commands are started, how far they can be followed, and how they are stopped.

mod channel;
mod escalate;
mod family;
mod poweroff;
mod process_table;
mod reaper;
mod report;
mod spawn;
mod supervisor;
mod system;
mod terminal;

pub(crate) use channel::Channel;
pub(crate) use escalate::escalate;
pub(crate) use escalate::keep_awake;
pub(crate) use escalate::keep_awake_while_dying;
pub(crate) use escalate::keep_starting;
pub(crate) use escalate::signal_once;
pub(crate) use family::Family;
pub(crate) use poweroff::power_off_after;
pub(crate) use process_table::ProcessTable;
pub(crate) use reaper::Reaper;
pub(crate) use report::Report;
pub(crate) use spawn::Command;
pub(crate) use spawn::SpawnContext;
pub(crate) use spawn::Streams;
pub(crate) use spawn::spawn;
pub(crate) use system::adopt_descriptor;
pub(crate) use system::stir_randomness;
pub(crate) use system::waiting_bytes;
pub(crate) use terminal::resize;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// With a code.
    Exited { code: i32 },
    /// By a signal.
    Signalled { signal: i32 },
}
