//! The bytes that events refer to, sealed or open, wherever they lie.

use bytes::Bytes;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::StreamName;

use super::Shared;
use crate::blobs::BlobDigest;
use crate::blobs::BlobError;
use crate::keys;
use crate::record;
use crate::seal::Held;
use crate::seal::SealId;

impl Shared {
    /// A blob that belongs to an event: sealed with the event's key, or open.
    pub(crate) fn blob_of_event(
        &self,
        seq: GlobalSeq,
        digest: &BlobDigest,
    ) -> Result<Option<Bytes>, BlobError> {
        let store = self.store().ok_or(BlobError::Closed)?;
        let record = store.get(&keys::event(seq)).map_err(blob_failed)?;
        match record.as_deref().and_then(record::seal_id) {
            Some(id) => self.blob_under(id, digest),
            None => self.blob(digest),
        }
    }

    /// Whether a blob that belongs to an event is there, or was erased. Its bytes are not looked at.
    pub(crate) fn has_blob_of_event(
        &self,
        seq: GlobalSeq,
        digest: &BlobDigest,
    ) -> Result<bool, BlobError> {
        let store = self.store().ok_or(BlobError::Closed)?;
        let record = store.get(&keys::event(seq)).map_err(blob_failed)?;
        let seal = record.as_deref().and_then(record::seal_id);
        match seal.and_then(|id| self.blobs.seals()?.get(id)) {
            Some(Held::Destroyed) => return Ok(true),
            Some(Held::Alive(key)) => {
                let found = store.get(&keys::sealed_blob(&key.place(digest)));
                match found.map_err(blob_failed)?.as_deref() {
                    Some([keys::SEALED_FILE, file @ ..]) => {
                        let file = <[u8; 32]>::try_from(file);
                        let file = file.map(BlobDigest::from_bytes);
                        return Ok(file.is_ok_and(|file| self.blobs.contains(&file)));
                    }
                    Some(_) => return Ok(true),
                    None => {}
                }
            }
            None => {}
        }
        let attached = store.contains(&keys::blob(digest)).map_err(blob_failed)?;
        Ok(attached || self.blobs.contains(digest))
    }

    /// A blob that belongs to a stream: sealed with its key, or open.
    pub(crate) fn blob_of_stream(
        &self,
        stream: &StreamName,
        digest: &BlobDigest,
    ) -> Result<Option<Bytes>, BlobError> {
        match self.blobs.seals() {
            Some(seals) => self.blob_under(seals.id_of(stream), digest),
            None => self.blob(digest),
        }
    }

    fn blob_under(&self, id: SealId, digest: &BlobDigest) -> Result<Option<Bytes>, BlobError> {
        let key = match self.blobs.seals().and_then(|seals| seals.get(id)) {
            Some(Held::Alive(key)) => key,
            Some(Held::Destroyed) => return Ok(None),
            None => return self.blob(digest),
        };
        let store = self.store().ok_or(BlobError::Closed)?;
        let found = store.get(&keys::sealed_blob(&key.place(digest)));
        let damaged = BlobError::Damaged { digest: *digest };
        let sealed = match found.map_err(blob_failed)?.as_deref() {
            None => return self.blob(digest),
            Some([]) => return Ok(None),
            Some([keys::SEALED_INLINE, sealed @ ..]) => Bytes::copy_from_slice(sealed),
            Some([keys::SEALED_FILE, file @ ..]) => {
                let file: [u8; 32] = file.try_into().map_err(|_| damaged.clone())?;
                match self.blobs.get(&BlobDigest::from_bytes(file))? {
                    Some(sealed) => sealed,
                    None => return Ok(None),
                }
            }
            Some(_) => return Err(damaged),
        };
        key.open_blob(digest, &sealed).map(Some).ok_or(damaged)
    }

    /// A blob that is not sealed, wherever it lies.
    pub(crate) fn blob(&self, digest: &BlobDigest) -> Result<Option<Bytes>, BlobError> {
        let store = self.store().ok_or(BlobError::Closed)?;
        let attached = store.get(&keys::blob(digest));
        match attached.map_err(blob_failed)? {
            Some(bytes) if BlobDigest::of(&bytes) == *digest => Ok(Some(bytes)),
            Some(bytes) if bytes.is_empty() => self.blobs.get(digest),
            Some(_) => Err(BlobError::Damaged { digest: *digest }),
            None => self.blobs.get(digest),
        }
    }
}

fn blob_failed(error: crate::store::StoreError) -> BlobError {
    BlobError::Io {
        reason: error.to_string().into(),
    }
}
