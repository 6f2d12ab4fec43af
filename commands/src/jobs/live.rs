//! The jobs that this daemon follows, and how far each has come.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

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
    by_id: Arc<Mutex<HashMap<JobId, watch::Receiver<Progress>>>>,
}

/// The place of one job among them, for whoever follows it. It ends with this value: only after the
/// job's outcome was recorded, so that a reader finds it here or its end in the ledger.
pub(crate) struct LiveJob {
    id: JobId,
    progress: watch::Sender<Progress>,
    by_id: Arc<Mutex<HashMap<JobId, watch::Receiver<Progress>>>>,
}

impl LiveJobs {
    pub(crate) fn enter(&self, id: JobId) -> LiveJob {
        let (progress, seen) = watch::channel(Progress::default());
        lock(&self.by_id).insert(id, seen);
        LiveJob {
            id,
            progress,
            by_id: Arc::clone(&self.by_id),
        }
    }

    pub(crate) fn get(&self, id: JobId) -> Option<watch::Receiver<Progress>> {
        lock(&self.by_id).get(&id).cloned()
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
}

impl Drop for LiveJob {
    fn drop(&mut self) {
        lock(&self.by_id).remove(&self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
