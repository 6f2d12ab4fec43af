//! The life of one exec: start it, read it, stop it at its deadline, publish its end.

use std::rc::Rc;
use std::time::Duration;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use agentd_protocol::ExitEvent;
use agentd_protocol::ExitExtension;
use agentd_protocol::KillScope;
use agentd_protocol::Slug;
use futures_util::future::Either;
use futures_util::future::join;
use futures_util::future::select;
use tokio::time::Instant;

use super::Exec;
use super::Refusal;
use super::Start;
use super::pump::Pump;
use crate::supervise::Channel;
use crate::supervise::Command;
use crate::supervise::Family;
use crate::supervise::Fate;
use crate::supervise::Reaper;
use crate::supervise::Report;
use crate::supervise::SpawnContext;
use crate::supervise::Streams;
use crate::supervise::keep_awake;
use crate::supervise::keep_starting;
use crate::supervise::power_off_after;
use crate::supervise::spawn;

/// What every exec's life needs.
#[derive(Debug)]
pub(crate) struct Drivers {
    pub(crate) context: SpawnContext,
    pub(crate) reaper: Rc<Reaper>,
}

/// A command that runs.
struct Running {
    family: Rc<Family>,
    report: Report,
    pump: Pump,
    started: Instant,
}

/// Runs an exec from its start to its published end. Returns `false` when it never started.
pub(crate) async fn drive(exec: Rc<Exec>, command: Command, drivers: Rc<Drivers>) -> bool {
    match launch(&exec, &command, &drivers).await {
        Ok(running) => {
            drop(command);
            exec.start
                .send_replace(Start::Running(Rc::clone(&running.family)));
            live(&exec, running).await;
            true
        }
        Err(refusal) => {
            exec.start.send_replace(Start::Refused(refusal));
            false
        }
    }
}

async fn launch(exec: &Rc<Exec>, command: &Command, drivers: &Drivers) -> Result<Running, Refusal> {
    let failed = |why: &str, error: std::io::Error| {
        Refusal::new(Slug::SpawnFailed, format!("{why}: {error}"))
    };
    let started = Instant::now();
    let spawned = spawn(&drivers.context, command)
        .map_err(|error| failed("no process could be made", error))?;
    let io = |error| failed("the command's pipes cannot be read", error);
    let pump = attach(exec, spawned.streams).map_err(io)?;
    let mut report = Report::new(spawned.report).map_err(io)?;
    let leader = tokio::select! {
        leader = report.await_start() => leader,
        never = keep_starting(spawned.supervisor) => match never {},
    };
    let leader = leader.map_err(|why| Refusal::new(Slug::SpawnFailed, why))?;
    let family = Rc::new(Family::new(spawned.supervisor, leader));
    drivers.reaper.register(&family);
    Ok(Running {
        family,
        report,
        pump,
        started,
    })
}

/// Takes the outer ends of a command's streams.
fn attach(exec: &Rc<Exec>, streams: Streams) -> std::io::Result<Pump> {
    let own = Rc::clone(exec);
    match streams {
        Streams::Pipes {
            stdin,
            stdout,
            stderr,
        } => {
            if let Some(stdin) = stdin {
                exec.stdin.open(Rc::new(Channel::writer(stdin)?));
            }
            let stdout = Rc::new(Channel::reader(stdout)?);
            let stderr = Rc::new(Channel::reader(stderr)?);
            Ok(Pump::new(own, stdout, Some(stderr)))
        }
        Streams::Terminal(master) => {
            let terminal = Rc::new(Channel::terminal(master)?);
            exec.stdin.open(Rc::clone(&terminal));
            *exec.terminal.borrow_mut() = Some(Rc::clone(&terminal));
            Ok(Pump::new(own, terminal, None))
        }
    }
}

/// How the leader ended and when.
struct LeaderEnd {
    fate: Fate,
    /// Whether the supervisor was there to tell; otherwise who else lives has to be looked up.
    told_by_supervisor: bool,
    took: Duration,
    at: SystemTime,
    timed_out: bool,
}

async fn live(exec: &Rc<Exec>, running: Running) {
    let Running {
        family,
        mut report,
        mut pump,
        started,
    } = running;
    let leader_end = {
        let leader = std::pin::pin!(await_leader(exec, &family, &mut report, started));
        let reading = std::pin::pin!(pump.run());
        match select(leader, reading).await {
            Either::Left((end, _)) => end,
            Either::Right(((), leader)) => leader.await,
        }
    };
    exec.leader_exited.set(true);
    exec.stdin.close();
    if exec.terms.reap_group_on_exit && !leader_end.timed_out {
        // The pipes are read meanwhile: a member that writes while it stops must not block.
        let stopping = std::pin::pin!(exec.stop(KillScope::Group));
        let reading = std::pin::pin!(pump.run());
        if let Either::Right(((), stopping)) = select(stopping, reading).await {
            stopping.await;
        }
    }
    read_out(exec.terms.output_linger, &mut pump).await;
    exec.terminal.take();
    let nobody_left = leader_end.told_by_supervisor
        && tokio::select! {
            more = report.next() => more.is_none(),
            never = keep_awake(&family) => match never {},
        };
    let mut extension = ExitExtension::default();
    if nobody_left {
        family.mark_ended();
    } else {
        extension = family.survivors();
    }
    extension.duration_ms = u64::try_from(leader_end.took.as_millis()).unwrap_or(u64::MAX);
    let since_epoch = leader_end.at.duration_since(UNIX_EPOCH).ok();
    extension.ended_unix_ms = since_epoch.and_then(|at| u64::try_from(at.as_millis()).ok());
    extension.enforcement = exec.enforcement();
    publish(exec, &leader_end, pump.ended(), extension);
    if !pump.ended() {
        tokio::task::spawn_local(pump.discard());
    }
    if exec.terms.poweroff_on_exit {
        tokio::task::spawn_local(power_off_after(family.leader()));
    }
}

/// Waits for the leader's end, and forces it at the deadline.
async fn await_leader(
    exec: &Rc<Exec>,
    family: &Family,
    report: &mut Report,
    started: Instant,
) -> LeaderEnd {
    let mut timed_out = false;
    let in_time = match exec.terms.timeout {
        None => Some(family.leader_fate(report).await),
        Some(limit) => {
            let left = limit.saturating_sub(started.elapsed());
            tokio::time::timeout(left, family.leader_fate(report))
                .await
                .ok()
        }
    };
    let (fate, took, at, told_by_supervisor) = match in_time {
        Some((fate, told)) => (fate, started.elapsed(), SystemTime::now(), told),
        None => {
            timed_out = true;
            let ended = async {
                let (fate, told) = tokio::select! {
                    fate = family.leader_fate(report) => fate,
                    // A supervisor that was stopped tells nothing.
                    never = keep_awake(family) => match never {},
                };
                (fate, started.elapsed(), SystemTime::now(), told)
            };
            // Both: the leader's end does not prove that its descendants stopped.
            join(exec.kill(), ended).await.1
        }
    };
    LeaderEnd {
        fate,
        told_by_supervisor,
        took,
        at,
        timed_out,
    }
}

/// Reads until the pipes end, or for the linger while somebody still holds them.
async fn read_out(linger: Duration, pump: &mut Pump) {
    if tokio::time::timeout(linger, pump.run()).await.is_err() {
        pump.drain_waiting();
    }
}

fn publish(exec: &Exec, end: &LeaderEnd, pipes_ended: bool, extension: ExitExtension) {
    let (exit_code, signal) = match end.fate {
        Fate::Exited { code } => (Some(code), None),
        Fate::Signalled { signal } => (None, Some(signal)),
    };
    let mut output = exec.output.borrow_mut();
    let exit = ExitEvent {
        exit_code,
        signal,
        truncated: output.truncated(),
        writers_may_be_alive: !pipes_ended,
        offset: output.total_bytes(),
        timed_out: end.timed_out,
        x: Some(extension),
    };
    output.finish(exit);
}
