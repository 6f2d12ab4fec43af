//! The keys of the store's one tree.
//!
//! ```text
//! e ‖ seq u64       the record of an event
//! b ‖ digest 32     a small blob: its bytes, whose plain BLAKE3 is the digest
//! s ‖ place 32      a sealed blob: see `seal_blob`
//! y ‖ id 16         a sealed stream: see `seal`
//! m ‖ "format"      u16, the format of the ledger
//! m ‖ "genesis"     the encoded genesis
//! m ‖ "redactions"  u64, how many redactions there were
//! m ‖ "rewritten"   u64, how many of them the store was written anew after
//! m ‖ "unlink"      32 each: erased blobs whose files are still to be unlinked
//! m ‖ "checkpoint"  u64, the size of the newest signed checkpoint
//! t ‖ n u64         the 256 leaves below the nth node of level 8 of the Merkle tree
//! h ‖ index u64     32 bytes, a node of the tree, of level 8 or above; of any level where an
//!                   earlier release wrote it
//! k ‖ size u64      a signed checkpoint, as a note
//! ```
//!
//! A small or sealed blob that was erased has no bytes, until the store is written anew without it.
//!
//! One tree, because a batch is atomic within a tree only. Integers are big-endian, so that the
//! order of the keys is the order of the events.

use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;

use crate::blobs::BlobDigest;

const EVENT: u8 = b'e';
const BLOB: u8 = b'b';
const NODE: u8 = b'h';
const TILE: u8 = b't';
const CHECKPOINT: u8 = b'k';
const SEALED_BLOB: u8 = b's';
const SEAL: u8 = b'y';

/// The first key of all sealed streams, and the first one behind them.
pub(crate) const SEALS: (&[u8], &[u8]) = (&[SEAL], &[SEAL + 1]);

/// Where the format of the ledger is written.
pub(crate) const FORMAT: &[u8] = b"mformat";
/// Where the genesis is written.
pub(crate) const GENESIS: &[u8] = b"mgenesis";
/// Where it is written how many redactions there were.
pub(crate) const REDACTIONS: &[u8] = b"mredactions";
/// Where it is written how many of them had been made when the store was last written anew.
pub(crate) const REWRITTEN: &[u8] = b"mrewritten";
/// Where the names of the blobs are that are still to be unlinked.
pub(crate) const UNLINK: &[u8] = b"munlink";
/// What lies under the key of a small blob that was erased.
pub(crate) const ERASED: &[u8] = b"";

/// Where the size of the newest signed checkpoint is written.
pub(crate) const LAST_CHECKPOINT: &[u8] = b"mcheckpoint";

/// How the value of a sealed blob begins whose sealed bytes follow.
pub(crate) const SEALED_INLINE: u8 = 0;
/// The same where the plain BLAKE3 of the sealed bytes follows: the name of the file that holds them.
pub(crate) const SEALED_FILE: u8 = 1;

/// The first key behind all events.
pub(crate) const EVENTS_END: &[u8] = &[EVENT + 1];

/// The key of an event's record.
pub(crate) fn event(seq: GlobalSeq) -> [u8; 9] {
    numbered(EVENT, seq.get())
}

/// The key of a node of the tree.
pub(crate) fn node(index: u64) -> [u8; 9] {
    numbered(NODE, index)
}

/// The key of the leaves of a complete block.
pub(crate) fn tile(block: u64) -> [u8; 9] {
    numbered(TILE, block)
}

/// The key of a signed checkpoint.
pub(crate) fn checkpoint(size: Position) -> [u8; 9] {
    numbered(CHECKPOINT, size.get())
}

/// The size that the checkpoint under `key` is of.
pub(crate) fn checkpoint_size(key: &[u8]) -> Option<Position> {
    let number = key.strip_prefix(&[CHECKPOINT])?.try_into().ok()?;
    Some(Position::new(u64::from_be_bytes(number)))
}

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    if let Some(bytes) = key.last_chunk_mut::<8>() {
        *bytes = number.to_be_bytes();
    }
    key
}

/// The event whose record lies under `key`.
pub(crate) fn event_seq(key: &[u8]) -> Option<GlobalSeq> {
    let (EVENT, number) = key.split_first().map(|(first, rest)| (*first, rest))? else {
        return None;
    };
    GlobalSeq::new(u64::from_be_bytes(number.try_into().ok()?))
}

/// The key of a small blob.
pub(crate) fn blob(digest: &BlobDigest) -> [u8; 33] {
    let mut key = [BLOB; 33];
    if let Some(bytes) = key.last_chunk_mut::<32>() {
        *bytes = *digest.as_bytes();
    }
    key
}

/// The key of a sealed blob, by the place that its stream's key gives it.
pub(crate) fn sealed_blob(place: &[u8; 32]) -> [u8; 33] {
    let mut key = [SEALED_BLOB; 33];
    if let Some(bytes) = key.last_chunk_mut::<32>() {
        *bytes = *place;
    }
    key
}

/// The key of what is noted of a sealed stream.
pub(crate) fn seal(id: &[u8; 16]) -> [u8; 17] {
    let mut key = [SEAL; 17];
    if let Some(bytes) = key.last_chunk_mut::<16>() {
        *bytes = *id;
    }
    key
}

/// Whether this is what is left of a small or sealed blob that was erased.
pub(crate) fn is_erased_blob(key: &[u8], value: &[u8]) -> bool {
    let is_blob = matches!(key.first(), Some(&BLOB | &SEALED_BLOB));
    is_blob && value == ERASED && key != blob(&BlobDigest::of(ERASED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_keys_is_the_order_of_the_events() {
        let seqs = [1, 2, 255, 256, 65_536, u64::MAX].map(|seq| GlobalSeq::new(seq).unwrap());
        let keys = seqs.map(event);
        assert!(keys.is_sorted() && keys.iter().all(|key| key.as_slice() < EVENTS_END));
        assert_eq!(keys.map(|key| event_seq(&key).unwrap()), seqs);
    }

    #[test]
    fn no_other_key_is_taken_for_an_event() {
        let blob = blob(&BlobDigest::from_bytes([b'e'; 32]));
        for key in [
            &b""[..],
            b"e",
            b"e1234567",
            b"e\0\0\0\0\0\0\0\0",
            FORMAT,
            GENESIS,
            &blob,
        ] {
            assert_eq!(event_seq(key), None);
        }
    }
}
