//! Taking one part.

use std::sync::Arc;

use fluxvm_projections::SessionId;
use fluxvm_projections::Upload;
use fluxvm_projections::UploadId;

use super::PartStream;
use super::UploadRecord;
use super::find;
use super::received;
use super::spool::PartFault;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;
use crate::limits::UPLOAD_PART_BYTES_MAX;
use crate::limits::UPLOAD_PARTS_MAX;

/// Takes the next part of an upload.
pub(crate) async fn take(
    inner: &Arc<Inner>,
    caller: &Caller,
    (id, upload): (SessionId, UploadId),
    offset: u64,
    content: PartStream,
) -> Result<UploadRecord, CommandError> {
    inner.expire_if_due(caller, id).await?;
    find(inner, caller, id, upload)?;
    let turn = inner.uploading.turns.take(upload).await;
    let found = find(inner, caller, id, upload)?;
    let session = inner.book.session(caller, id)?;
    gate::running(&session, inner.clock.now())?;
    gate::no_lifecycle(&session)?;
    let before = received(inner, id, upload).await?;
    let parts = before.parts.len();
    let bytes_max = decide(&found, before.bytes, parts, offset)?;
    let spool = &inner.uploading.spool;
    let taken = spool.take_part((id, upload), offset, bytes_max, content);
    let bytes = taken.await.map_err(|fault| refused(fault, bytes_max))?;
    crash::point("upload.part.taken");
    drop(turn);
    Ok(UploadRecord {
        received: before.bytes + bytes,
        parts: parts as u64 + 1,
        upload: found,
    })
}

/// How many bytes the part at this offset may have. Pure.
fn decide(upload: &Upload, received: u64, parts: usize, offset: u64) -> Result<u64, CommandError> {
    if upload.completed.is_some() {
        return Err(CommandError::UploadDone(upload.asked.upload));
    }
    if offset != received {
        return Err(CommandError::UploadOffset { offset, received });
    }
    if parts >= UPLOAD_PARTS_MAX {
        return Err(CommandError::TooMany {
            what: "parts of one upload",
            limit: UPLOAD_PARTS_MAX,
        });
    }
    let left = upload.asked.size.saturating_sub(received);
    Ok(left.min(UPLOAD_PART_BYTES_MAX))
}

fn refused(fault: PartFault, bytes_max: u64) -> CommandError {
    let message = match fault {
        PartFault::Disk(error) => return CommandError::Spool(error),
        PartFault::TooLong => format!("is longer than the {bytes_max} bytes that can follow here"),
        PartFault::Empty => "is empty".to_owned(),
        PartFault::BrokenOff(error) => format!("broke off: {error}"),
    };
    CommandError::Invalid {
        field: "body",
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use fluxvm_projections::UploadOpened;
    use uuid::Uuid;

    fn upload(completed: Option<u64>) -> Upload {
        Upload {
            asked: UploadOpened {
                upload: UploadId(Uuid::nil()),
                path: "/workspace/a".into(),
                size: UPLOAD_PART_BYTES_MAX + 10,
                sha256: None,
                mode: 0o644,
                parents: true,
            },
            opened_at: now(),
            completed,
        }
    }

    #[test]
    fn a_part_begins_where_the_last_one_ended_and_ends_with_the_file() {
        let open = upload(None);
        let code = |decided: Result<u64, CommandError>| decided.unwrap_err().code().to_owned();
        assert_eq!(decide(&open, 0, 0, 0).unwrap(), UPLOAD_PART_BYTES_MAX);
        assert_eq!(
            decide(&open, UPLOAD_PART_BYTES_MAX, 1, UPLOAD_PART_BYTES_MAX).unwrap(),
            10
        );
        assert_eq!(code(decide(&open, 7, 1, 6)), "upload_offset");
        assert_eq!(code(decide(&open, 7, 1, 8)), "upload_offset");
        assert_eq!(code(decide(&open, 7, UPLOAD_PARTS_MAX, 7)), "too_many");
        assert_eq!(code(decide(&upload(Some(9)), 0, 0, 0)), "upload_done");
    }
}
