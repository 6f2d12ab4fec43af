//! What binds us to a job that we follow: what becomes of it when we are interrupted, and of us when nobody
//! reads what we print.
//!
//! A command that `exec --stream` runs is as if it ran here. An interrupt is passed on to it, and when nobody
//! reads its output any more, it is ended. A second interrupt leaves it running, and says so. Where a job is
//! only looked at, we simply end.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread;

use nix::poll::PollFd;
use nix::poll::PollFlags;
use nix::poll::PollTimeout;
use nix::poll::poll;
use nix::sys::signal::SigSet;
use nix::sys::signal::Signal;

use super::Context;
use super::jobs;
use crate::client::Client;
use crate::client::with_query;
use crate::output::note;

/// Signals that are passed on.
const PASSED_ON: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The tie between this process and the command that it runs.
#[derive(Clone)]
pub(super) struct Bond(Arc<Tie>);

struct Tie {
    /// Ours to end; otherwise it is only looked at.
    own: bool,
    session: String,
    job: OnceLock<String>,
}

impl Bond {
    /// To a job that is only looked at.
    pub(super) fn of_onlooker(session: &str) -> Self {
        Self::new(session, false)
    }

    /// To a command of our own, whose job is not known yet.
    pub(super) fn of_owner(session: &str) -> Self {
        Self::new(session, true)
    }

    fn new(session: &str, own: bool) -> Self {
        Self(Arc::new(Tie {
            own,
            session: session.to_owned(),
            job: OnceLock::new(),
        }))
    }

    /// The job is known.
    pub(super) fn names(&self, job: &str) {
        self.0.job.get_or_init(|| job.to_owned());
    }

    /// Watches for signals and for the end of whoever reads our output. Before any other thread begins.
    pub(super) fn watch(&self, context: &Context) {
        if let (true, Ok(client)) = (self.0.own, context.client()) {
            let signals = passed_on();
            // Threads that begin later leave them to the one that waits for them.
            if signals.thread_block().is_ok() {
                let tie = Arc::clone(&self.0);
                thread::spawn(move || tie.pass_on(&signals, &client));
            }
        }
        if let Ok(client) = context.client() {
            let bond = self.clone();
            thread::spawn(move || {
                if reader_went_away() {
                    bond.unread(&client);
                }
            });
        }
    }

    /// Nobody reads our output any more: ends us, and the command if it is our own.
    pub(super) fn unread(&self, client: &Client) -> ! {
        if let (true, Some(job)) = (self.0.own, self.0.job.get()) {
            // It may have ended, which is as well.
            let _ = self.0.signal(client, job, "TERM");
        }
        leave(0)
    }
}

impl Tie {
    fn pass_on(&self, signals: &SigSet, client: &Client) {
        let mut passed = false;
        while let Ok(signal) = signals.wait() {
            let name = signal.as_str().trim_start_matches("SIG");
            let job = self.job.get();
            let sent = job
                .filter(|_| !passed)
                .map(|job| self.signal(client, job, name));
            match sent {
                Some(Ok(())) if signal != Signal::SIGHUP => {
                    passed = true;
                    note(&format!(
                        "fluxctl: passed {signal} on to the command; once more leaves it running"
                    ));
                }
                Some(Ok(())) => leave(code_of(signal)),
                _ => {
                    self.say_that_it_runs_on();
                    leave(code_of(signal));
                }
            }
        }
    }

    fn signal(&self, client: &Client, job: &str, name: &str) -> Result<(), crate::error::CliError> {
        let path = format!("{}/{job}", jobs::path(&self.session));
        let path = with_query(&path, &[("signal", Some(name.to_owned()))]);
        client.delete_answered(&path).map(drop)
    }

    fn say_that_it_runs_on(&self) {
        let session = &self.session;
        note(&match self.job.get() {
            Some(job) => format!(
                "fluxctl: the command runs on:\n  fluxctl agent logs {session} {job} -f\n  \
                 fluxctl agent kill {session} {job}"
            ),
            None => format!(
                "fluxctl: the command may run all the same; `fluxctl agent jobs {session}` says so"
            ),
        });
    }
}

fn code_of(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}

/// Those of the signals that this process is not told to ignore, as `nohup` and a shell's `&` do. To wait for
/// one would undo that.
fn passed_on() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_in(&status);
    let mut signals = SigSet::empty();
    for signal in PASSED_ON {
        if ignored >> (signal as i32 - 1) & 1 == 0 {
            signals.add(signal);
        }
    }
    signals
}

fn ignored_in(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Waits until whoever reads our standard output goes away. A file never does.
fn reader_went_away() -> bool {
    let stdout = io::stdout();
    loop {
        let mut watched = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
        match poll(&mut watched, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
            Ok(_) => {
                let [watched] = watched;
                let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
                return watched.revents().is_some_and(|seen| seen.intersects(gone));
            }
        }
    }
}

/// Ends this process from a thread beside the one that waits for the daemon.
#[expect(
    clippy::exit,
    reason = "the thread that would return waits in a read that nothing interrupts"
)]
fn leave(code: u8) -> ! {
    std::process::exit(code.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_ignored_is_not_waited_for() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000003\n";
        assert_eq!(ignored_in(status), 3, "hang-up and interrupt");
        assert_eq!(ignored_in(""), 0);
        assert_eq!(code_of(Signal::SIGINT), 130);
    }
}
