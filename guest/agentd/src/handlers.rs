//! The workload's hook handlers: programs of the image that run at the platform's hooks.
//!
//! The folder is fixed and not a knob, because it decides what runs as the daemon's user. Handlers
//! run one at a time, within a budget that covers their output too, and what they return changes no
//! status. Their output goes to the daemon's log and nowhere else.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agentd_protocol::HandlerOutcome;
use agentd_protocol::Hook;
use agentd_protocol::KillScope;
use nix::sys::signal::Signal;
use nix::sys::signal::killpg;
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio::time::timeout_at;

use crate::exec::Drivers;
use crate::supervise::Command;
use crate::supervise::Family;
use crate::supervise::Fate;
use crate::supervise::Report;
use crate::supervise::Streams;
use crate::supervise::spawn;

/// Where an image puts its handlers, each under its hook's name.
const FOLDER: &str = "/etc/agentd/hooks.d";

/// Bytes of one line of a handler's output in the log; a longer one is cut into several.
const LOG_LINE_BYTES_MAX: usize = 4096;

/// How long a handler that was killed is waited for.
const KILLED_WAIT: Duration = Duration::from_secs(1);

/// Runs handlers.
#[derive(Debug)]
pub(crate) struct Handlers {
    folder: PathBuf,
    budget: Duration,
    drivers: Rc<Drivers>,
    turn: Mutex<()>,
}

impl Handlers {
    pub(crate) fn new(budget: Duration, drivers: Rc<Drivers>) -> Self {
        Self {
            folder: FOLDER.into(),
            budget,
            drivers,
            turn: Mutex::default(),
        }
    }

    /// Runs a hook's handler; `None` when the image has none.
    pub(crate) async fn run(
        &self,
        hook: Hook,
        launch: &BTreeMap<String, String>,
    ) -> Option<HandlerOutcome> {
        let path = self.folder.join(hook.as_str());
        path.symlink_metadata().ok()?;
        let _turn = self.turn.lock().await;
        let started = Instant::now();
        let command = command(path.into_os_string(), hook, launch);
        let mut outcome = match command {
            Ok(command) => self.run_command(hook, &command).await,
            Err(error) => Err(error),
        }
        .unwrap_or_else(|error| HandlerOutcome {
            error: Some(error.to_string()),
            ..HandlerOutcome::default()
        });
        outcome.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            hook = hook.as_str(),
            exit_code = outcome.exit_code,
            signal = outcome.signal,
            timed_out = outcome.timed_out,
            error = outcome.error,
            "a hook handler ended"
        );
        Some(outcome)
    }

    async fn run_command(&self, hook: Hook, command: &Command) -> io::Result<HandlerOutcome> {
        let deadline = Instant::now() + self.budget;
        let spawned = spawn(&self.drivers.context, command)?;
        let Streams::Pipes { stdout, stderr, .. } = spawned.streams else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut report = Report::new(spawned.report)?;
        let leader = report.await_start().await.map_err(io::Error::other)?;
        let family = Rc::new(Family::new(spawned.supervisor, leader));
        self.drivers.reaper.register(&family);
        let mut fate = None;
        let whole = async {
            let ended = async { fate = Some(family.leader_fate(&mut report).await.0) };
            let logged = futures_util::future::join(
                log_output(hook, "stdout", stdout),
                log_output(hook, "stderr", stderr),
            );
            futures_util::future::join(ended, logged).await;
        };
        let timed_out = timeout_at(deadline, whole).await.is_err();
        if timed_out {
            if !family.live(KillScope::Group).is_empty() {
                let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
            }
            if fate.is_none() {
                let killed = tokio::time::timeout(KILLED_WAIT, family.leader_fate(&mut report));
                fate = killed.await.ok().map(|(fate, _)| fate);
            }
        }
        let (exit_code, signal) = match fate {
            Some(Fate::Exited { code }) => (Some(code), None),
            Some(Fate::Signalled { signal }) => (None, Some(signal)),
            None => (None, None),
        };
        Ok(HandlerOutcome {
            exit_code,
            signal,
            timed_out,
            ..HandlerOutcome::default()
        })
    }
}

/// The daemon's environment, the launch's over it, and the hook's name. The token is in neither.
fn command(path: OsString, hook: Hook, launch: &BTreeMap<String, String>) -> io::Result<Command> {
    let path = CString::new(path.into_vec())?;
    let overruled = |name: &OsString| name.to_str().is_some_and(|name| launch.contains_key(name));
    let pair = |mut name: Vec<u8>, value: Vec<u8>| {
        name.push(b'=');
        name.extend(value);
        CString::new(name)
    };
    let mut environment = Vec::new();
    for (name, value) in std::env::vars_os().filter(|(name, _)| !overruled(name)) {
        environment.push(pair(name.into_vec(), value.into_vec())?);
    }
    for (name, value) in launch {
        environment.push(pair(name.clone().into_bytes(), value.clone().into_bytes())?);
    }
    environment.push(pair(b"AGENTD_HOOK".to_vec(), hook.as_str().into())?);
    Ok(Command {
        programs: vec![path.clone()],
        arguments: vec![path],
        environment,
        directory: None,
        uid: None,
        gid: None,
        stdin: false,
        terminal: None,
        confinement: None,
    })
}

async fn log_output(hook: Hook, stream: &'static str, pipe: OwnedFd) {
    let Ok(mut pipe) = Receiver::from_owned_fd(pipe) else {
        return;
    };
    let mut buffer = vec![0; LOG_LINE_BYTES_MAX];
    let mut held = 0;
    while let Ok(bytes) = pipe.read(buffer.get_mut(held..).unwrap_or_default()).await {
        if bytes == 0 {
            break;
        }
        held += bytes;
        let filled = buffer.get(..held).unwrap_or_default();
        let whole = match memchr::memrchr(b'\n', filled) {
            Some(newline) => newline + 1,
            None if held == buffer.len() => held,
            None => continue,
        };
        for line in filled
            .get(..whole)
            .unwrap_or_default()
            .split(|b| *b == b'\n')
        {
            log_line(hook, stream, line);
        }
        buffer.copy_within(whole..held, 0);
        held -= whole;
    }
    log_line(hook, stream, buffer.get(..held).unwrap_or_default());
}

fn log_line(hook: Hook, stream: &str, line: &[u8]) {
    if !line.is_empty() {
        let text = String::from_utf8_lossy(line);
        tracing::info!(hook = hook.as_str(), stream, text = %text, "hook handler output");
    }
}
