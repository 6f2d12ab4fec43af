//! The tree in the store: its state when a ledger is opened, and proofs out of it.
//!
//! Nodes of level 8 and above are stored one by one, and below each of them its 256 leaves as one
//! value; the nodes in between are computed. All of it is in the batch of the event that makes it
//! complete. The leaves of the newest block, as long as it is not complete, are in memory: at an
//! opening they come from the events.
//!
//! A ledger of an earlier release has every node by itself, or events without nodes. The first is
//! read as it is; in the second what is missing is written when it is opened. What nodes there are
//! is never trusted: at opening the root is computed from the events themselves, and a proof is
//! checked before it is handed out.

mod blocks;
mod proofs;

use bytes::Bytes;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;

pub(crate) use blocks::BLOCK_LEAVES;
use blocks::BLOCK_LEVEL;
pub(crate) use blocks::Block;
pub(crate) use blocks::Growth;
use blocks::OpenBlock;
use blocks::stored_node;

use crate::OpenError;
use crate::keys;
use crate::record;
use crate::store::Store;
use crate::store::StoreError;

/// How many writes are made at a time when nodes are made up for.
const BACKFILL_WRITES: usize = 128;

fn store_failed(error: StoreError) -> OpenError {
    error.into()
}

/// The newest checkpoint in the store.
pub(crate) fn latest_checkpoint(store: &dyn Store) -> Result<Option<SignedCheckpoint>, OpenError> {
    let damaged = || OpenError::CheckpointDamaged;
    let Some(size) = store.get(keys::LAST_CHECKPOINT).map_err(store_failed)? else {
        return Ok(None);
    };
    if size.is_empty() {
        return Ok(None);
    }
    let size = u64::from_be_bytes(size.as_ref().try_into().map_err(|_| damaged())?);
    let note = store.get(&keys::checkpoint(Position::new(size)));
    let note = note.map_err(store_failed)?.ok_or_else(damaged)?;
    let note = std::str::from_utf8(&note).map_err(|_| damaged())?;
    let signed: SignedCheckpoint = note.parse().map_err(|_| damaged())?;
    match signed.size().get() == size {
        true => Ok(Some(signed)),
        false => Err(damaged()),
    }
}

/// Makes the newest checkpoint one that is about no more than `head` events, for a ledger that was
/// made again out of a copy that lacks the end. What was signed for that end is still held by
/// others, who will see that it is gone.
pub(crate) fn forget_beyond(store: &dyn Store, head: Position) -> Result<(), StoreError> {
    let first = keys::checkpoint(Position::START);
    let end = keys::checkpoint(Position::new(head.get().saturating_add(1)));
    let newest = store.range(first.as_slice()..end.as_slice()).last();
    let size = newest.transpose()?.map(|(key, _)| key.slice(1..).to_vec());
    let size = size.unwrap_or_default();
    store.commit(&[(keys::LAST_CHECKPOINT.to_vec(), size)])
}

/// The tree as it lies in the store. Nothing of it is to be trusted before a root was computed from
/// it.
pub(crate) struct StoredTree<'a> {
    store: &'a dyn Store,
    size: Position,
    /// The leaves of the block that is not complete at this size.
    leaves: Vec<TreeHash>,
}

impl<'a> StoredTree<'a> {
    /// The tree of this size. The leaves that no block has are those of the events themselves.
    pub(crate) fn at(store: &'a dyn Store, size: Position) -> Result<StoredTree<'a>, OpenError> {
        let first = Position::new(size.get() >> BLOCK_LEVEL << BLOCK_LEVEL);
        let mut leaves = Vec::new();
        for entry in store.records(first) {
            let (seq, record) = entry.map_err(store_failed)?;
            if seq.position() > size {
                break;
            }
            leaves.push(TreeHash::leaf(&hash_of(seq, &record)?));
        }
        match u64::try_from(leaves.len()) == Ok(size.get() - first.get()) {
            true => Ok(StoredTree {
                store,
                size,
                leaves,
            }),
            false => Err(OpenError::TreeDamaged { size }),
        }
    }

    /// Its edge.
    pub(crate) fn frontier(&self) -> Result<Frontier, OpenError> {
        let size = self.size;
        let read = Frontier::read(size, |index| self.node(index));
        read.map_err(|_: OpenError| OpenError::TreeDamaged { size })
    }

    /// Its root when it had this size.
    pub(crate) fn root_at(&self, size: Position) -> Result<TreeHash, OpenError> {
        merkle::root(size, |index| self.node(index))
    }

    /// The leaves of the block that is not complete.
    pub(crate) fn into_leaves(self) -> Vec<TreeHash> {
        self.leaves
    }

    fn node(&self, index: u64) -> Result<TreeHash, OpenError> {
        let open = OpenBlock {
            number: self.size.get() >> BLOCK_LEVEL,
            leaves: &self.leaves,
        };
        let node = stored_node(self.store, index, &open).map_err(store_failed)?;
        node.ok_or(OpenError::TreeDamaged { size: self.size })
    }
}

/// The hash of the event in a record, which is checked.
fn hash_of(seq: GlobalSeq, record: &Bytes) -> Result<EventHash, OpenError> {
    let record = record::decode(record).map_err(|e| OpenError::Damaged {
        seq,
        reason: e.to_string(),
    })?;
    Ok(record.hash)
}

/// Makes the stored tree that of `frontier`, which was computed from the events, with these leaves
/// in its newest block: missing nodes are written, other nodes are an error.
pub(crate) fn complete(
    store: &dyn Store,
    frontier: &Frontier,
    leaves: &[TreeHash],
) -> Result<(), OpenError> {
    let size = frontier.size();
    let blocks = size.get() >> BLOCK_LEVEL;
    let stored = blocks_stored(store, blocks)?;
    if stored < blocks {
        backfill(store, stored, blocks)?;
    }
    let is_open = leaves.len() < BLOCK_LEAVES;
    let tree = StoredTree {
        store,
        size,
        leaves: leaves.iter().filter(|_| is_open).copied().collect(),
    };
    match tree.frontier()? == *frontier {
        true => Ok(()),
        false => Err(OpenError::TreeDamaged { size }),
    }
}

/// How many of the blocks have their nodes stored.
fn blocks_stored(store: &dyn Store, blocks: u64) -> Result<u64, OpenError> {
    let is_stored = |blocks: u64| match blocks.checked_sub(1) {
        Some(last) => {
            let top = keys::node(merkle::stored_index(BLOCK_LEVEL, last));
            store.contains(&top).map_err(store_failed)
        }
        None => Ok(true),
    };
    if is_stored(blocks)? {
        return Ok(blocks);
    }
    // Nodes are missing at the end only: whoever wrote none did so from some event on.
    let (mut low, mut high) = (0, blocks);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match is_stored(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

fn backfill(store: &dyn Store, from: u64, to: u64) -> Result<(), OpenError> {
    let (from, to) = (
        Position::new(from << BLOCK_LEVEL),
        Position::new(to << BLOCK_LEVEL),
    );
    tracing::info!(%from, %to, "writing nodes of the tree that an earlier release did not");
    let mut growth = Growth::of(StoredTree::at(store, from)?.frontier()?, &[]);
    for entry in store.records(from) {
        let (seq, record) = entry.map_err(store_failed)?;
        if seq.position() > to {
            break;
        }
        growth.push(&hash_of(seq, &record)?);
        if growth.writes.len() >= BACKFILL_WRITES {
            store.commit(&growth.writes).map_err(store_failed)?;
            growth.writes.clear();
        }
    }
    match growth.writes.is_empty() {
        true => Ok(()),
        false => store.commit(&growth.writes).map_err(store_failed),
    }
}
