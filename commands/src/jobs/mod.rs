//! Jobs: commands that outlive their request.
//!
//! A job is started by one request and runs until it ends, whoever comes and goes. Its output goes from
//! the guest to the host's disk ([`pump`], [`spool`]) and from there to as many readers as there are
//! ([`read`]). `job.start` is its intent, `job.exit` or `job.failed` its outcome; a daemon that finds the
//! intent without an outcome takes the job up where the last one left it.

mod api;
mod decide;
mod given;
mod input;
mod kill;
mod life;
mod live;
mod outcome;
mod pump;
mod read;
mod signal;
mod spool;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agentd_client::AgentdClient;
use agentd_protocol::KillScope;
use agentd_protocol::ShellChoice;
use agentd_protocol::StartExtension;
use agentd_protocol::StartRequest;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::Job;
use fluxvm_projections::JobId;
use fluxvm_projections::JobStarted;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::book::Entry;
use crate::caller::Caller;
use crate::confinement;
use crate::confinement::Runs;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::guard;
use crate::guard::Admitted;
use crate::guard::Asked;
use crate::guard::CommandKind;
use crate::guard::Grant;
use crate::guest;
use crate::limits::EXEC_KILL_GRACE;
use crate::limits::EXEC_OUTPUT_LINGER;
use crate::limits::JOB_HOLD_BYTES;
use crate::recovery::Reached;
use crate::request::StartJob;
use crate::rewind;
use crate::rewind::Before;

pub use self::input::InputTaken;
pub use self::kill::SignalSent;
pub(crate) use self::live::LiveJobs;
pub(crate) use self::outcome::StoreRoom;
pub(crate) use self::pump::Attach;
pub use self::read::JobNow;
pub use self::read::JobReader;
pub(crate) use self::signal::Signal;
pub(crate) use self::spool::SpoolFolder;

/// A job on its way from intent to outcome.
#[derive(Clone)]
pub(crate) struct RunningJob {
    session: SessionId,
    op: u64,
    intent: EventId,
    started: JobStarted,
    /// Its output goes into the store, not only its digests.
    keep: bool,
    /// An earlier daemon started it.
    readopted: bool,
}

/// The job with what the session's budget lets it have.
fn granted(asked: &JobStarted, session: &Session, grant: Grant) -> JobStarted {
    let kept = session
        .budget
        .as_ref()
        .and_then(|budget| budget.max_output_bytes);
    JobStarted {
        timeout_ms: grant.timeout_ms,
        max_output_bytes: kept.map_or(asked.max_output_bytes, |kept| {
            kept.min(asked.max_output_bytes)
        }),
        ..asked.clone()
    }
}

/// The job as it was let through.
fn recorded(intent: &RecordedEvent) -> Result<JobStarted, CommandError> {
    let envelope =
        Envelope::decode(intent).map_err(|error| CommandError::Internal(error.to_string()))?;
    match envelope.event {
        Event::JobStarted(started) => Ok(started),
        _ => Err(CommandError::Internal(
            "another intent was recorded".to_owned(),
        )),
    }
}

/// Starts a job and answers as soon as it runs.
pub(crate) async fn start(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: StartJob,
) -> Result<Job, CommandError> {
    let job = JobId(Uuid::new_v4());
    let started = decide::check(&request, job)?;
    inner.check_room()?;
    inner.expire_if_due(caller, id).await?;
    guest::answers(inner, id)?;
    // Entered before anyone can know of it, so that a reader finds it here or its end in the ledger.
    let live = inner.live_jobs.enter(job);
    let asked = Asked {
        kind: CommandKind::Job,
        command: request.command,
        timeout_ms: started.timeout_ms,
        parameters: vec![
            ("stdin", started.stdin.to_string()),
            ("max_output_bytes", started.max_output_bytes.to_string()),
        ],
        approval: request.approval_id,
    };
    let wait = request.approval_wait_seconds;
    let admitted = guard::admit(inner, caller, id, asked, wait, |session, grant| {
        decide::start(
            session,
            &granted(&started, session, grant),
            inner.clock.now(),
        )
    });
    let Admitted { session, intent } = admitted.await?;
    let started = recorded(&intent)?;
    crash::point("job.intent");
    let before = Before::job(intent.header.seq.get());
    rewind::before_trigger(inner, caller, &session, before).await;
    let running = RunningJob {
        session: id,
        op: intent.header.seq.get(),
        intent: intent.header.event_id,
        started,
        keep: exec::keeps(&session),
        readopted: false,
    };
    let refused = async |code: &str, reason: String| -> Result<Job, CommandError> {
        Err(outcome::failed(inner, caller, &running, code, reason, None).await)
    };
    let Some(sandbox) = inner.sandboxes.get(id) else {
        return refused("sandbox_gone", "its sandbox has ended".to_owned()).await;
    };
    if let Some(bytes) = &request.given
        && let Err(error) = given::keep(inner, id, job, bytes).await
    {
        let reason = format!("what it is to read cannot be kept: {error}");
        return refused("content_unavailable", reason).await;
    }
    let given = request.given;
    let request = Box::new(start_request(&session, &running.started)?);
    let (told, runs) = oneshot::channel();
    let task = {
        let (inner, caller) = (Arc::clone(inner), caller.clone());
        let attach = Attach::Start(request, told);
        tokio::spawn(async move {
            life::finish(&inner, &caller, &running, &sandbox, live, attach).await
        })
    };
    if runs.await.is_err() {
        // It never ran; its task says why.
        task.await
            .map_err(|error| CommandError::Internal(error.to_string()))??;
    }
    if let Some(bytes) = given {
        let (inner, caller) = (Arc::clone(inner), caller.clone());
        tokio::spawn(async move { given::give(&inner, &caller, id, job, bytes).await });
    }
    crash::point("job.started");
    inner.job(id, job)
}

/// What a restarted daemon needs to take up the job of an intent again.
pub(crate) fn resume(
    inner: &Inner,
    session: &Session,
    operation: &Operation,
) -> Option<RunningJob> {
    let OperationKind::Job { job, .. } = &operation.kind else {
        return None;
    };
    let world = inner.book.world();
    let job = world.jobs.get(session.id, *job)?;
    Some(RunningJob {
        session: session.id,
        op: operation.seq,
        intent: operation.intent,
        started: JobStarted {
            job: job.id,
            command: job.command.clone(),
            stdin: job.stdin,
            timeout_ms: job.timeout_ms,
            max_output_bytes: job.max_output_bytes,
            stdin_lost_ms: job.stdin_lost_ms,
        },
        keep: exec::keeps(session),
        readopted: true,
    })
}

/// Takes a job up that an earlier daemon started.
pub(crate) fn take_up(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: RunningJob,
    sandbox: &Arc<dyn Sandbox>,
    reached: Reached,
) {
    let live = inner.live_jobs.enter(running.started.job);
    let (inner, caller) = (Arc::clone(inner), caller.clone());
    let sandbox = Arc::clone(sandbox);
    if running.started.stdin {
        let (inner, caller) = (Arc::clone(&inner), caller.clone());
        let (session, job) = (running.session, running.started.job);
        let reached = reached.clone();
        tokio::spawn(async move {
            reached.wait().await;
            given::resume(&inner, &caller, session, job).await;
        });
    }
    tokio::spawn(async move {
        reached.wait().await;
        let done = life::finish(&inner, &caller, &running, &sandbox, live, Attach::Resume).await;
        if let Err(error) = done {
            tracing::warn!(session = %running.session, %error, "a job was not taken up");
        }
    });
}

/// Records that a job ended with its sandbox, with what an earlier daemon kept of its output.
pub(crate) async fn close(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &RunningJob,
    reason: &str,
) -> Result<(), CommandError> {
    let reason = reason.to_owned();
    match outcome::failed(inner, caller, running, "sandbox_gone", reason, None).await {
        CommandError::ExecFailed { .. } => Ok(()),
        error => Err(error),
    }
}

impl Inner {
    /// A job as the ledger has it.
    pub(crate) fn job(&self, session: SessionId, job: JobId) -> Result<Job, CommandError> {
        let world = self.book.world();
        let found = world.jobs.get(session, job).cloned();
        found.ok_or(CommandError::JobNotFound(job))
    }

    /// Removes the spools of jobs that are no longer listed.
    pub(crate) async fn prune_spools(self: &Arc<Self>, session: SessionId) {
        let inner = Arc::clone(self);
        let listed = move || -> HashSet<JobId> {
            let world = inner.book.world();
            world.jobs.of(session).iter().map(|job| job.id).collect()
        };
        let (folder, live) = (self.spools.clone(), self.live_jobs.clone());
        let pruned = tokio::task::spawn_blocking(move || {
            folder.keep_only(session, || {
                let listed = listed();
                move |job| listed.contains(&job) || live.get(job).is_some()
            });
        });
        if let Err(error) = pruned.await {
            tracing::warn!(%session, %error, "old outputs of jobs were not removed");
        }
    }

    /// Removes everything that jobs of an ended session left.
    pub(crate) async fn remove_spools(&self, session: SessionId) {
        let folder = self.spools.clone();
        let removed = tokio::task::spawn_blocking(move || folder.remove(session));
        if let Err(error) = removed.await {
            tracing::warn!(%session, %error, "outputs of jobs were not removed");
        }
    }
}

fn guest(inner: &Inner, id: SessionId) -> Option<AgentdClient> {
    Some(inner.sandboxes.get(id)?.guest().clone())
}

async fn conclude(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    intent: &RecordedEvent,
    outcome: Event,
) -> Result<u64, CommandError> {
    let recorded = inner
        .book
        .conclude(caller, id, intent.header.event_id, Entry::new(outcome))
        .await?;
    Ok(recorded.header.seq.get())
}

fn exec_id(job: JobId) -> Result<agentd_protocol::ExecId, CommandError> {
    agentd_protocol::ExecId::new(job.to_string())
        .map_err(|error| CommandError::Internal(error.to_string()))
}

fn start_request(session: &Session, started: &JobStarted) -> Result<StartRequest, CommandError> {
    let mut request = StartRequest::new(exec_id(started.job)?, [&started.command]);
    request.shell = ShellChoice::Flag(true);
    request.cwd = Some(session.workspace.path.clone());
    request.stdin = started.stdin;
    let timeout = started.timeout_ms.map(Duration::from_millis);
    request.timeout_sec = timeout.map(|timeout| timeout.as_secs_f64());
    request.x = Some(StartExtension {
        kill_grace_ms: u64::try_from(EXEC_KILL_GRACE.as_millis()).ok(),
        output_linger_ms: u64::try_from(EXEC_OUTPUT_LINGER.as_millis()).ok(),
        scope: Some(KillScope::Tree),
        confine: confinement::of_session(session, Runs::Theirs),
        hold_bytes: Some(JOB_HOLD_BYTES),
        ..StartExtension::default()
    });
    Ok(request)
}
