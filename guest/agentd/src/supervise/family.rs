//! One exec's processes: its supervisor, its leader, and whoever descends from them.

use std::cell::Cell;

use agentd_protocol::ExitExtension;
use agentd_protocol::KillScope;
use agentd_protocol::Survivor;
use agentd_protocol::limits::SURVIVORS_LISTED_MAX;
use libc::pid_t;
use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::sync::Notify;

use super::Fate;
use super::Report;
use super::process_table::Process;
use super::process_table::ProcessTable;
use super::process_table::command_line;
use super::report::Record;

/// What is known of one exec's processes.
#[derive(Debug)]
pub(crate) struct Family {
    supervisor: pid_t,
    leader: pid_t,
    /// Whether agentd reaped the supervisor, so that its pid may name another process by now.
    supervisor_reaped: Cell<bool>,
    /// Whether the supervisor ended in the way that means that nobody is left.
    ended: Cell<bool>,
    /// The leader's fate, if agentd had to reap it itself.
    adopted_fate: Cell<Option<Fate>>,
    adopted: Notify,
}

impl Family {
    pub(crate) fn new(supervisor: pid_t, leader: pid_t) -> Self {
        Self {
            supervisor,
            leader,
            supervisor_reaped: Cell::new(false),
            ended: Cell::new(false),
            adopted_fate: Cell::new(None),
            adopted: Notify::new(),
        }
    }

    pub(crate) fn supervisor(&self) -> pid_t {
        self.supervisor
    }

    pub(crate) fn leader(&self) -> pid_t {
        self.leader
    }

    /// Whether nobody of the family is left, for certain.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Takes note that the supervisor ended because nobody is left.
    pub(crate) fn mark_ended(&self) {
        self.ended.set(true);
    }

    /// Takes note that agentd reaped one of the two.
    pub(super) fn note_reaped(&self, pid: pid_t, fate: Fate) {
        if pid == self.supervisor {
            self.supervisor_reaped.set(true);
            // A supervisor exits by itself only when it has no child left.
            self.ended.set(fate == Fate::Exited { code: 0 });
        } else if pid == self.leader {
            self.adopted_fate.set(Some(fate));
            self.adopted.notify_waiters();
        }
    }

    /// The leader's fate, from the supervisor's report; or, if the supervisor was killed before it
    /// told, from agentd's own reaping, since the leader is then agentd's child.
    ///
    /// Also says whether the supervisor told.
    pub(crate) async fn leader_fate(&self, report: &mut Report) -> (Fate, bool) {
        while let Some(record) = report.next().await {
            match record {
                Record::Exited { code } => return (Fate::Exited { code }, true),
                Record::Signalled { signal } => return (Fate::Signalled { signal }, true),
                Record::Leading { .. }
                | Record::Started
                | Record::SpawnFailed { .. }
                | Record::DescendantsRemain => {}
            }
        }
        loop {
            let adopted = self.adopted.notified();
            if let Some(fate) = self.adopted_fate.get() {
                return (fate, false);
            }
            adopted.await;
        }
    }

    /// The live processes that a kill of this scope means.
    pub(crate) fn live(&self, scope: KillScope) -> Vec<Process> {
        if self.ended.get() {
            return Vec::new();
        }
        let table = ProcessTable::read();
        let orphaned = self.supervisor_reaped.get();
        let mut members = if orphaned {
            // The supervisor was killed. The leader hangs under agentd now and can be followed
            // from its own pid, for as long as it has not been reaped; others only by the group.
            let mut members = table.group(self.leader);
            if self.adopted_fate.get().is_none() {
                members.extend(table.live(self.leader));
                members.extend(table.descendants(&[self.leader]));
            }
            members
        } else {
            table.descendants(&[self.supervisor])
        };
        if scope == KillScope::Group {
            members.retain(|process| process.group == self.leader);
        }
        members.sort_unstable_by_key(|process| process.pid);
        members.dedup_by_key(|process| process.pid);
        members
    }

    /// Lets a stopped supervisor go on. Root inside the sandbox can stop it, and it has to run to
    /// tell what happened.
    pub(super) fn wake_supervisor(&self) {
        if !self.supervisor_reaped.get() {
            let _ = kill(Pid::from_raw(self.supervisor), Signal::SIGCONT);
        }
    }

    /// Who is alive now, for the exit event.
    pub(crate) fn survivors(&self) -> ExitExtension {
        let live = self.live(KillScope::Tree);
        let listed = live
            .iter()
            .take(SURVIVORS_LISTED_MAX)
            .map(|process| Survivor {
                pid: process.pid.unsigned_abs(),
                command: command_line(process.pid),
            });
        ExitExtension {
            survivors: listed.collect(),
            survivors_total: u64::try_from(live.len()).unwrap_or(u64::MAX),
            duration_ms: 0,
            ended_unix_ms: None,
            enforcement: None,
        }
    }
}
