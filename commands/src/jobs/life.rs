//! One job from its start, or from where an earlier daemon left it, to its recorded end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fluxvm_projections::JOBS_LISTED_MAX;
use fluxvm_vmm::Sandbox;

use super::Attach;
use super::RunningJob;
use super::exec_id;
use super::given;
use super::live::LiveJob;
use super::outcome;
use super::pump::Failure;
use super::pump::Pump;
use super::spool::Spool;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::limits::EXEC_ANSWER_SLACK;
use crate::limits::EXEC_KILL_GRACE;
use crate::limits::EXEC_OUTPUT_LINGER;

/// Follows a job to its end and records it.
pub(super) async fn finish(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &RunningJob,
    sandbox: &Arc<dyn Sandbox>,
    live: LiveJob,
    attach: Attach,
) -> Result<(), CommandError> {
    let exec_id = exec_id(running.started.job)?;
    let mut spool = None;
    let (mut sandbox, mut attach) = (Arc::clone(sandbox), attach);
    let mut replaced = false;
    let followed = loop {
        let followed = follow(
            inner, running, &sandbox, &live, &mut spool, attach, &exec_id,
        )
        .await;
        match (followed, inner.sandboxes.get(running.session)) {
            // The session went to another state of its own, and the job may have gone with it.
            (Err(Failure::SandboxGone), Some(new)) if new.id() != sandbox.id() => {
                (sandbox, attach, replaced) = (new, Attach::Resume, true);
            }
            (Err(Failure::NeverStarted), _) if replaced => break Err(Failure::Replaced),
            (followed, _) => break followed,
        }
    };
    let recorded = match followed {
        Ok(exit) => {
            crash::point("job.ended");
            outcome::exited(inner, caller, running, exit, spool, &live).await
        }
        Err(failure) => {
            let (code, reason) = (failure.code(), failure.to_string());
            Err(outcome::failed(inner, caller, running, code, reason, spool).await)
        }
    };
    crash::point("job.outcome");
    drop(live);
    if running.started.stdin {
        given::forget(inner, running.session, running.started.job).await;
    }
    // Only now does the guest let go of its copy: had the daemon died before, the next one would have
    // found it. Nobody waits for that.
    tokio::spawn(async move { exec::release(sandbox.as_ref(), &exec_id).await });
    let listed = inner.book.world().jobs.of(running.session).len();
    if listed >= JOBS_LISTED_MAX {
        inner.prune_spools(running.session).await;
    }
    recorded
}

async fn follow(
    inner: &Arc<Inner>,
    running: &RunningJob,
    sandbox: &Arc<dyn Sandbox>,
    live: &LiveJob,
    spool: &mut Option<Spool>,
    attach: Attach,
    exec_id: &agentd_protocol::ExecId,
) -> Result<agentd_protocol::ExitEvent, Failure> {
    let (folder, session) = (inner.spools.clone(), running.session);
    let (job, bytes_max) = (running.started.job, running.started.max_output_bytes);
    let opened = tokio::task::spawn_blocking(move || Spool::open(&folder, session, job, bytes_max));
    let opened = opened.await.map_err(std::io::Error::other);
    *spool = Some(opened.and_then(|opened| opened).map_err(Failure::Spool)?);
    let pump = Pump {
        guest: sandbox.guest(),
        exec_id,
        live,
        spool,
    };
    let overdue = async {
        match running.started.timeout_ms {
            Some(timeout_ms) => tokio::time::sleep(overdue_after(timeout_ms)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = pump.run(attach) => ended,
        never = end_without_input(inner, running, sandbox, live, exec_id) => match never {},
        _ = sandbox.exited() => Err(Failure::SandboxGone),
        () = overdue => {
            exec::end_overdue(sandbox.as_ref(), exec_id).await;
            Err(Failure::Overdue(EXEC_ANSWER_SLACK.as_secs()))
        }
    }
}

/// Ends a job whose standard input broke off: it would wait for ever, or take half of it for the whole.
/// Never resolves: the job's end is for whoever follows it.
async fn end_without_input(
    inner: &Inner,
    running: &RunningJob,
    sandbox: &Arc<dyn Sandbox>,
    live: &LiveJob,
    exec_id: &agentd_protocol::ExecId,
) -> Infallible {
    if let Some(lost_ms) = running.started.stdin_lost_ms {
        live.unwritten_for(Duration::from_millis(lost_ms)).await;
        let job = inner.job(running.session, running.started.job);
        if job.is_ok_and(|job| !job.stdin_closed) {
            live.cut_input();
            if let Err(error) = sandbox.guest().kill(exec_id).await {
                tracing::warn!(%exec_id, %error, "a job without its input was not ended");
            }
        }
    }
    std::future::pending().await
}

fn overdue_after(timeout_ms: u64) -> Duration {
    Duration::from_millis(timeout_ms) + EXEC_KILL_GRACE + EXEC_OUTPUT_LINGER + EXEC_ANSWER_SLACK
}
