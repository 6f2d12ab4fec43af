//! Uploads that nobody goes on with, and what they left.

use std::sync::Arc;

use chrono::TimeDelta;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_projections::Event;
use fluxvm_projections::SessionId;
use fluxvm_projections::Upload;
use fluxvm_projections::UploadAborted;
use fluxvm_projections::UploadId;

use super::find;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::engine::system;
use crate::error::CommandError;
use crate::limits::UPLOAD_AGE_MAX_SECONDS;

/// Drops an upload that its caller no longer wants.
pub(super) async fn abort(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    upload: UploadId,
) -> Result<(), CommandError> {
    find(inner, caller, id, upload)?;
    drop_open(inner, caller, id, upload, "aborted").await
}

async fn drop_open(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    upload: UploadId,
    reason: &str,
) -> Result<(), CommandError> {
    let _turn = inner.uploading.turns.take(upload).await;
    let found = find(inner, caller, id, upload)?;
    if found.completed.is_some() {
        return Err(CommandError::UploadDone(upload));
    }
    let aborted = Event::UploadAborted(UploadAborted {
        upload,
        path: found.asked.path,
        size: found.asked.size,
        reason: reason.to_owned(),
    });
    inner
        .book
        .append(
            caller,
            id.stream(),
            ExpectedVersion::Exists,
            Entry::new(aborted),
        )
        .await?;
    if let Err(error) = inner.uploading.spool.remove(id, upload).await {
        // The next start drops them.
        tracing::warn!(%error, "the parts of an aborted upload are left");
    }
    Ok(())
}

/// Drops uploads that are older than any may be.
pub(crate) async fn sweep(inner: &Arc<Inner>) {
    let Ok(caller) = system("uploads") else {
        return;
    };
    let now = inner.clock.now();
    let too_old =
        |upload: &Upload| now - upload.opened_at >= TimeDelta::seconds(UPLOAD_AGE_MAX_SECONDS);
    let old: Vec<(SessionId, UploadId)> = {
        let world = inner.book.world();
        let open = world.uploads.open().filter(|(_, upload)| too_old(upload));
        open.map(|(session, upload)| (session, upload.asked.upload))
            .collect()
    };
    for (session, upload) in old {
        if let Err(error) = drop_open(inner, &caller, session, upload, "expired").await {
            tracing::warn!(%session, %upload, %error, "an old upload was not dropped");
        }
    }
}

/// Drops what no open upload of a running session owns.
pub(crate) async fn sweep_at_start(inner: &Arc<Inner>) {
    let open: Vec<(SessionId, UploadId)> = {
        let world = inner.book.world();
        let open = world.uploads.open();
        open.map(|(session, upload)| (session, upload.asked.upload))
            .collect()
    };
    match inner.uploading.spool.keep_only(open).await {
        Ok(0) => {}
        Ok(dropped) => tracing::info!(dropped, "parts that no open upload owns were dropped"),
        Err(error) => tracing::warn!(%error, "parts that no open upload owns were not dropped"),
    }
}

/// Drops all parts of a session that ended.
pub(crate) async fn drop_parts_of_session(inner: &Inner, id: SessionId) {
    if let Err(error) = inner.uploading.spool.remove_session(id).await {
        // The next start drops them.
        tracing::warn!(session = %id, %error, "the parts of an ended session's uploads are left");
    }
}
