//! What the system tests stand on: the real daemon, started and ended by the test, and the
//! questions that only the host can answer.
//!
//! What it promises: a test that ends well has left nothing on the machine, because [`Daemon`]
//! looks when it goes; a test that ends badly has left nothing either, and shows the daemon's last
//! words. What it refuses: to guess where programs are, to end a process by its name, and to wait
//! for a time where there is something to wait for. Where the host has no event to wait on (a
//! process that must have ended), [`eventually`] asks again, within a limit.
//!
//! The tests know of the daemon what a client knows: its HTTP surface, its command line, its exit
//! codes and the ledger's format. One file of `tests/` is one claim.

mod api;
mod binaries;
mod census;
mod ctl;
mod daemon;
mod exec;
mod jobs;
mod ledger;
mod sse;
mod start;
mod state;
mod time_travel;
mod wait;

pub use api::Answer;
pub use api::Api;
pub use api::SESSIONS;
pub use binaries::Program;
pub use binaries::copy_programs;
pub use binaries::program;
pub use census::Census;
pub use census::fd_count;
pub use census::processes_of;
pub use census::processes_with;
pub use census::status_kib;
pub use ctl::Ctl;
pub use ctl::Ran;
pub use daemon::Daemon;
pub use daemon::Ended;
pub use daemon::SharedDaemon;
pub use daemon::shared;
pub use exec::Exec;
pub use jobs::JobOutput;
pub use ledger::digests;
pub use ledger::events_of;
pub use ledger::fold;
pub use ledger::open_offline;
pub use ledger::unsigned;
pub use ledger::verified;
pub use sse::EventStream;
pub use sse::Frame;
pub use start::Start;
pub use state::State;
pub use time_travel::ids;
pub use time_travel::is_tidy;
pub use time_travel::names;
pub use wait::PATIENCE;
pub use wait::eventually;
pub use wait::marker;

/// Whether this test runs as root. Says loudly what is not tested when it does not.
#[must_use]
pub fn is_root_or_says_so(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("skipped: needs root to {what}");
        eprintln!("skipped: needs root to {what}");
    }
    root
}
