//! Erasing what events say, without touching what they prove.
//!
//! An erased event keeps its header, its links and its hash: the chain, the tree over it and every
//! proof stay what they were. Its payload and salt go. The erasure is an append like any other, so
//! that what was erased, by whom and why is itself recorded, and both are one batch: there is no
//! instant at which one of them is durable without the other.
//!
//! ```text
//! at once       readers, exports and the newest events in memory show the erased form
//! at once       blob files are unlinked, small blobs are gone
//! at once       an archive is written anew, by its own thread
//! next opening  the store is written anew, because its log keeps what was overwritten
//! ```
//!
//! What is not promised: that a disk forgets blocks that were freed, and anything about copies that
//! others made.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;

use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Payload;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::is_rotation;
use tokio::sync::oneshot;

use crate::Append;
use crate::AppendError;
use crate::Appended;
use crate::BlobDigest;
use crate::ReadError;
use crate::blobs::BlobStore;
use crate::committer::Committer;
use crate::group::Group;
use crate::keys;
use crate::prepare::Prepared;
use crate::record;
use crate::record::Body;
use crate::seal;
use crate::seal::Held;
use crate::seal::SealId;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;

/// The most events that one redaction erases: their records are one batch.
pub const REDACTION_EVENTS_MAX: usize = 512;
/// The most blobs that one redaction erases: the list of them is one value in the store.
pub const REDACTION_BLOBS_MAX: usize = 1024;

/// How many events are looked through at a time.
const READ_PAGE_EVENTS: usize = 1024;

/// What is to be erased, and the events that say so.
#[derive(Clone, Debug)]
pub struct Redaction {
    /// The events whose payloads go. One that is erased already stays so.
    pub seqs: Vec<GlobalSeq>,
    /// Blobs that go with them, however they were stored. One that holds the payload of an event
    /// that is not erased stays.
    pub blobs: Vec<BlobDigest>,
    /// Up to where the caller has looked for other events that name the blobs. Events that came
    /// since are looked through here: a blob whose digest, in hexadecimal, is in the payload of one
    /// of them stays.
    pub looked_until: Position,
    /// What is recorded in the same instant. Its `command_id` makes the redaction happen once.
    pub append: Append,
}

/// Why nothing was erased, unless the ledger is poisoned: then it is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RedactError {
    /// There is no such event.
    #[error("there is no event {seq}; the ledger ends at {head}")]
    UnknownSeq {
        /// The event.
        seq: GlobalSeq,
        /// How many events there are.
        head: Position,
    },
    /// An event that is to be erased cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was to be recorded with it was refused.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// Where the answer goes.
pub(crate) type RedactReply = oneshot::Sender<Result<Appended, RedactError>>;

/// A redaction as the committer gets it.
pub(crate) struct PreparedRedaction {
    pub(crate) seqs: Vec<GlobalSeq>,
    pub(crate) blobs: Vec<BlobDigest>,
    pub(crate) looked_until: Position,
    pub(crate) append: Prepared,
}

/// Refuses a redaction that is out of bounds, whatever the state of the ledger.
pub(crate) fn check(redaction: &Redaction) -> Result<(), AppendError> {
    let limits = [
        (
            "events to erase",
            redaction.seqs.len(),
            REDACTION_EVENTS_MAX,
        ),
        ("blobs to erase", redaction.blobs.len(), REDACTION_BLOBS_MAX),
    ];
    for (what, found, limit) in limits {
        if found > limit {
            return Err(AppendError::TooLarge { what, found, limit });
        }
    }
    Ok(())
}

/// What erasing comes to in the store.
struct Erasure {
    writes: Vec<Write>,
    /// The erased events, as they are from now on.
    events: Vec<Arc<RecordedEvent>>,
    /// Blob files to unlink.
    files: Vec<BlobDigest>,
    /// The keys that the erased events were sealed with.
    seals: Vec<SealId>,
    /// One of them was not sealed.
    has_open: bool,
}

impl Committer {
    /// Erases and answers. Whatever had queued up before is committed already.
    pub(crate) fn redact(&mut self, redaction: PreparedRedaction, reply: RedactReply) {
        let answer = catch_unwind(AssertUnwindSafe(|| self.try_redact(redaction)));
        let answer = answer.unwrap_or_else(|_| {
            let reason = "the committer or its observer panicked";
            Err(self.poisoned_by(reason).into())
        });
        // Who no longer waits has it erased all the same.
        let _ = reply.send(answer);
    }

    fn try_redact(&mut self, redaction: PreparedRedaction) -> Result<Appended, RedactError> {
        let mut erasure = self.erasure(&redaction)?;
        let mut group = Group::new(self.head, self.last_recorded_at);
        let appended = self.admit(redaction.append, &mut group)?;
        if group.events.is_empty() {
            // The command was carried out before.
            return Ok(appended);
        }
        group.writes.append(&mut erasure.writes);
        group.redacted = erasure.events;
        let poisoned = |reason: String| AppendError::Poisoned { reason };
        self.make_durable(group).map_err(poisoned)?;
        let forgotten = self.shared.snapshots.forget_all();
        forgotten.map_err(|e| self.poisoned_by(&format!("snapshots cannot be removed: {e}")))?;
        let unlinked = self.unlink(&erasure.files);
        unlinked.map_err(|e| self.poisoned_by(&e.to_string()))?;
        Ok(appended)
    }

    /// What has to be written. Nothing is changed here.
    fn erasure(&self, redaction: &PreparedRedaction) -> Result<Erasure, RedactError> {
        let store = self.shared.store().ok_or(AppendError::Closed)?;
        let failed = |e: StoreError| ReadError::Store {
            reason: e.to_string().into(),
        };
        let mut erasure = Erasure {
            writes: Vec::new(),
            events: Vec::new(),
            files: Vec::new(),
            seals: Vec::new(),
            has_open: false,
        };
        for seq in &redaction.seqs {
            self.erase_event(&*store, *seq, &mut erasure)?;
        }
        let named = self.named_since(redaction)?;
        let blobs = redaction.blobs.iter().filter(|it| !named.contains(it));
        let blobs: Vec<BlobDigest> = blobs.copied().collect();
        self.erase_sealed(&*store, &blobs, &mut erasure)?;
        // What was sealed has its own blobs: an open one of the same bytes is somebody else's.
        let is_all_sealed = !erasure.seals.is_empty() && !erasure.has_open;
        for digest in blobs.iter().filter(|_| !is_all_sealed) {
            let key = keys::blob(digest);
            if store.contains(&key).map_err(failed)? {
                erasure.writes.push((key.to_vec(), keys::ERASED.to_vec()));
            }
            if self.shared.blobs.contains(digest) {
                erasure.files.push(*digest);
            }
        }
        erasure.files.sort_unstable();
        erasure.files.dedup();
        if !erasure.files.is_empty() {
            let named = payload_files(&*store, &redaction.seqs).map_err(failed)?;
            erasure.files.retain(|digest| !named.contains(digest));
        }
        let redactions = count(&*store, keys::REDACTIONS).map_err(failed)? + 1;
        erasure.writes.extend([
            (keys::REDACTIONS.to_vec(), redactions.to_be_bytes().to_vec()),
            (keys::UNLINK.to_vec(), unlink_list(&erasure.files)),
        ]);
        Ok(erasure)
    }

    /// The blobs that events name which came after the caller had looked.
    fn named_since(&self, redaction: &PreparedRedaction) -> Result<Vec<BlobDigest>, ReadError> {
        let texts = redaction.blobs.iter().map(BlobDigest::to_string);
        let texts: Vec<String> = texts.collect();
        let mut named = Vec::new();
        let mut after = redaction.looked_until;
        while !texts.is_empty() {
            let page = self.shared.read(after, READ_PAGE_EVENTS)?;
            let Some(last) = page.last() else { break };
            after = last.seq().position();
            let others = page.iter().filter(|it| !redaction.seqs.contains(&it.seq()));
            for payload in others.filter_map(|event| event.payload_bytes()) {
                let payload = String::from_utf8_lossy(payload);
                let held = redaction.blobs.iter().zip(&texts);
                let held = held.filter(|(_, text)| payload.contains(text.as_str()));
                named.extend(held.map(|(digest, _)| *digest));
            }
        }
        Ok(named)
    }

    /// Erases what is sealed of the blobs, with the keys that the erased events were sealed with.
    fn erase_sealed(
        &self,
        store: &dyn Store,
        blobs: &[BlobDigest],
        erasure: &mut Erasure,
    ) -> Result<(), RedactError> {
        let Some(seals) = self.shared.blobs.seals() else {
            return Ok(());
        };
        erasure.seals.sort_unstable();
        erasure.seals.dedup();
        for id in erasure.seals.clone() {
            let Some(Held::Alive(key)) = seals.get(id) else {
                continue;
            };
            for digest in blobs {
                let place = keys::sealed_blob(&key.place(digest)).to_vec();
                let found = store.get(&place).map_err(|e| ReadError::Store {
                    reason: e.to_string().into(),
                })?;
                let Some(found) = found else { continue };
                if let Some((&keys::SEALED_FILE, file)) = found.split_first()
                    && let Ok(file) = file.try_into()
                {
                    erasure.files.push(BlobDigest::from_bytes(file));
                }
                erasure.writes.push((place, keys::ERASED.to_vec()));
            }
        }
        Ok(())
    }

    fn erase_event(
        &self,
        store: &dyn Store,
        seq: GlobalSeq,
        erasure: &mut Erasure,
    ) -> Result<(), RedactError> {
        let head = self.head.position;
        if seq.position() > head {
            return Err(RedactError::UnknownSeq { seq, head });
        }
        let damaged = |reason: String| ReadError::Damaged {
            seq,
            reason: reason.into(),
        };
        let key = keys::event(seq);
        let found = store.get(&key).map_err(|e| damaged(e.to_string()))?;
        let found = found.ok_or_else(|| damaged("its record is missing".to_owned()))?;
        let found = record::decode(&found).map_err(|e| damaged(e.to_string()))?;
        match &found.body {
            Body::Inline(_) => erasure.has_open = true,
            Body::File(digest) => {
                erasure.has_open = true;
                erasure.files.push(*digest);
            }
            Body::Sealed(id, _) => erasure.seals.push(*id),
            Body::SealedFile(id, digest) => {
                erasure.seals.push(*id);
                erasure.files.push(*digest);
            }
            Body::Redacted => {}
        }
        let event = RecordedEvent {
            header: found.header,
            payload: Payload::Redacted,
            prev: found.prev,
            hash: found.hash,
        };
        if is_rotation(&event) {
            // Without it nobody could tell whose signature a checkpoint bears, nor open the ledger.
            let kind = event.header.kind;
            return Err(AppendError::KindReserved { kind }.into());
        }
        let record = record::encode(&event, &Body::Redacted);
        erasure.writes.push((key.to_vec(), record));
        erasure.events.push(Arc::new(event));
        Ok(())
    }

    /// Unlinks the files of erased blobs, and notes that it is done.
    fn unlink(&self, files: &[BlobDigest]) -> Result<(), StoreError> {
        match self.shared.store() {
            Some(store) if !files.is_empty() => unlink(&*store, &self.shared.blobs, files),
            _ => Ok(()),
        }
    }
}

/// Unlinks what a run that ended too early had left to unlink. Before anything else is done with
/// the blobs: from then on the same bytes may be stored again by someone who means it.
pub(crate) fn finish_unlinking(store: &dyn Store, blobs: &BlobStore) -> Result<(), StoreError> {
    let list = store.get(keys::UNLINK)?.unwrap_or_default();
    let (digests, rest) = list.as_chunks::<32>();
    if !rest.is_empty() {
        let reason = "the list of blobs to unlink is damaged";
        return Err(StoreError(reason.to_owned()));
    }
    let digests: Vec<BlobDigest> = digests.iter().map(|d| BlobDigest::from_bytes(*d)).collect();
    match digests.is_empty() {
        true => Ok(()),
        false => unlink(store, blobs, &digests),
    }
}

fn unlink(store: &dyn Store, blobs: &BlobStore, files: &[BlobDigest]) -> Result<(), StoreError> {
    for digest in files {
        blobs
            .remove(digest)
            .map_err(|e| StoreError(format!("blob {digest} cannot be unlinked: {e}")))?;
    }
    store.commit(&[(keys::UNLINK.to_vec(), Vec::new())])
}

fn unlink_list(files: &[BlobDigest]) -> Vec<u8> {
    files
        .iter()
        .flat_map(|digest| digest.as_bytes())
        .copied()
        .collect()
}

/// The blobs that hold payloads of events other than these. Reads every record, and is needed only
/// where a file is about to go.
fn payload_files(store: &dyn Store, but: &[GlobalSeq]) -> Result<HashSet<BlobDigest>, StoreError> {
    let mut files = HashSet::new();
    for entry in store.records(Position::START) {
        let (seq, bytes) = entry?;
        if let Some(digest) = record::payload_file(&bytes)
            && !but.contains(&seq)
        {
            files.insert(digest);
        }
    }
    Ok(files)
}

/// Whether the store still holds bytes that were erased.
pub(crate) fn is_pending(store: &dyn Store) -> Result<bool, StoreError> {
    Ok(count(store, keys::REDACTIONS)? != count(store, keys::REWRITTEN)?)
}

/// Changes with everything that takes something away from the ledger. What was derived from events
/// at another epoch may hold what is gone by now.
pub(crate) fn epoch(store: &dyn Store) -> Result<u64, StoreError> {
    Ok(count(store, keys::REDACTIONS)? + seal::destroyed_count(store)?)
}

/// A number in the store; zero where there is none.
pub(crate) fn count(store: &dyn Store, key: &[u8]) -> Result<u64, StoreError> {
    let Some(value) = store.get(key)? else {
        return Ok(0);
    };
    let value = <[u8; 8]>::try_from(value.as_ref());
    let value = value.map_err(|_| StoreError("a count in the store is no number".to_owned()))?;
    Ok(u64::from_be_bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::store;

    #[test]
    fn what_a_crash_left_to_unlink_is_unlinked_at_the_next_opening_and_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let store = store::open(&dir.path().join("ledger"), 8 << 20, &environment).unwrap();
        let blobs = BlobStore::open(&dir.path().join("blobs"), environment.disk).unwrap();
        let erased = blobs.put(b"erased").unwrap();
        let stays = blobs.put(b"stays").unwrap();
        // The batch of a redaction, and then the loss of power.
        let list = unlink_list(&[erased, BlobDigest::of(b"never there")]);
        store.commit(&[(keys::UNLINK.to_vec(), list)]).unwrap();

        finish_unlinking(&*store, &blobs).unwrap();
        assert!(!blobs.contains(&erased) && blobs.contains(&stays));
        // Whoever stores the same bytes afterwards means it.
        blobs.put(b"erased").unwrap();
        finish_unlinking(&*store, &blobs).unwrap();
        assert!(blobs.contains(&erased));

        store
            .commit(&[(keys::UNLINK.to_vec(), vec![1, 2, 3])])
            .unwrap();
        assert!(finish_unlinking(&*store, &blobs).is_err());
    }
}
