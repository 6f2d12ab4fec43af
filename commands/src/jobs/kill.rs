//! Signals to a running job: an intent, the signal, and an outcome that says whether anybody got it.

use std::sync::Arc;

use agentd_client::AgentdClient;
use fluxvm_projections::Event;
use fluxvm_projections::JobId;
use fluxvm_projections::JobKilled;
use fluxvm_projections::SessionId;

use super::Signal;
use super::conclude;
use super::decide;
use super::exec_id;
use super::guest;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;

/// A signal that was sent to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalSent {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// Its name, without `SIG`.
    pub signal: &'static str,
    /// There was a process to signal.
    pub delivered: bool,
}

/// Sends a signal to all processes of a job.
pub(crate) async fn kill(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    job: JobId,
    signal: Option<&str>,
) -> Result<SignalSent, CommandError> {
    let signal = signal.map_or(Ok(Signal::TERM), Signal::parse)?;
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    let (_, intent) = inner
        .book
        .decide(caller, id, |session| {
            let known = inner.job(id, job).ok();
            decide::kill(session, known.as_ref(), job, signal, now)
        })
        .await?;
    drop(turn);
    crash::point("job.kill.intent");
    let delivered = match guest(inner, id) {
        Some(guest) => send(&guest, job, signal).await?,
        None => false,
    };
    crash::point("job.kill.sent");
    let killed = Event::JobKilled(JobKilled {
        op: intent.header.seq.get(),
        job,
        signal: signal.name.to_owned(),
        delivered,
    });
    let seq = conclude(inner, caller, id, &intent, killed).await?;
    Ok(SignalSent {
        seq,
        signal: signal.name,
        delivered,
    })
}

async fn send(guest: &AgentdClient, job: JobId, signal: Signal) -> Result<bool, CommandError> {
    let exec_id = exec_id(job)?;
    let sent = guest.signal(&exec_id, signal.name).await;
    let delivered = match sent {
        Ok(state) => state.killed,
        Err(error) => {
            tracing::debug!(%job, %error, "a signal was not sent");
            false
        }
    };
    if delivered && signal == Signal::KILL {
        // What was being made while the first one went out is ended too, and nobody waits for that.
        let guest = guest.clone();
        tokio::spawn(async move { guest.kill(&exec_id).await.is_ok() });
    }
    Ok(delivered)
}
