//! Reading a job: where it is, and its output from any byte on, now or as it comes.
//!
//! Readers read the files that the pump writes. None of them holds a job back, and any number of them,
//! each at its own place, cost a buffer each.

use std::sync::Arc;

use agentd_protocol::OutputStream;
use bytes::Bytes;
use fluxvm_projections::Job;
use fluxvm_projections::JobId;
use fluxvm_projections::JobState;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;
use tokio::sync::watch;

use super::live::Progress;
use super::spool::Kept;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;

/// A job at one moment.
#[derive(Clone, Debug)]
pub struct JobNow {
    /// The job, as the ledger has it.
    pub job: Job,
    /// Bytes of standard output that can be read.
    pub stdout_bytes: u64,
    /// Bytes of standard error that can be read.
    pub stderr_bytes: u64,
    /// Bytes of standard output that were dropped.
    pub stdout_dropped_bytes: u64,
    /// Bytes of standard error that were dropped.
    pub stderr_dropped_bytes: u64,
}

impl JobNow {
    /// Whether nothing more comes.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.job.state != JobState::Running
    }
}

/// One reader of one job.
pub struct JobReader {
    inner: Arc<Inner>,
    session: SessionId,
    id: JobId,
    live: Option<watch::Receiver<Progress>>,
    kept: Option<Arc<Kept>>,
}

impl Engine {
    /// The jobs of a session that are listed, oldest first.
    ///
    /// # Errors
    ///
    /// `NotFound`, and `NotRunning` for a session that ended.
    pub async fn jobs(&self, caller: &Caller, id: SessionId) -> Result<Vec<Job>, CommandError> {
        readable(&self.inner, caller, id).await?;
        Ok(self.inner.book.world().jobs.of(id).to_vec())
    }

    /// A reader of one job.
    ///
    /// # Errors
    ///
    /// `NotFound`, `JobNotFound`, and `NotRunning` for a session that ended.
    pub async fn job(
        &self,
        caller: &Caller,
        session: SessionId,
        id: JobId,
    ) -> Result<JobReader, CommandError> {
        readable(&self.inner, caller, session).await?;
        let live = self.inner.live_jobs.get(id);
        self.inner.job(session, id)?;
        Ok(JobReader {
            inner: Arc::clone(&self.inner),
            session,
            id,
            live,
            kept: None,
        })
    }
}

impl JobReader {
    /// Where the job is. What it says can be read is on the disk.
    ///
    /// # Errors
    ///
    /// `JobNotFound` once the session and its jobs are gone.
    pub fn now(&mut self) -> Result<JobNow, CommandError> {
        // In this order: a job that is no longer followed has its end in the ledger.
        let progress = self.live.as_mut().map(|live| *live.borrow_and_update());
        let job = self.inner.job(self.session, self.id)?;
        let progress = match progress {
            Some(progress) if job.state == JobState::Running => progress,
            _ => progress_of(&job),
        };
        Ok(JobNow {
            job,
            stdout_bytes: progress.stdout_bytes,
            stderr_bytes: progress.stderr_bytes,
            stdout_dropped_bytes: progress.stdout_dropped_bytes,
            stderr_dropped_bytes: progress.stderr_dropped_bytes,
        })
    }

    /// Waits until [`Self::now`] may say something else than it last did.
    pub async fn changed(&mut self) {
        match &mut self.live {
            Some(live) => {
                if live.changed().await.is_err() {
                    self.live = None;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Bytes of one stream from `offset` on, at most `bytes_max`.
    ///
    /// # Errors
    ///
    /// `JobOutput` when the disk does not give them.
    pub async fn read(
        &mut self,
        stream: OutputStream,
        offset: u64,
        bytes_max: usize,
    ) -> Result<Bytes, CommandError> {
        let (folder, session, job) = (self.inner.spools.clone(), self.session, self.id);
        let known = self.kept.clone();
        let read = tokio::task::spawn_blocking(move || {
            let kept = match known {
                Some(kept) => kept,
                None => Arc::new(folder.read(session, job)?),
            };
            let bytes = kept.bytes(stream, offset, bytes_max)?;
            Ok::<_, std::io::Error>((kept, bytes))
        });
        let read = read.await.map_err(std::io::Error::other);
        let (kept, bytes) = read
            .and_then(|read| read)
            .map_err(|source| CommandError::JobOutput { job, source })?;
        self.kept = Some(kept);
        Ok(bytes)
    }

    /// The session, if it is there to be read from still.
    ///
    /// # Errors
    ///
    /// As [`Engine::job`].
    pub async fn session(&self, caller: &Caller) -> Result<Session, CommandError> {
        readable(&self.inner, caller, self.session).await
    }
}

fn progress_of(job: &Job) -> Progress {
    let numbers = |record: &Option<fluxvm_projections::OutputRecord>| {
        let (bytes, dropped) = record
            .as_ref()
            .map_or((0, 0), |it| (it.bytes, it.dropped_bytes));
        (bytes.saturating_sub(dropped), dropped)
    };
    let (stdout_bytes, stdout_dropped_bytes) = numbers(&job.stdout);
    let (stderr_bytes, stderr_dropped_bytes) = numbers(&job.stderr);
    Progress {
        stdout_bytes,
        stderr_bytes,
        stdout_dropped_bytes,
        stderr_dropped_bytes,
    }
}

/// A session whose jobs can be read: it runs, or it is gone and what its jobs left is there still.
async fn readable(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
) -> Result<Session, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let session = inner.book.session(caller, id)?;
    if session.status != SessionStatus::Gone {
        gate::running(&session, inner.clock.now())?;
    }
    Ok(session)
}
