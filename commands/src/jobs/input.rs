//! What goes to a running job: bytes and signals. Each is an intent, its effect in the guest, and an
//! outcome that says what the guest took.

use std::sync::Arc;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Event;
use fluxvm_projections::JobId;
use fluxvm_projections::JobKilled;
use fluxvm_projections::JobStdinWritten;
use fluxvm_projections::SessionId;

use super::Signal;
use super::decide;
use super::exec_id;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::JobInput;

/// What a job took of a write to its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTaken {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// Bytes that it took: fewer than were sent when it does not read.
    pub written: u64,
    /// Its standard input is closed now.
    pub closed: bool,
}

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

/// Writes to a job's standard input.
pub(crate) async fn write(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    job: JobId,
    input: JobInput,
) -> Result<InputTaken, CommandError> {
    decide::check_input(&input)?;
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    let (_, intent) = inner
        .book
        .decide(caller, id, |session| {
            let known = inner.job(id, job).ok();
            decide::input(session, known.as_ref(), job, &input, now)
        })
        .await?;
    drop(turn);
    crash::point("job.stdin.intent");
    let guest = guest(inner, id);
    let result = match &guest {
        Some(guest) => guest.stdin(&exec_id(job)?, &input.bytes, input.close).await,
        None => Err(ClientError::Disconnected),
    };
    crash::point("job.stdin.written");
    let written = taken(&intent, job, result, input.close);
    let recorded = conclude(
        inner,
        caller,
        id,
        &intent,
        Event::JobStdinWritten(written.clone()),
    );
    let seq = recorded.await?;
    match written.code.as_deref() {
        None | Some("stdin_full") => Ok(InputTaken {
            seq,
            written: written.written,
            closed: written.closed,
        }),
        Some("stdin_closed") => Err(CommandError::StdinClosed {
            job,
            why: "the job closed it",
        }),
        Some("job_ended") => Err(CommandError::JobEnded(job)),
        Some(code) => Err(CommandError::ExecFailed {
            code: code.to_owned(),
            reason: "the guest did not say what became of the write".to_owned(),
        }),
    }
}

/// What the guest's answer means.
fn taken(
    intent: &RecordedEvent,
    job: JobId,
    result: Result<agentd_protocol::StdinState, ClientError>,
    close: bool,
) -> JobStdinWritten {
    let outcome = |written, closed, code: Option<&str>| JobStdinWritten {
        op: intent.header.seq.get(),
        job,
        written,
        closed,
        code: code.map(str::to_owned),
    };
    match result {
        Ok(state) => outcome(state.written, close && state.eof, None),
        Err(ClientError::Refused {
            status: 408,
            written,
            ..
        }) => outcome(written.unwrap_or_default(), false, Some("stdin_full")),
        Err(ClientError::Refused {
            status: 409 | 410,
            written,
            ..
        }) => outcome(written.unwrap_or_default(), true, Some("stdin_closed")),
        Err(ClientError::Refused { status: 404, .. }) => outcome(0, true, Some("job_ended")),
        Err(_) => outcome(0, false, Some("guest_unreachable")),
    }
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
