//! Uploading recorded content once more, part by part.

use std::sync::Arc;

use bytes::Bytes;
use fluxvm_projections::Event;
use fluxvm_projections::FileUploaded;
use fluxvm_projections::SessionId;

use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::UPLOAD_PART_BYTES_MAX;
use crate::uploads;
use crate::uploads::OpenUpload;
use crate::work;

/// Uploads it. Answers the outcome with its ledger number.
pub(super) async fn redo(
    inner: &Arc<Inner>,
    caller: &Caller,
    (source, target): (SessionId, SessionId),
    recorded: &FileUploaded,
) -> Result<(u64, FileUploaded), CommandError> {
    let request = OpenUpload {
        path: recorded.path.clone(),
        size: recorded.size,
        sha256: Some(recorded.sha256.clone()),
        mode: Some(recorded.mode),
        parents: recorded.parents,
    };
    let opened = uploads::open(inner, caller, target, request).await?;
    let upload = opened.upload.asked.upload;
    let mut offset = 0;
    let part_bytes = usize::try_from(UPLOAD_PART_BYTES_MAX).unwrap_or(usize::MAX);
    for blob in &recorded.blobs {
        let mut rest = inner.content(Some(source), blob).await?;
        while !rest.is_empty() {
            let part: Bytes = rest.split_to(rest.len().min(part_bytes));
            let length = part.len() as u64;
            let content = Box::pin(futures_util::stream::iter([Ok(part)]));
            uploads::take_part(inner, caller, (target, upload), offset, content).await?;
            offset += length;
        }
    }
    let done = uploads::complete(inner, caller, target, upload).await?;
    let missing = || CommandError::Internal("a complete upload without its outcome".to_owned());
    // The outcome is right before the event that says that the upload is complete, in one batch.
    let seq = done.upload.completed.ok_or_else(missing)?.saturating_sub(1);
    match work::event_at(inner, seq)? {
        Some(Event::FileUploaded(outcome)) => Ok((seq, outcome)),
        _ => Err(missing()),
    }
}
