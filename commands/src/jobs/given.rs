//! What a job is given to read with its start, whole: it is on the host's disk before the job runs, and goes
//! from there into the job at its own pace. So a daemon that is killed takes nothing of it along: the next
//! one goes on where the guest says that the last one was.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use fluxvm_projections::JobId;
use fluxvm_projections::SessionId;
use futures_util::stream;

use super::input;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::request::InputBytes;
use crate::request::JobInput;

/// Keeps what a job is given.
pub(super) async fn keep(
    inner: &Inner,
    session: SessionId,
    job: JobId,
    bytes: &Bytes,
) -> io::Result<()> {
    let (folder, bytes) = (inner.spools.clone(), bytes.clone());
    let kept = tokio::task::spawn_blocking(move || folder.give(session, job, &bytes));
    kept.await.map_err(io::Error::other)?
}

/// Gives a job what an earlier daemon kept for it, if there is anything.
pub(super) async fn resume(inner: &Arc<Inner>, caller: &Caller, session: SessionId, job: JobId) {
    let folder = inner.spools.clone();
    let read = tokio::task::spawn_blocking(move || folder.given(session, job));
    match read.await.map_err(io::Error::other).and_then(|read| read) {
        Ok(Some(bytes)) => give(inner, caller, session, job, bytes).await,
        Ok(None) => {}
        Err(error) => tracing::error!(%job, %error, "what a job was to read cannot be read"),
    }
}

/// Gives a job everything, from the beginning: what it has of it is not written again.
pub(super) async fn give(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: SessionId,
    job: JobId,
    bytes: Bytes,
) {
    let whole = stream::iter([Ok(bytes)]);
    let input = JobInput {
        bytes: InputBytes::Stream(Box::pin(whole)),
        offset: Some(0),
        close: true,
    };
    match input::write(inner, caller, session, job, input).await {
        Ok(_) => forget(inner, session, job).await,
        // It ended, or it reads no more: its stream says how that went.
        Err(error) => tracing::debug!(%job, %error, "a job took no more input"),
    }
}

/// Removes what was kept.
pub(super) async fn forget(inner: &Inner, session: SessionId, job: JobId) {
    let folder = inner.spools.clone();
    let removed = tokio::task::spawn_blocking(move || folder.forget_given(session, job));
    if let Err(error) = removed.await {
        tracing::warn!(%job, %error, "what a job was given was not removed");
    }
}
