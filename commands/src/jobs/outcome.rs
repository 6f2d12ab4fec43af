//! From a job's end to its outcome event.

use std::sync::Arc;

use agentd_protocol::ExitEvent;
use agentd_protocol::OutputStream;
use bytes::Bytes;
use fluxvm_eventstore::ATTACHMENT_BYTES_MAX;
use fluxvm_eventstore::AppendError;
use fluxvm_projections::Event;
use fluxvm_projections::JobExited;
use fluxvm_projections::JobFailed;
use fluxvm_projections::OutputRecord;
use tokio::sync::Semaphore;
use tokio::sync::SemaphorePermit;

use super::RunningJob;
use super::Signal;
use super::decide;
use super::live::LiveJob;
use super::spool::Spool;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::limits::JOB_OUTPUT_BYTES_MAX;

/// Jobs whose outputs are held in memory at once on their way into the store: one can have 512 MiB.
const STORED_AT_ONCE: usize = 1;
/// Outputs that are so small that they need not wait for that, in bytes.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

const _: () = assert!(2 * JOB_OUTPUT_BYTES_MAX <= ATTACHMENT_BYTES_MAX as u64);

/// The room for outputs on their way into the store.
pub(crate) struct StoreRoom(Semaphore);

impl Default for StoreRoom {
    fn default() -> Self {
        Self(Semaphore::new(STORED_AT_ONCE))
    }
}

/// What is recorded of both streams, and what becomes durable with it.
#[derive(Default)]
struct Outputs<'a> {
    stdout: Option<OutputRecord>,
    stderr: Option<OutputRecord>,
    kept: Vec<Bytes>,
    /// Until they are in the store.
    _room: Option<SemaphorePermit<'a>>,
}

/// Records how a job ended.
pub(super) async fn exited(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &RunningJob,
    exit: ExitEvent,
    spool: Option<Spool>,
    live: &LiveJob,
) -> Result<(), CommandError> {
    let lost_bytes = spool.as_ref().map_or(0, Spool::lost_bytes);
    let outputs = outputs(inner, running, spool).await;
    let stdin_cut = live.input_is_cut();
    let mut asked = {
        let world = inner.book.world();
        let job = world.jobs.get(running.session, running.started.job);
        job.map(|job| job.signals.clone()).unwrap_or_default()
    };
    let exit_code = exec::exit_code(&exit);
    let mut extension = exit.x.unwrap_or_default();
    let enforcement = exec::enforcement(&mut extension);
    let survivors = exec::survivors(extension.clone());
    if stdin_cut {
        asked.extend([Signal::TERM.number, Signal::KILL.number]);
    }
    let state = decide::end(exit_code, exit.signal, exit.timed_out, &asked);
    let outcome = |stdout: Option<OutputRecord>, stderr: Option<OutputRecord>| {
        Event::JobExited(JobExited {
            op: running.op,
            job: running.started.job,
            command: running.started.command.clone(),
            state,
            exit_code,
            signal: exit.signal,
            duration_ms: extension.duration_ms,
            ended_unix_ms: extension.ended_unix_ms,
            stdin_cut,
            stdout: stdout.unwrap_or_default(),
            stderr: stderr.unwrap_or_default(),
            gap_bytes: lost_bytes,
            survivors: survivors.clone(),
            readopted: running.readopted,
            enforcement: enforcement.clone(),
        })
    };
    conclude(inner, caller, running, outputs, outcome).await
}

/// Records that a job has no outcome, with what was kept of its output. Answers with the error.
pub(super) async fn failed(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &RunningJob,
    code: &str,
    reason: String,
    spool: Option<Spool>,
) -> CommandError {
    let outputs = outputs(inner, running, spool).await;
    let wrote = |record: &OutputRecord| record.bytes > 0;
    let failed = |stdout: Option<OutputRecord>, stderr: Option<OutputRecord>| {
        Event::JobFailed(JobFailed {
            op: running.op,
            job: running.started.job,
            command: running.started.command.clone(),
            code: code.to_owned(),
            reason: reason.clone(),
            stdout: stdout.filter(wrote),
            stderr: stderr.filter(wrote),
        })
    };
    match conclude(inner, caller, running, outputs, failed).await {
        Ok(()) => CommandError::ExecFailed {
            code: code.to_owned(),
            reason,
        },
        Err(unrecorded) => unrecorded,
    }
}

/// Records an outcome together with what the job wrote, so that both are sealed and erased as one. What
/// cannot be stored is recorded by its digest alone: that a job ended must be known even then.
async fn conclude(
    inner: &Inner,
    caller: &Caller,
    running: &RunningJob,
    outputs: Outputs<'_>,
    outcome: impl Fn(Option<OutputRecord>, Option<OutputRecord>) -> Event,
) -> Result<(), CommandError> {
    let Outputs {
        mut stdout,
        mut stderr,
        kept,
        _room,
    } = outputs;
    let (session, intent) = (running.session, running.intent);
    let entry = Entry::new(outcome(stdout.clone(), stderr.clone())).with(kept);
    match inner.book.conclude(caller, session, intent, entry).await {
        Err(CommandError::Ledger(AppendError::Blob { reason })) => {
            tracing::error!(%reason, "a job's output was not stored; its digest is recorded");
            for record in [&mut stdout, &mut stderr].into_iter().flatten() {
                record.blob = None;
            }
            let entry = Entry::new(outcome(stdout, stderr));
            inner.book.conclude(caller, session, intent, entry).await?;
        }
        recorded => drop(recorded?),
    }
    Ok(())
}

/// Both streams. That a job ended must be known even where its output cannot be read.
async fn outputs<'a>(inner: &'a Inner, running: &RunningJob, spool: Option<Spool>) -> Outputs<'a> {
    let (folder, session) = (inner.spools.clone(), running.session);
    let (job, bytes_max) = (running.started.job, running.started.max_output_bytes);
    let read = tokio::task::spawn_blocking(move || {
        let spool = match spool {
            Some(spool) => spool,
            None => Spool::open(&folder, session, job, bytes_max)?,
        };
        spool.records()
    });
    let (mut stdout, mut stderr) = match read.await.map_err(std::io::Error::other) {
        Ok(Ok(records)) => records,
        Ok(Err(error)) | Err(error) => {
            tracing::error!(%job, %error, "a job's output cannot be read for its record");
            return Outputs::default();
        }
    };
    let mut kept = Vec::new();
    let mut room = None;
    if running.keep {
        if kept_bytes(&stdout) + kept_bytes(&stderr) > SMALL_BYTES_MAX {
            room = inner.store_room.0.acquire().await.ok();
        }
        for (stream, record) in [
            (OutputStream::Stdout, &mut stdout),
            (OutputStream::Stderr, &mut stderr),
        ] {
            match bytes_of(inner, running, stream, record).await {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => {
                    record.blob = Some(record.blake3.clone());
                    kept.push(bytes);
                }
                Err(error) => {
                    tracing::error!(%job, %error, "a job's output was not stored; its digest is recorded");
                }
            }
        }
    }
    Outputs {
        stdout: Some(stdout),
        stderr: Some(stderr),
        kept,
        _room: room,
    }
}

fn kept_bytes(record: &OutputRecord) -> u64 {
    record.bytes.saturating_sub(record.dropped_bytes)
}

/// One stream's kept bytes.
async fn bytes_of(
    inner: &Inner,
    running: &RunningJob,
    stream: OutputStream,
    record: &OutputRecord,
) -> Result<Bytes, CommandError> {
    let kept_bytes = usize::try_from(kept_bytes(record)).unwrap_or(usize::MAX);
    if kept_bytes == 0 {
        return Ok(Bytes::new());
    }
    let (folder, session, job) = (inner.spools.clone(), running.session, running.started.job);
    let read = tokio::task::spawn_blocking(move || {
        folder.read(session, job)?.bytes(stream, 0, kept_bytes)
    });
    let read = read.await.map_err(std::io::Error::other);
    read.and_then(|read| read)
        .map_err(|source| CommandError::JobOutput { job, source })
}
