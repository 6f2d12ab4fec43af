//! Finding what the archive lacks, by holding it against the ledger.
//!
//! Events are compared by number: the archive has the first so many of them. Of everything else a
//! fingerprint of key and value is kept while the comparison lasts, 16 bytes each.

use std::collections::HashSet;
use std::sync::Arc;

use fluxvm_verify::GlobalSeq;

use super::erase;
use super::worker::OpenArchive;
use crate::keys;
use crate::store::StoreError;
use crate::store::log::Log;
use crate::store::log::Mode;

/// Behind every key that there is.
const KEYS_END: &[u8] = &[0xff];

/// Puts into the archive whatever the ledger has and it has not, up to the watermark.
pub(super) fn catch_up(archive: &mut OpenArchive<'_>) -> Result<(), StoreError> {
    let shared = Arc::clone(&archive.worker.shared);
    let Some(store) = shared.store() else {
        return Ok(());
    };
    for digest in shared.blobs.digests()? {
        if !archive.blobs.contains(&digest) {
            archive.copy_blob(&digest)?;
        }
    }
    // Events above the watermark may be in the store and not be durable.
    let until = shared.head().position;
    let mut held = HashSet::new();
    let files = Arc::clone(&archive.files);
    let dir = erase::folder(&archive.worker.options.dir, archive.generation);
    Log::open(files, &dir, Mode::ReadOnly, &mut |key, value, _| {
        if keys::event_seq(key).is_none() {
            held.insert(fingerprint(key, value));
        }
        Ok(())
    })?;
    let first_event = keys::event(GlobalSeq::FIRST);
    let before = store.range(&[]..first_event.as_slice());
    for entry in before.chain(store.range(keys::EVENTS_END..KEYS_END)) {
        let (key, value) = entry?;
        if !held.contains(&fingerprint(&key, &value)) {
            archive.push(&key, &value)?;
        }
    }
    for record in store.records(archive.archived) {
        let (seq, record) = record?;
        if seq.position() > until {
            break;
        }
        archive.push(&keys::event(seq), &record)?;
    }
    Ok(())
}

fn fingerprint(key: &[u8], value: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&u64::try_from(key.len()).unwrap_or(u64::MAX).to_be_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher
        .finalize()
        .as_bytes()
        .first_chunk()
        .copied()
        .unwrap_or_default()
}
