//! Opening an upload.

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::SessionId;
use fluxvm_projections::UploadId;
use fluxvm_projections::UploadOpened;
use uuid::Uuid;

use super::OpenUpload;
use super::UploadRecord;
use super::find;
use super::record;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::files::GuestPath;
use crate::gate;
use crate::limits::UPLOAD_BYTES_MAX;
use crate::limits::UPLOADS_OPEN_HOST_MAX;
use crate::limits::UPLOADS_OPEN_MAX;

/// Opens an upload.
pub(crate) async fn open(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: OpenUpload,
) -> Result<UploadRecord, CommandError> {
    let upload = UploadId(Uuid::new_v4());
    let asked = check(request, upload)?;
    inner.expire_if_due(caller, id).await?;
    inner.book.session(caller, id)?;
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    let (here, everywhere) = {
        let world = inner.book.world();
        let here = world.uploads.open().filter(|(session, _)| *session == id);
        (here.count(), world.uploads.open().count())
    };
    check_room(here, everywhere)?;
    // The place comes first: one that no event names is dropped at the next start.
    let spool = &inner.uploading.spool;
    spool.open(id, upload).await.map_err(CommandError::Spool)?;
    crash::point("upload.open.spooled");
    let decided = inner
        .book
        .decide(caller, id, |session| {
            gate::running(session, now)?;
            gate::no_lifecycle(session)?;
            files::check_writable(session, &asked.path)?;
            Ok(Entry::new(Event::UploadOpened(asked.clone())))
        })
        .await;
    drop(turn);
    if let Err(error) = decided {
        if let Err(left) = spool.remove(id, upload).await {
            tracing::warn!(%left, "the place of an upload that was refused is left");
        }
        return Err(error);
    }
    let found = find(inner, caller, id, upload)?;
    record(inner, id, found).await
}

fn check(request: OpenUpload, upload: UploadId) -> Result<UploadOpened, CommandError> {
    let invalid = |field, message: String| CommandError::Invalid { field, message };
    let path = GuestPath::parse_file(&request.path)?;
    if request.size == 0 || request.size > UPLOAD_BYTES_MAX {
        let message = format!("must be from 1 to {UPLOAD_BYTES_MAX} bytes");
        return Err(invalid("size", message));
    }
    let is_digest =
        |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if request.sha256.as_ref().is_some_and(|text| !is_digest(text)) {
        let message = "must be 64 hexadecimal digits".to_owned();
        return Err(invalid("sha256", message));
    }
    Ok(UploadOpened {
        upload,
        path: path.into_string(),
        size: request.size,
        sha256: request.sha256.map(|text| text.to_ascii_lowercase()),
        mode: files::mode(request.mode)?,
        parents: request.parents,
    })
}

/// There is room for one more. Pure.
fn check_room(here: usize, everywhere: usize) -> Result<(), CommandError> {
    let too_many = |what, limit| Err(CommandError::TooMany { what, limit });
    if here >= UPLOADS_OPEN_MAX {
        return too_many("open uploads of one session", UPLOADS_OPEN_MAX);
    }
    if everywhere >= UPLOADS_OPEN_HOST_MAX {
        return too_many("open uploads on this host", UPLOADS_OPEN_HOST_MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(size: u64, sha256: Option<&str>, mode: Option<u32>) -> String {
        let request = OpenUpload {
            path: "/workspace/a".into(),
            size,
            sha256: sha256.map(str::to_owned),
            mode,
            parents: true,
        };
        match super::check(request, UploadId(Uuid::nil())) {
            Ok(asked) => format!("{:o} {:?}", asked.mode, asked.sha256.map(|text| text.len())),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_upload_has_a_size_within_bounds_and_a_digest_that_is_one() {
        assert_eq!(check(1, None, None), "644 None");
        let digest = "AB".repeat(32);
        assert_eq!(
            check(UPLOAD_BYTES_MAX, Some(&digest), Some(0o755)),
            "755 Some(64)"
        );
        for wrong in [0, UPLOAD_BYTES_MAX + 1] {
            assert!(check(wrong, None, None).starts_with("size: "));
        }
        for wrong in ["", "abc", &"g".repeat(64)] {
            assert!(check(1, Some(wrong), None).starts_with("sha256: "));
        }
        assert!(check(1, None, Some(0o10000)).starts_with("mode: "));
    }

    #[test]
    fn open_uploads_are_counted_for_the_session_and_for_the_host() {
        assert!(check_room(UPLOADS_OPEN_MAX - 1, UPLOADS_OPEN_HOST_MAX - 1).is_ok());
        assert!(check_room(UPLOADS_OPEN_MAX, 0).is_err());
        assert!(check_room(0, UPLOADS_OPEN_HOST_MAX).is_err());
    }
}
