//! Execs: what they are, how they start, run, are followed and end.

mod drive;
mod follow;
#[cfg(test)]
mod model;
mod output;
mod plan;
mod principals;
mod pump;
mod registry;
mod ring;
mod stdin;

use std::cell::Cell;
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use agentd_protocol::Enforcement;
use agentd_protocol::ErrorExtension;
use agentd_protocol::ExecId;
use agentd_protocol::ExecState;
use agentd_protocol::KillScope;
use agentd_protocol::Outcome;
use agentd_protocol::Phase;
use agentd_protocol::ProcGroup;
use agentd_protocol::Slug;
use agentd_protocol::StdinRequest;
use agentd_protocol::TerminalSize;
use nix::sys::signal::Signal;
use tokio::sync::Notify;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use drive::Drivers;
pub(crate) use follow::Follow;
pub(crate) use output::Output;
pub(crate) use plan::ImageEnvironment;
pub(crate) use plan::check_shape;
pub(crate) use principals::default_owner;
pub(crate) use registry::Registry;
pub(crate) use stdin::Taken;

use self::stdin::Stdin;
use crate::supervise::Channel;
use crate::supervise::Family;
use crate::supervise::ProcessTable;
use crate::supervise::escalate;
use crate::supervise::keep_awake_while_dying;
use crate::supervise::resize;
use crate::supervise::signal_once;

/// A request on an exec was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{slug}: {detail}")]
pub(crate) struct Refusal {
    pub(crate) slug: Slug,
    pub(crate) detail: String,
    pub(crate) x: Option<ErrorExtension>,
}

impl Refusal {
    pub(crate) fn new(slug: Slug, detail: impl Into<String>) -> Self {
        Self {
            slug,
            detail: detail.into(),
            x: None,
        }
    }

    fn with(mut self, x: ErrorExtension) -> Self {
        self.x = Some(x);
        self
    }
}

/// What an acknowledgement answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckAnswer {
    /// The result, for the last time.
    Outcome,
    /// The phase alone.
    Phase,
}

/// How far a start has come. Everybody who asks for the same id waits for the same start.
#[derive(Clone, Debug)]
enum Start {
    Pending,
    Running(Rc<Family>),
    Refused(Refusal),
}

/// How an exec is stopped and read out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    timeout: Option<Duration>,
    kill_grace: Duration,
    output_linger: Duration,
    scope: KillScope,
    reap_group_on_exit: bool,
    poweroff_on_exit: bool,
    stdin: bool,
}

/// One exec, from its start to its collection.
#[derive(Debug)]
pub(crate) struct Exec {
    id: ExecId,
    /// Its place in the order of starts.
    number: u64,
    started_at: u64,
    terms: Terms,
    /// What of its policy is enforced, if it has one.
    enforcement: Option<Box<Enforcement>>,
    stdin: Stdin,
    /// The terminal's outer side, while the command runs on one.
    terminal: RefCell<Option<Rc<Channel>>>,
    /// Whether the leader has exited; stays so whatever becomes of the result.
    leader_exited: Cell<bool>,
    start: watch::Sender<Start>,
    pub(crate) output: RefCell<Output>,
    /// Told when a reader has taken bytes or left.
    room_made: Notify,
    /// When the exec was acknowledged; the result is gone from then on.
    acked_at: Cell<Option<Instant>>,
    /// The stop that is under way, for all who ask for one meanwhile.
    stopping: RefCell<Option<watch::Receiver<Option<bool>>>>,
}

impl Exec {
    fn new(id: ExecId, number: u64, terms: Terms, output: Output) -> Self {
        Self {
            id,
            number,
            started_at: seconds_since_epoch(),
            terms,
            enforcement: None,
            stdin: Stdin::new(terms.stdin),
            terminal: RefCell::default(),
            leader_exited: Cell::new(false),
            start: watch::Sender::new(Start::Pending),
            output: RefCell::new(output),
            room_made: Notify::new(),
            acked_at: Cell::new(None),
            stopping: RefCell::default(),
        }
    }

    /// The name that the caller gave it.
    pub(crate) fn id(&self) -> &ExecId {
        &self.id
    }

    /// What of its policy is enforced.
    pub(crate) fn enforcement(&self) -> Option<Box<Enforcement>> {
        self.enforcement.clone()
    }

    /// Waits until the command runs, or is known not to.
    pub(crate) async fn started(&self) -> Result<Rc<Family>, Refusal> {
        let mut start = self.start.subscribe();
        let settled = start
            .wait_for(|start| !matches!(start, Start::Pending))
            .await;
        match settled.as_deref() {
            Ok(Start::Running(family)) => Ok(Rc::clone(family)),
            Ok(Start::Refused(refusal)) => Err(refusal.clone()),
            Ok(Start::Pending) | Err(_) => {
                Err(Refusal::new(Slug::InternalError, "the start was given up"))
            }
        }
    }

    /// Writes to the command's standard input.
    pub(crate) async fn write_stdin(
        &self,
        request: &StdinRequest,
        bytes_max: u64,
    ) -> Result<Taken, Refusal> {
        self.stdin.take(request, bytes_max).await
    }

    /// Gives the command's terminal another size.
    pub(crate) fn resize(&self, size: TerminalSize) -> Result<(), Refusal> {
        let terminal = self.terminal.borrow();
        let terminal = terminal.as_ref().ok_or_else(|| {
            Refusal::new(
                Slug::NoTerminal,
                "the exec has no terminal, or none any more",
            )
        })?;
        resize(terminal.as_fd(), size).map_err(|error| {
            let detail = format!("the terminal cannot be resized: {error}");
            Refusal::new(Slug::InternalError, detail)
        })
    }

    /// The exec in the account of processes.
    fn proc_group(&self, table: &ProcessTable) -> ProcGroup {
        let group = match &*self.start.borrow() {
            Start::Running(family) => Some(family.leader()),
            Start::Pending | Start::Refused(_) => None,
        };
        let members = group.map_or(vec![], |group| table.group(group));
        ProcGroup {
            exec_id: self.id.clone(),
            pgid: group.map(i32::unsigned_abs),
            started_at: self.started_at,
            child_exited: self.leader_exited.get(),
            reap: self.terms.reap_group_on_exit,
            pids: members
                .iter()
                .map(|process| process.pid.unsigned_abs())
                .collect(),
        }
    }

    fn phase(&self) -> Phase {
        let has_result = self.output.borrow().exit().is_some();
        phase(has_result, self.acked_at.get().is_some())
    }

    /// The answer to a poll.
    pub(crate) fn state(&self) -> ExecState {
        let phase = self.phase();
        let outcome = if phase == Phase::Exited {
            self.outcome()
        } else {
            None
        };
        ExecState {
            exec_id: self.id.clone(),
            phase,
            outcome,
        }
    }

    /// Releases the result, for good.
    pub(crate) fn acknowledge(&self, answer: AckAnswer) -> Result<ExecState, Refusal> {
        may_acknowledge(self.phase())?;
        let wanted = answer == AckAnswer::Outcome;
        let outcome = if wanted { self.outcome() } else { None };
        self.acked_at.set(Some(Instant::now()));
        self.output.borrow_mut().release_captures();
        Ok(ExecState {
            exec_id: self.id.clone(),
            phase: Phase::Acked,
            outcome,
        })
    }

    /// Lets go of held output before `offset`, and answers with the phase alone.
    pub(crate) fn acknowledge_to(&self, offset: u64) -> Result<ExecState, Refusal> {
        if !self.output.borrow_mut().acknowledge_to(offset) {
            let detail = "the exec does not hold its output";
            return Err(Refusal::new(Slug::MalformedRequest, detail));
        }
        self.room_made.notify_one();
        Ok(ExecState {
            exec_id: self.id.clone(),
            phase: self.phase(),
            outcome: None,
        })
    }

    /// Sends one signal as far as the start asked for. `false` when there was nobody.
    pub(crate) async fn signal(&self, signal: Signal) -> bool {
        match self.started().await {
            Ok(family) => {
                let signalled = signal_once(&family, self.terms.scope, signal);
                if signal == Signal::SIGKILL {
                    tokio::task::spawn_local(async move { keep_awake_while_dying(&family).await });
                }
                signalled
            }
            Err(_) => false,
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        let output = self.output.borrow();
        let exit = output.exit()?;
        let [stdout, stderr] = output.captured_text();
        Some(Outcome {
            exit_code: exit.exit_code,
            signal: exit.signal,
            stdout,
            stderr,
            truncated: exit.truncated,
            writers_may_be_alive: exit.writers_may_be_alive,
            timed_out: exit.timed_out,
        })
    }

    /// Stops the exec's processes and returns whether there were any. Goes on when the caller goes
    /// away; a second caller waits for the stop that is under way.
    pub(crate) async fn stop(self: &Rc<Self>, scope: KillScope) -> bool {
        let Ok(family) = self.started().await else {
            return false;
        };
        let under_way = self.stopping.borrow().clone();
        let mut stopped = under_way.unwrap_or_else(|| {
            let (told, stopped) = watch::channel(None);
            *self.stopping.borrow_mut() = Some(stopped.clone());
            let exec = Rc::clone(self);
            tokio::task::spawn_local(async move {
                let killed = escalate(&family, scope, exec.terms.kill_grace).await;
                *exec.stopping.borrow_mut() = None;
                told.send_replace(Some(killed));
            });
            stopped
        });
        let killed = stopped.wait_for(Option::is_some).await;
        killed.is_ok_and(|killed| *killed == Some(true))
    }

    /// Stops as far as the start asked for.
    pub(crate) async fn kill(self: &Rc<Self>) -> bool {
        self.stop(self.terms.scope).await
    }
}

/// Where an exec is in its life.
fn phase(has_result: bool, acknowledged: bool) -> Phase {
    match (has_result, acknowledged) {
        (_, true) => Phase::Acked,
        (true, false) => Phase::Exited,
        (false, false) => Phase::Running,
    }
}

/// Whether a result can be released: there has to be one, and it is released once.
fn may_acknowledge(phase: Phase) -> Result<(), Refusal> {
    match phase {
        Phase::Exited => Ok(()),
        Phase::Running => Err(Refusal::new(
            Slug::StillRunning,
            "the exec has no result yet",
        )),
        Phase::Acked => Err(Refusal::new(
            Slug::AlreadyAcked,
            "the exec was acknowledged before",
        )),
    }
}

/// Whole seconds since the epoch, on this machine's clock.
pub(crate) fn seconds_since_epoch() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
