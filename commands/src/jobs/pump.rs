//! From the guest to the disk: follows a job to its end, over as many connections and daemons as it
//! takes.
//!
//! The guest holds what was not acknowledged, and it is acknowledged only once it is on the disk. So a
//! daemon that ends at any point loses nothing, and a job that writes faster than the disk waits.

use std::io;
use std::time::Duration;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_protocol::ExecId;
use agentd_protocol::ExitEvent;
use agentd_protocol::StartRequest;
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::live::LiveJob;
use super::live::Progress;
use super::spool::Spool;
use crate::confinement;
use crate::limits::JOB_ACKNOWLEDGE_BYTES;
use crate::limits::JOB_BATCH_BYTES;

/// How often in a row a connection is made anew while the sandbox lives.
const CONNECTIONS_MAX: u32 = 8;

/// How long the first wait between two of them; each later one waits twice as long as the one before.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// Why the end of a job is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("its sandbox ended while it ran")]
    SandboxGone,
    #[error("its session went to a state in which it does not run")]
    Replaced,
    #[error("it could not be started: {0}")]
    SpawnFailed(String),
    #[error("it was not started, because its session's policy cannot be enforced on it: {0}")]
    Unconfined(String),
    #[error("the guest does not know it: it never started")]
    NeverStarted,
    #[error("the guest did not say how it ended: {0}")]
    Unreachable(ClientError),
    #[error("its output cannot be kept: {0}")]
    Spool(io::Error),
    #[error("the guest did not end it within {0} s of its time limit")]
    Overdue(u64),
}

impl Failure {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::SandboxGone => "sandbox_gone",
            Self::Replaced => "replaced",
            Self::SpawnFailed(_) => "spawn_failed",
            Self::Unconfined(_) => confinement::CODE_REFUSED,
            Self::NeverStarted => "interrupted",
            Self::Unreachable(_) => "guest_unreachable",
            Self::Spool(_) => "content_unavailable",
            Self::Overdue(_) => "guest_overdue",
        }
    }
}

/// How a job is first attached to.
pub(crate) enum Attach {
    /// It is started, and whoever asked is told that it runs.
    Start(Box<StartRequest>, oneshot::Sender<()>),
    /// It was started before.
    Resume,
}

/// One job on its way to the disk.
pub(super) struct Pump<'a> {
    pub(super) guest: &'a AgentdClient,
    pub(super) exec_id: &'a ExecId,
    pub(super) live: &'a LiveJob,
    pub(super) spool: &'a mut Option<Spool>,
}

impl Pump<'_> {
    /// Follows the job to its end.
    pub(super) async fn run(mut self, attach: Attach) -> Result<ExitEvent, Failure> {
        let acknowledger = Acknowledger::new(self.guest, self.exec_id);
        let (request, mut told) = match attach {
            Attach::Start(request, told) => (Some(request), Some(told)),
            Attach::Resume => (None, None),
        };
        self.report();
        let mut failures = 0;
        loop {
            let offset = self.offset()?;
            let attached = match &request {
                // Until a first connection came about it is not known to run; starting it twice starts it
                // once.
                Some(request) if told.is_some() => self.guest.run(request).await,
                _ => self.guest.stream(self.exec_id, offset).await,
            };
            let broken = match attached {
                Ok(stream) => {
                    if let Some(told) = told.take() {
                        // Whoever asked may have gone away.
                        let _ = told.send(());
                    }
                    failures = 0;
                    // A job that waits for room goes on when the guest hears what is safe already.
                    acknowledger.up_to(offset);
                    match self.read(stream, &acknowledger).await? {
                        Ok(exit) => return Ok(exit),
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            failures += 1;
            match broken {
                ClientError::Refused { status: 404, .. } => return Err(Failure::NeverStarted),
                ref error if confinement::is_refusal(error) => {
                    return Err(Failure::Unconfined(error.to_string()));
                }
                ClientError::Refused { detail, .. } => return Err(Failure::SpawnFailed(detail)),
                error if failures == CONNECTIONS_MAX => return Err(Failure::Unreachable(error)),
                error => tracing::debug!(job = %self.exec_id, %error, "connecting again"),
            }
            tokio::time::sleep(RECONNECT_DELAY * 2_u32.pow(failures)).await;
        }
    }

    /// Reads one connection to its end.
    async fn read(
        &mut self,
        mut stream: ExecStream,
        acknowledger: &Acknowledger,
    ) -> Result<Result<ExitEvent, ClientError>, Failure> {
        loop {
            let mut batch = Vec::new();
            let mut bytes = 0;
            let mut next = stream.next().await;
            let end = loop {
                match next {
                    None => break Some(Err(ClientError::Disconnected)),
                    Some(Err(error)) => break Some(Err(error)),
                    Some(Ok(ExecEvent::Exit(exit))) => break Some(Ok(exit)),
                    Some(Ok(event)) => {
                        if let ExecEvent::Output { bytes: output, .. } = &event {
                            bytes += output.len();
                        }
                        batch.push(event);
                    }
                }
                if bytes >= JOB_BATCH_BYTES {
                    break None;
                }
                // What has arrived already goes along; nothing is waited for.
                match stream.next().now_or_never() {
                    Some(event) => next = event,
                    None => break None,
                }
            };
            if !batch.is_empty() {
                self.write(batch).await?;
                acknowledger.up_to(self.offset()?);
                self.report();
            }
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    async fn write(&mut self, batch: Vec<ExecEvent>) -> Result<(), Failure> {
        let mut spool = self.spool.take().ok_or_else(gone)?;
        let written = tokio::task::spawn_blocking(move || {
            for event in &batch {
                put(&mut spool, event);
            }
            let settled = spool.settle();
            (spool, settled)
        });
        let (spool, settled) = written
            .await
            .map_err(|error| Failure::Spool(io::Error::other(error)))?;
        *self.spool = Some(spool);
        settled.map_err(Failure::Spool)
    }

    fn offset(&self) -> Result<u64, Failure> {
        self.spool
            .as_ref()
            .map(Spool::guest_offset)
            .ok_or_else(gone)
    }

    fn report(&self) {
        let Some(spool) = &self.spool else { return };
        let (stdout_bytes, stderr_bytes) = spool.kept_bytes();
        let (stdout_dropped_bytes, stderr_dropped_bytes) = spool.dropped_bytes();
        self.live.report(Progress {
            stdout_bytes,
            stderr_bytes,
            stdout_dropped_bytes,
            stderr_dropped_bytes,
        });
    }
}

/// Writes one event, at its place: what is there already is passed over, and what is missing is counted.
fn put(spool: &mut Spool, event: &ExecEvent) {
    let here = spool.guest_offset();
    match event {
        ExecEvent::Output {
            offset,
            stream,
            bytes,
        } => {
            spool.lost(offset.saturating_sub(here));
            let known = usize::try_from(here.saturating_sub(*offset)).unwrap_or(usize::MAX);
            spool.push(*stream, bytes.get(known..).unwrap_or_default());
        }
        ExecEvent::Gap { to, .. } => spool.lost(to.saturating_sub(here)),
        ExecEvent::Exit(_) => {}
    }
}

fn gone() -> Failure {
    Failure::Spool(io::Error::other("the writer of the output ended"))
}

/// Tells the guest from time to time how much is safe, without anyone waiting for it.
struct Acknowledger {
    safe: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Acknowledger {
    fn new(guest: &AgentdClient, exec_id: &ExecId) -> Self {
        let (safe, mut seen) = watch::channel(0);
        let (guest, exec_id) = (guest.clone(), exec_id.clone());
        let task = tokio::spawn(async move {
            let mut told = 0_u64;
            loop {
                let due = |safe: &u64| safe.saturating_sub(told) >= JOB_ACKNOWLEDGE_BYTES;
                let Ok(safe) = seen.wait_for(due).await.map(|safe| *safe) else {
                    return;
                };
                // One that got lost is made up for by the next: nothing but the job's speed depends on it.
                match guest.acknowledge_to(&exec_id, safe).await {
                    Ok(()) => told = safe,
                    Err(error) => {
                        tracing::debug!(job = %exec_id, %error, "output was not acknowledged");
                        tokio::time::sleep(RECONNECT_DELAY).await;
                    }
                }
            }
        });
        Self { safe, task }
    }

    fn up_to(&self, offset: u64) {
        self.safe.send_replace(offset);
    }
}

impl Drop for Acknowledger {
    fn drop(&mut self) {
        self.task.abort();
    }
}
