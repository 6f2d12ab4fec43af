//! From a job's end to its outcome event.

use std::sync::Arc;

use agentd_protocol::ExitEvent;
use agentd_protocol::OutputStream;
use bytes::Bytes;
use fluxvm_eventstore::ATTACHMENT_BYTES_MAX;
use fluxvm_projections::Event;
use fluxvm_projections::JobExited;
use fluxvm_projections::JobFailed;
use fluxvm_projections::OutputRecord;
use tokio::sync::Semaphore;

use super::RunningJob;
use super::decide;
use super::spool::Spool;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;

/// Outputs that are held in memory at once on their way into the store: one can be 256 MiB.
const STORED_AT_ONCE: usize = 1;

/// The room for outputs on their way into the store.
pub(crate) struct StoreRoom(Semaphore);

impl Default for StoreRoom {
    fn default() -> Self {
        Self(Semaphore::new(STORED_AT_ONCE))
    }
}

/// Records how a job ended.
pub(super) async fn exited(
    inner: &Arc<Inner>,
    caller: &Caller,
    running: &RunningJob,
    exit: ExitEvent,
    spool: Option<Spool>,
) -> Result<(), CommandError> {
    let lost_bytes = spool.as_ref().map_or(0, Spool::lost_bytes);
    let (stdout, stderr, attachments) = outputs(inner, running, spool).await;
    let asked = {
        let world = inner.book.world();
        let job = world.jobs.get(running.session, running.started.job);
        job.map(|job| job.signals.clone()).unwrap_or_default()
    };
    let exit_code = exec::exit_code(&exit);
    let extension = exit.x.unwrap_or_default();
    let outcome = JobExited {
        op: running.op,
        job: running.started.job,
        command: running.started.command.clone(),
        state: decide::end(exit_code, exit.signal, exit.timed_out, &asked),
        exit_code,
        signal: exit.signal,
        duration_ms: extension.duration_ms,
        stdout: stdout.unwrap_or_default(),
        stderr: stderr.unwrap_or_default(),
        gap_bytes: lost_bytes,
        survivors: exec::survivors(extension),
        readopted: running.readopted,
    };
    let entry = Entry::new(Event::JobExited(outcome)).with(attachments);
    inner
        .book
        .conclude(caller, running.session, running.intent, entry)
        .await?;
    Ok(())
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
    let (stdout, stderr, attachments) = outputs(inner, running, spool).await;
    let wrote = |record: &OutputRecord| record.bytes > 0;
    let failed = Event::JobFailed(JobFailed {
        op: running.op,
        job: running.started.job,
        command: running.started.command.clone(),
        code: code.to_owned(),
        reason: reason.clone(),
        stdout: stdout.filter(wrote),
        stderr: stderr.filter(wrote),
    });
    let entry = Entry::new(failed).with(attachments);
    let recorded = inner
        .book
        .conclude(caller, running.session, running.intent, entry)
        .await;
    match recorded {
        Ok(_) => CommandError::ExecFailed {
            code: code.to_owned(),
            reason,
        },
        Err(unrecorded) => unrecorded,
    }
}

/// What is recorded of both streams, and the small ones themselves, which become durable with the event.
/// That a job ended must be known even where its output cannot be read.
async fn outputs(
    inner: &Arc<Inner>,
    running: &RunningJob,
    spool: Option<Spool>,
) -> (Option<OutputRecord>, Option<OutputRecord>, Vec<Bytes>) {
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
            return (None, None, Vec::new());
        }
    };
    let mut attachments = Vec::new();
    if running.keep {
        for (stream, record) in [
            (OutputStream::Stdout, &mut stdout),
            (OutputStream::Stderr, &mut stderr),
        ] {
            if let Err(error) = store(inner, running, stream, record, &mut attachments).await {
                tracing::error!(%job, %error, "a job's output was not stored; its digest is recorded");
                record.blob = None;
            }
        }
    }
    (Some(stdout), Some(stderr), attachments)
}

/// Brings one stream's kept bytes into the store.
async fn store(
    inner: &Arc<Inner>,
    running: &RunningJob,
    stream: OutputStream,
    record: &mut OutputRecord,
    attachments: &mut Vec<Bytes>,
) -> Result<(), CommandError> {
    let kept_bytes = record.bytes.saturating_sub(record.dropped_bytes);
    let kept_bytes = usize::try_from(kept_bytes).unwrap_or(usize::MAX);
    if kept_bytes == 0 {
        return Ok(());
    }
    let _room = match kept_bytes > ATTACHMENT_BYTES_MAX {
        true => inner.store_room.0.acquire().await.ok(),
        false => None,
    };
    let (folder, session, job) = (inner.spools.clone(), running.session, running.started.job);
    let read = tokio::task::spawn_blocking(move || {
        folder.read(session, job)?.bytes(stream, 0, kept_bytes)
    });
    let read = read.await.map_err(std::io::Error::other);
    let bytes = read
        .and_then(|read| read)
        .map_err(|source| CommandError::JobOutput { job, source })?;
    record.blob = Some(record.blake3.clone());
    if bytes.len() <= ATTACHMENT_BYTES_MAX {
        attachments.push(bytes);
    } else {
        inner.book.ledger().put_blob(bytes).await?;
    }
    Ok(())
}
