//! How many streams of jobs there may be: so many of one session, so that no session takes all from the
//! others, and so many in all.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use fluxvm_projections::SessionId;

use crate::limits::JOB_STREAMS_MAX;
use crate::limits::JOB_STREAMS_SESSION_MAX;
use crate::status::ApiError;

/// The streams that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobStreams {
    open: Arc<Mutex<HashMap<SessionId, usize>>>,
}

/// Room for one stream, for as long as this lives.
#[derive(Debug)]
pub(crate) struct JobStreamPermit {
    streams: JobStreams,
    session: SessionId,
}

impl JobStreams {
    /// Room for one more stream of a job of this session.
    ///
    /// # Errors
    ///
    /// `too_many`, which says of what.
    pub(crate) fn permit(&self, session: SessionId) -> Result<JobStreamPermit, ApiError> {
        let mut open = self.open();
        if open.values().sum::<usize>() >= JOB_STREAMS_MAX {
            return Err(ApiError::too_many("job streams", JOB_STREAMS_MAX));
        }
        let own = open.entry(session).or_default();
        if *own >= JOB_STREAMS_SESSION_MAX {
            let what = "job streams of this session";
            return Err(ApiError::too_many(what, JOB_STREAMS_SESSION_MAX));
        }
        *own += 1;
        Ok(JobStreamPermit {
            streams: self.clone(),
            session,
        })
    }

    fn open(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for JobStreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open();
        if let Some(own) = open.get_mut(&self.session) {
            *own = own.saturating_sub(1);
        }
        if open.get(&self.session) == Some(&0) {
            open.remove(&self.session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn session(number: u128) -> SessionId {
        SessionId(Uuid::from_u128(number))
    }

    #[test]
    fn a_session_takes_its_own_share_and_none_of_the_others() {
        let streams = JobStreams::default();
        let take = |of: u128| streams.permit(session(of));
        let first: Vec<_> = (0..JOB_STREAMS_SESSION_MAX).map(|_| take(1)).collect();
        assert!(first.iter().all(Result::is_ok));
        let full = take(1).expect_err("its share is taken");
        assert_eq!(full.code(), "too_many");
        let others: Vec<_> = (2..)
            .take(JOB_STREAMS_MAX - JOB_STREAMS_SESSION_MAX)
            .map(take)
            .collect();
        assert!(others.iter().all(Result::is_ok));
        assert_eq!(take(1_000_000).expect_err("all are").code(), "too_many");
        drop(first);
        assert!(take(1).is_ok(), "what ended makes room");
        drop(others);
        assert!(streams.open().is_empty());
    }
}
