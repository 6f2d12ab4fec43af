//! The jobs that this daemon follows, and how far each has come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fluxvm_projections::JobId;
use tokio::sync::watch;

/// How much of a job's output is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
    pub(crate) stdout_dropped_bytes: u64,
    pub(crate) stderr_dropped_bytes: u64,
}

/// All jobs that are followed.
#[derive(Clone, Default)]
pub(crate) struct LiveJobs {
    by_id: Arc<Mutex<HashMap<JobId, Followed>>>,
}

/// What others can know of a job that is followed, and tell it.
struct Followed {
    progress: watch::Receiver<Progress>,
    /// How many are writing to its standard input.
    writers: watch::Sender<usize>,
}

/// Somebody who is writing to a job's standard input, for as long as this lives.
pub(crate) struct Writer(Option<watch::Sender<usize>>);

/// The place of one job among them, for whoever follows it. It ends with this value: only after the
/// job's outcome was recorded, so that a reader finds it here or its end in the ledger.
pub(crate) struct LiveJob {
    id: JobId,
    progress: watch::Sender<Progress>,
    writers: watch::Receiver<usize>,
    /// Its standard input broke off.
    input_cut: AtomicBool,
    by_id: Arc<Mutex<HashMap<JobId, Followed>>>,
}

impl LiveJobs {
    pub(crate) fn enter(&self, id: JobId) -> LiveJob {
        let (progress, seen) = watch::channel(Progress::default());
        let (writers, writers_seen) = watch::channel(0);
        let followed = Followed {
            progress: seen,
            writers,
        };
        lock(&self.by_id).insert(id, followed);
        LiveJob {
            id,
            progress,
            writers: writers_seen,
            input_cut: AtomicBool::new(false),
            by_id: Arc::clone(&self.by_id),
        }
    }

    pub(crate) fn get(&self, id: JobId) -> Option<watch::Receiver<Progress>> {
        let jobs = lock(&self.by_id);
        jobs.get(&id).map(|followed| followed.progress.clone())
    }

    /// Counts one more who writes to a job's standard input.
    pub(crate) fn writer(&self, id: JobId) -> Writer {
        let jobs = lock(&self.by_id);
        let writers = jobs.get(&id).map(|followed| followed.writers.clone());
        if let Some(writers) = &writers {
            writers.send_modify(|count| *count += 1);
        }
        Writer(writers)
    }

    /// Resolves when the job is no longer followed: its end is recorded.
    pub(crate) async fn ended(&self, id: JobId) {
        let Some(mut progress) = self.get(id) else {
            return;
        };
        while progress.changed().await.is_ok() {}
    }
}

impl LiveJob {
    pub(crate) fn report(&self, progress: Progress) {
        self.progress.send_if_modified(|before| {
            let changed = *before != progress;
            *before = progress;
            changed
        });
    }

    /// Resolves when nobody has been writing to the job's standard input for that long.
    pub(crate) async fn unwritten_for(&self, time: Duration) {
        let mut writers = self.writers.clone();
        loop {
            let nobody = writers.wait_for(|count| *count == 0).await.map(drop);
            if nobody.is_err() {
                return std::future::pending().await;
            }
            let somebody = async { writers.wait_for(|count| *count > 0).await.map(drop) };
            match tokio::time::timeout(time, somebody).await {
                Err(_) => return,
                Ok(Ok(())) => {}
                Ok(Err(_)) => return std::future::pending().await,
            }
        }
    }

    /// Takes note that the job's standard input broke off.
    pub(crate) fn cut_input(&self) {
        self.input_cut.store(true, Ordering::Relaxed);
    }

    /// Whether it did.
    pub(crate) fn input_is_cut(&self) -> bool {
        self.input_cut.load(Ordering::Relaxed)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(writers) = &self.0 {
            writers.send_modify(|count| *count = count.saturating_sub(1));
        }
    }
}

impl Drop for LiveJob {
    fn drop(&mut self) {
        lock(&self.by_id).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use uuid::Uuid;

    #[tokio::test]
    async fn an_input_is_lost_when_nobody_writes_any_more_and_not_before() {
        let jobs = LiveJobs::default();
        let job = JobId(Uuid::nil());
        let live = jobs.enter(job);
        let first = jobs.writer(job);
        let mut lost = std::pin::pin!(live.unwritten_for(Duration::ZERO));
        assert!(lost.as_mut().now_or_never().is_none(), "somebody writes");
        let second = jobs.writer(job);
        drop(first);
        assert!(
            lost.as_mut().now_or_never().is_none(),
            "somebody still does"
        );
        drop(second);
        lost.await;
        let mut patient = std::pin::pin!(live.unwritten_for(Duration::from_secs(3_600)));
        assert!(patient.as_mut().now_or_never().is_none(), "there is time");
    }
}
