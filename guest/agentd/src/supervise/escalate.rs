//! Stopping processes: SIGTERM, a grace, SIGKILL, and certainty at the end.
//!
//! The grace ends when nobody lives any more, which is read from `/proc`. Signals go out again
//! until the scan finds nobody: a process that forks while it is being killed has a child that the
//! first scan did not see.

use std::convert::Infallible;
use std::time::Duration;

use agentd_protocol::KillScope;
use libc::pid_t;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use tokio::time::Instant;

use super::Family;
use super::process_table::Process;

/// First pause between two scans.
const SCAN_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause between two scans.
const SCAN_PAUSE_MAX: Duration = Duration::from_millis(25);

/// Pause between two times that a supervisor is let go on.
const WAKE_PAUSE: Duration = Duration::from_millis(100);

/// How long SIGKILL is repeated. A process that stands it this long waits inside the kernel, and
/// nobody can do more.
const KILL_SETTLE: Duration = Duration::from_secs(10);

/// Stops the family's processes. `false` when there was nobody to signal.
pub(crate) async fn escalate(family: &Family, scope: KillScope, grace: Duration) -> bool {
    let live = family.live(scope);
    if live.is_empty() {
        // They may have ended under a supervisor that was stopped and has not told yet.
        family.wake_supervisor();
        return false;
    }
    signal_all(family, scope, &live, Signal::SIGTERM);
    let mut scans = Scans::until(Instant::now().checked_add(grace));
    while scans.pause().await {
        if family.live(scope).is_empty() {
            return true;
        }
    }
    let mut scans = Scans::until(Instant::now().checked_add(KILL_SETTLE));
    loop {
        let live = family.live(scope);
        if live.is_empty() {
            break;
        }
        signal_all(family, scope, &live, Signal::SIGKILL);
        if !scans.pause().await {
            tracing::warn!(leader = family.leader(), "processes outlived SIGKILL");
            break;
        }
    }
    family.wake_supervisor();
    true
}

/// Sends one signal to whoever lives now. `false` when there was nobody.
pub(crate) fn signal_once(family: &Family, scope: KillScope, signal: Signal) -> bool {
    let live = family.live(scope);
    signal_all(family, scope, &live, signal);
    // Whoever dies of it dies under a supervisor that has to run to tell.
    family.wake_supervisor();
    !live.is_empty()
}

/// Lets the supervisor go on for as long as a SIGKILL may take.
pub(crate) async fn keep_awake_while_dying(family: &Family) {
    let _ = tokio::time::timeout(KILL_SETTLE, keep_awake(family)).await;
}

/// Lets the supervisor go on again and again: whoever may stop it may do so again. Never resolves.
pub(crate) async fn keep_awake(family: &Family) -> Infallible {
    loop {
        tokio::time::sleep(WAKE_PAUSE).await;
        family.wake_supervisor();
    }
}

/// The same for a supervisor that has not told of its start yet: a program's first act may be to stop
/// it. Only for as long as its report is open.
pub(crate) async fn keep_starting(supervisor: pid_t) -> Infallible {
    loop {
        tokio::time::sleep(WAKE_PAUSE).await;
        let _ = kill(Pid::from_raw(supervisor), Signal::SIGCONT);
    }
}

fn signal_all(family: &Family, scope: KillScope, live: &[Process], signal: Signal) {
    if live.iter().any(|process| process.group == family.leader()) {
        // At once and together: no member can fork itself out of a signal to its group.
        let _ = killpg(Pid::from_raw(family.leader()), signal);
    }
    if scope == KillScope::Tree {
        for process in live
            .iter()
            .filter(|process| process.group != family.leader())
        {
            let _ = kill(Pid::from_raw(process.pid), signal);
        }
    }
}

/// Pauses that grow, up to a deadline.
struct Scans {
    deadline: Option<Instant>,
    pause: Duration,
}

impl Scans {
    /// `None` never ends.
    fn until(deadline: Option<Instant>) -> Self {
        Self {
            deadline,
            pause: SCAN_PAUSE_MIN,
        }
    }

    /// Waits before the next scan; `false` when time is up.
    async fn pause(&mut self) -> bool {
        let now = Instant::now();
        let left = self
            .deadline
            .map_or(Duration::MAX, |at| at.saturating_duration_since(now));
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(SCAN_PAUSE_MAX);
        true
    }
}
