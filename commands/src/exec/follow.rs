//! Following a command to its end, over as many connections as it takes.

use std::time::Duration;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_protocol::ExecId;
use agentd_protocol::ExitEvent;
use agentd_protocol::OutputStream;
use agentd_protocol::StartRequest;
use fluxvm_vmm::Sandbox;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Running;
use super::collect::Collector;
use crate::confinement;
use crate::engine::Inner;
use crate::limits::EXEC_ANSWER_SLACK;
use crate::limits::EXEC_KILL_GRACE;
use crate::limits::EXEC_OUTPUT_LINGER;

/// How often a connection that broke is made anew while the sandbox lives. Each try but the first waits.
/// A guest whose memory is being captured hears nobody for as long as its memory takes to be written: in
/// all this is half a minute.
const CONNECTIONS_MAX: u32 = 100;

/// The longest of these waits.
const RECONNECT_DELAY_MAX: Duration = Duration::from_millis(320);

/// How long the first of those waits; each later one waits twice as long as the one before.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// How long a guest may take to kill a command: its own grace, and as much again.
const GUEST_KILL_WAIT: Duration = Duration::from_secs(5);

/// How a command is first attached to.
pub(crate) enum Attach {
    /// It is started, and whoever feeds it is told that it runs. Starting it twice starts it once.
    Run(Box<StartRequest>, oneshot::Sender<()>),
    /// It was started before.
    Resume,
}

/// A command that ended, with all that it wrote.
pub(super) struct Ended {
    pub(super) exit: ExitEvent,
    pub(super) stdout: Collector,
    pub(super) stderr: Collector,
    /// Bytes that the guest no longer had when it was asked for them.
    pub(super) gap_bytes: u64,
}

/// Why the end of a command is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("its sandbox ended while it ran")]
    SandboxGone,
    #[error("it could not be started: {0}")]
    SpawnFailed(String),
    #[error("it was not started, because its session's policy cannot be enforced on it: {0}")]
    Unconfined(String),
    #[error("the guest does not know it: it never started")]
    NeverStarted,
    #[error("the guest did not say how it ended: {0}")]
    Unreachable(ClientError),
    #[error("the guest did not end it within {0} s of its time limit")]
    Overdue(u64),
}

impl Failure {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::SandboxGone => "sandbox_gone",
            Self::SpawnFailed(_) => "spawn_failed",
            Self::Unconfined(_) => confinement::CODE_REFUSED,
            Self::NeverStarted => "interrupted",
            Self::Unreachable(_) => "guest_unreachable",
            Self::Overdue(_) => "guest_overdue",
        }
    }
}

/// Follows a command until it ended or its end cannot be known.
pub(super) async fn follow(
    inner: &Inner,
    sandbox: &dyn Sandbox,
    exec_id: &ExecId,
    running: &Running,
    attach: Attach,
) -> Result<Ended, Failure> {
    let follower = Follower {
        guest: sandbox.guest(),
        exec_id,
        stdout: Collector::new(inner.output_memory.clone(), running.output_bytes_max),
        stderr: Collector::new(inner.output_memory.clone(), running.output_bytes_max),
        offset: 0,
        gap_bytes: 0,
    };
    let limit = Duration::from_millis(running.started.timeout_ms)
        + EXEC_KILL_GRACE
        + EXEC_OUTPUT_LINGER
        + EXEC_ANSWER_SLACK;
    let deadline = Instant::now() + limit;
    tokio::select! {
        ended = follower.run(attach) => ended,
        _ = sandbox.exited() => Err(Failure::SandboxGone),
        () = tokio::time::sleep_until(deadline) => {
            end_overdue(sandbox, exec_id).await;
            Err(Failure::Overdue(EXEC_ANSWER_SLACK.as_secs()))
        }
    }
}

/// Ends a command that the guest should have ended. A guest that does not even answer to that, because
/// something in it stopped its first process, is of no use to anyone: the whole sandbox ends, and its
/// session is gone for everyone to see.
pub(crate) async fn end_overdue(sandbox: &dyn Sandbox, exec_id: &ExecId) {
    let killed = tokio::time::timeout(GUEST_KILL_WAIT, sandbox.guest().kill(exec_id)).await;
    if matches!(killed, Ok(Ok(_))) {
        return;
    }
    tracing::error!(%exec_id, sandbox = %sandbox.id(), "the guest does not answer: ending its sandbox");
    if let Err(error) = sandbox.destroy().await {
        tracing::error!(sandbox = %sandbox.id(), %error, "a sandbox that does not answer was not ended");
    }
}

/// Lets the guest forget a command. It forgets by itself when this fails, only later.
pub(crate) async fn release(sandbox: &dyn Sandbox, exec_id: &ExecId) {
    if let Err(error) = sandbox.guest().release(exec_id).await {
        tracing::debug!(%exec_id, %error, "a finished command was not released");
    }
}

struct Follower<'a> {
    guest: &'a AgentdClient,
    exec_id: &'a ExecId,
    stdout: Collector,
    stderr: Collector,
    offset: u64,
    gap_bytes: u64,
}

impl Follower<'_> {
    async fn run(mut self, attach: Attach) -> Result<Ended, Failure> {
        let (request, mut runs) = match attach {
            Attach::Run(request, runs) => (Some(request), Some(runs)),
            Attach::Resume => (None, None),
        };
        let mut delay = RECONNECT_DELAY;
        for attempt in 1..=CONNECTIONS_MAX {
            let broken = match self.attach(request.as_deref(), attempt).await {
                Ok(stream) => {
                    if let Some(runs) = runs.take() {
                        // Most commands are given nothing to read.
                        let _ = runs.send(());
                    }
                    match self.read(stream).await {
                        Ok(exit) => return Ok(self.ended(exit)),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            match broken {
                ClientError::Refused { status: 404, .. } => return Err(Failure::NeverStarted),
                ref error if confinement::is_refusal(error) => {
                    return Err(Failure::Unconfined(error.to_string()));
                }
                ClientError::Refused { detail, .. } => return Err(Failure::SpawnFailed(detail)),
                error if attempt == CONNECTIONS_MAX => return Err(Failure::Unreachable(error)),
                error => tracing::debug!(exec_id = %self.exec_id, %error, "connecting again"),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RECONNECT_DELAY_MAX);
        }
        Err(Failure::Unreachable(ClientError::Timeout))
    }

    /// The first connection starts the command, every later one goes on where the last one ended. A first
    /// connection that broke before anything arrived starts it again, which starts it at most once.
    async fn attach(
        &self,
        request: Option<&StartRequest>,
        attempt: u32,
    ) -> Result<ExecStream, ClientError> {
        match request {
            Some(request) if attempt == 1 || self.offset == 0 => self.guest.run(request).await,
            _ => self.guest.stream(self.exec_id, self.offset).await,
        }
    }

    async fn read(&mut self, mut stream: ExecStream) -> Result<ExitEvent, ClientError> {
        while let Some(event) = stream.next().await {
            match event? {
                ExecEvent::Output {
                    offset,
                    stream,
                    bytes,
                } => {
                    self.offset = offset + bytes.len() as u64;
                    match stream {
                        OutputStream::Stdout => self.stdout.push(&bytes),
                        OutputStream::Stderr => self.stderr.push(&bytes),
                    }
                }
                ExecEvent::Gap { from, to } => {
                    self.gap_bytes += to.saturating_sub(from);
                    self.offset = to;
                }
                ExecEvent::Exit(exit) => return Ok(exit),
            }
        }
        Err(ClientError::Disconnected)
    }

    fn ended(self, exit: ExitEvent) -> Ended {
        Ended {
            exit,
            stdout: self.stdout,
            stderr: self.stderr,
            gap_bytes: self.gap_bytes,
        }
    }
}
