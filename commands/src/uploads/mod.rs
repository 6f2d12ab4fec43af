//! Uploads: files that come in parts, over as many connections and daemons as it takes.
//!
//! Parts wait on the host. When all are there, the guest writes the file beside its place, checks size and
//! digest, and renames it: nothing half-written is ever at the path, and no part takes room in the guest.
//! A part is no event; opening, completing and aborting are.

mod complete;
mod open;
mod part;
mod spool;
mod sweep;

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use fluxvm_projections::SessionId;
use fluxvm_projections::Upload;
use fluxvm_projections::UploadId;
use futures_util::Stream;
use tokio::sync::Semaphore;

pub(crate) use complete::complete;
pub(crate) use complete::finish_interrupted;
pub(crate) use open::open;
pub(crate) use part::take as take_part;
pub(crate) use spool::Received;
pub(crate) use spool::Spool;
pub(crate) use sweep::drop_parts_of_session;
pub(crate) use sweep::sweep;
pub(crate) use sweep::sweep_at_start;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::UPLOADS_COMPLETING_MAX;
use crate::turns::Turns;

/// Bytes that come as they are sent.
pub type PartStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A file that will come in parts.
#[derive(Clone, Debug)]
pub struct OpenUpload {
    /// Where it goes, absolute.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// The SHA-256 that it must have, hex.
    pub sha256: Option<String>,
    /// Its permission bits; 0644 when `None`.
    pub mode: Option<u32>,
    /// Folders on the way are made.
    pub parents: bool,
}

/// An upload and how far it is.
#[derive(Clone, Debug)]
pub struct UploadRecord {
    /// What was asked for, and whether it is done.
    pub upload: Upload,
    /// How many bytes came.
    pub received: u64,
    /// In how many parts.
    pub parts: u64,
}

/// What all uploads share.
pub(crate) struct Uploading {
    pub(crate) spool: Spool,
    /// One call at a time on each upload.
    pub(crate) turns: Turns<UploadId>,
    /// Each completion holds a piece of its file in memory.
    pub(crate) completing: Semaphore,
}

impl Uploading {
    pub(crate) fn new(spool: Spool) -> Self {
        Self {
            spool,
            turns: Turns::default(),
            completing: Semaphore::new(UPLOADS_COMPLETING_MAX),
        }
    }
}

impl Engine {
    /// Opens an upload.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Busy`, `TooMany`; `Spool` when the host's disk refuses.
    pub async fn open_upload(
        &self,
        caller: &Caller,
        id: SessionId,
        request: OpenUpload,
    ) -> Result<UploadRecord, CommandError> {
        self.run(caller, move |inner, caller| async move {
            open(&inner, &caller, id, request).await
        })
        .await
    }

    /// Takes the next part. It is durable when this answers.
    ///
    /// # Errors
    ///
    /// `UploadNotFound`, `UploadOffset` for any other offset than the one to go on from, `Invalid` for a
    /// part that is empty, too long or broke off, `Spool`.
    pub async fn upload_part(
        &self,
        caller: &Caller,
        id: SessionId,
        upload: UploadId,
        offset: u64,
        content: PartStream,
    ) -> Result<UploadRecord, CommandError> {
        self.run(caller, move |inner, caller| async move {
            take_part(&inner, &caller, (id, upload), offset, content).await
        })
        .await
    }

    /// Puts the file in its place. Repeating it answers the same.
    ///
    /// # Errors
    ///
    /// `UploadNotFound`, `UploadIncomplete`; `File` with `checksum_mismatch` when the bytes are others,
    /// in which case the upload stays open and the guest's file as it was; as a write otherwise.
    pub async fn complete_upload(
        &self,
        caller: &Caller,
        id: SessionId,
        upload: UploadId,
    ) -> Result<UploadRecord, CommandError> {
        self.run(caller, move |inner, caller| async move {
            complete(&inner, &caller, id, upload).await
        })
        .await
    }

    /// Drops an upload and its parts.
    ///
    /// # Errors
    ///
    /// `UploadNotFound`, also when it was dropped before; `UploadDone` when it is complete.
    pub async fn abort_upload(
        &self,
        caller: &Caller,
        id: SessionId,
        upload: UploadId,
    ) -> Result<(), CommandError> {
        self.run(caller, move |inner, caller| async move {
            sweep::abort(&inner, &caller, id, upload).await
        })
        .await
    }

    /// One upload.
    ///
    /// # Errors
    ///
    /// `NotFound`, `UploadNotFound`.
    pub async fn upload(
        &self,
        caller: &Caller,
        id: SessionId,
        upload: UploadId,
    ) -> Result<UploadRecord, CommandError> {
        self.inner.expire_if_due(caller, id).await?;
        let found = find(&self.inner, caller, id, upload)?;
        record(&self.inner, id, found).await
    }

    /// The session's uploads, oldest first.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub async fn uploads(
        &self,
        caller: &Caller,
        id: SessionId,
    ) -> Result<Vec<UploadRecord>, CommandError> {
        self.inner.expire_if_due(caller, id).await?;
        self.inner.book.session(caller, id)?;
        let uploads = self.inner.book.world().uploads.of_session(id);
        let mut records = Vec::with_capacity(uploads.len());
        for upload in uploads {
            records.push(record(&self.inner, id, upload).await?);
        }
        Ok(records)
    }
}

/// The upload, if the caller may know of it.
fn find(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    upload: UploadId,
) -> Result<Upload, CommandError> {
    inner.book.session(caller, id)?;
    let world = inner.book.world();
    let found = world.uploads.get(id, upload).cloned();
    found.ok_or(CommandError::UploadNotFound(upload))
}

/// The upload with how far it is.
async fn record(
    inner: &Inner,
    id: SessionId,
    upload: Upload,
) -> Result<UploadRecord, CommandError> {
    if upload.completed.is_some() {
        return Ok(UploadRecord {
            received: upload.asked.size,
            parts: 0,
            upload,
        });
    }
    let received = received(inner, id, upload.asked.upload).await?;
    Ok(UploadRecord {
        received: received.bytes,
        parts: received.parts.len() as u64,
        upload,
    })
}

/// What came of an open upload. Its place may be missing after a power cut: then nothing came.
async fn received(
    inner: &Inner,
    id: SessionId,
    upload: UploadId,
) -> Result<Received, CommandError> {
    match inner.uploading.spool.received(id, upload).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Received::default()),
        received => received.map_err(CommandError::Spool),
    }
}
