//! The tree in the store: its state when a ledger is opened, and proofs out of it.
//!
//! Nodes of level 8 and above are stored one by one, and below each of them its 256 leaves as one
//! value; the nodes in between are computed. All of it is in the batch of the event that makes it
//! complete. The leaves of the newest block, as long as it is not complete, are in memory: at an
//! opening they come from the events.
//!
//! A ledger of an earlier release has every node by itself, or events without nodes. The first is
//! read as it is; in the second what is missing is written when it is opened. What nodes there are is never trusted: at opening the root is computed from the events
//! themselves, and a proof is checked before it is handed out.

use bytes::Bytes;
use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::InclusionProof;
use fluxvm_verify::Position;
use fluxvm_verify::ProofError;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;

use crate::OpenError;
use crate::ReadError;
use crate::keys;
use crate::record;
use crate::record::RECORD_BYTES_MAX;
use crate::shared::Shared;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;

/// The level of the lowest nodes that are stored one by one. What is below one of them is a block,
/// and its leaves are one value: a key for every node would be two more for each event.
const BLOCK_LEVEL: u32 = 8;
/// How many leaves a block has.
pub(crate) const BLOCK_LEAVES: usize = 1 << BLOCK_LEVEL;
/// How many bytes it is stored in.
const BLOCK_BYTES: usize = BLOCK_LEAVES * 32;
/// How many writes are made at a time when nodes are made up for.
const BACKFILL_WRITES: usize = 128;

const _: () = assert!(BLOCK_BYTES <= RECORD_BYTES_MAX);

fn store_failed(error: StoreError) -> OpenError {
    OpenError::Store {
        reason: error.to_string(),
    }
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

/// A tree that grows, and what has to be written for it.
pub(crate) struct Growth {
    pub(crate) frontier: Frontier,
    /// The leaves of the events that were pushed.
    pub(crate) new_leaves: Vec<TreeHash>,
    pub(crate) writes: Vec<Write>,
    /// The leaves of the newest block.
    block: Vec<TreeHash>,
}

impl Growth {
    /// From here on; `leaves` are those of the newest block so far.
    pub(crate) fn of(frontier: Frontier, leaves: &[TreeHash]) -> Growth {
        Growth {
            frontier,
            new_leaves: Vec::new(),
            writes: Vec::new(),
            block: leaves.to_vec(),
        }
    }

    pub(crate) fn push(&mut self, event: &EventHash) {
        if self.block.len() >= BLOCK_LEAVES {
            self.block.clear();
        }
        let block = self.frontier.size().get() >> BLOCK_LEVEL;
        let mut level = 0;
        let (leaves, writes, block_leaves) =
            (&mut self.new_leaves, &mut self.writes, &mut self.block);
        self.frontier.push(event, |index, node| {
            if level == 0 {
                leaves.push(node);
                block_leaves.push(node);
            } else if level >= BLOCK_LEVEL {
                writes.push((keys::node(index).to_vec(), node.as_bytes().to_vec()));
            }
            level += 1;
        });
        if self.block.len() == BLOCK_LEAVES {
            let bytes = self
                .block
                .iter()
                .flat_map(|leaf| *leaf.as_bytes())
                .collect();
            self.writes.push((keys::tile(block).to_vec(), bytes));
        }
    }
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

/// A block whose leaves are at hand.
struct OpenBlock<'a> {
    number: u64,
    leaves: &'a [TreeHash],
}

/// A node of the tree, out of the store or computed from leaves.
fn stored_node(
    store: &dyn Store,
    index: u64,
    open: &OpenBlock<'_>,
) -> Result<Option<TreeHash>, StoreError> {
    let (level, number) = place_of(index);
    if level < BLOCK_LEVEL {
        let first = number << level;
        let block = first >> BLOCK_LEVEL;
        let within = usize::try_from(first % BLOCK_LEAVES as u64).unwrap_or_default();
        let below = within..within + (1 << level);
        if block == open.number
            && let Some(leaves) = open.leaves.get(below.clone())
        {
            return Ok(Some(node_above(leaves)));
        }
        if let Some(tile) = store.get(&keys::tile(block))? {
            let (leaves, _) = tile.as_chunks::<32>();
            let leaves = leaves.get(below).unwrap_or_default();
            let leaves: Vec<_> = leaves.iter().map(|it| TreeHash::from_bytes(*it)).collect();
            return Ok((leaves.len() == 1 << level).then(|| node_above(&leaves)));
        }
    }
    let node = store.get(&keys::node(index))?;
    Ok(node.and_then(|node| Some(TreeHash::from_bytes(node.as_ref().try_into().ok()?))))
}

/// A complete block with all nodes in it. Proofs for events of one session are often in the same.
pub(crate) struct Block {
    number: u64,
    /// Level after level, the leaves first.
    nodes: Vec<TreeHash>,
}

impl Block {
    /// The block that a node is in, where it is complete and stored as one.
    fn around(
        store: &dyn Store,
        index: u64,
        open: &OpenBlock<'_>,
    ) -> Result<Option<Block>, StoreError> {
        let (level, number) = place_of(index);
        let number = (number << level) >> BLOCK_LEVEL;
        if level >= BLOCK_LEVEL || number == open.number {
            return Ok(None);
        }
        let tile = store.get(&keys::tile(number))?;
        Ok(tile.and_then(|tile| {
            let (leaves, _) = tile.as_chunks::<BLOCK_BYTES>().0.first()?.as_chunks::<32>();
            let mut nodes: Vec<_> = leaves.iter().map(|it| TreeHash::from_bytes(*it)).collect();
            let mut first = 0;
            while let Some(level) = nodes.get(first..).filter(|level| level.len() > 1) {
                let (pairs, _) = level.as_chunks::<2>();
                let above = pairs
                    .iter()
                    .map(|[left, right]| TreeHash::node(left, right));
                let above: Vec<_> = above.collect();
                first += level.len();
                nodes.extend(above);
            }
            Some(Block { number, nodes })
        }))
    }

    /// The node with this number, if it is in the block.
    fn node(&self, index: u64) -> Option<TreeHash> {
        let (level, number) = place_of(index);
        let is_here = level < BLOCK_LEVEL && (number << level) >> BLOCK_LEVEL == self.number;
        let before = 2 * BLOCK_LEAVES - (2 * BLOCK_LEAVES).checked_shr(level)?;
        let within = usize::try_from(number % (BLOCK_LEAVES as u64 >> level.min(BLOCK_LEVEL)));
        self.nodes
            .get(before + within.ok()?)
            .copied()
            .filter(|_| is_here)
    }
}

/// The node above so many leaves, a power of two.
fn node_above(leaves: &[TreeHash]) -> TreeHash {
    match leaves {
        [leaf] => *leaf,
        leaves => {
            let (left, right) = leaves.split_at(leaves.len() / 2);
            TreeHash::node(&node_above(left), &node_above(right))
        }
    }
}

/// The level of the node with this number, and which of its level it is: what
/// [`merkle::stored_index`] numbers.
fn place_of(index: u64) -> (u32, u64) {
    // The leaf with which the node became complete is the last one with a number up to this one.
    // Leaves have every other number, or more.
    let mut leaf = index / 2;
    while merkle::stored_count(Position::new(leaf + 1)) <= index {
        leaf += 1;
    }
    let level = index - merkle::stored_count(Position::new(leaf));
    let level = u32::try_from(level).unwrap_or(u32::MAX);
    (level, leaf.checked_shr(level).unwrap_or_default())
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

impl Shared {
    /// Gives nodes of the tree, as it is in memory and in the store.
    fn nodes(&self) -> impl FnMut(u64) -> Result<TreeHash, ReadError> + '_ {
        // The open block is looked at before the store is, which then has every block that is no
        // longer open. What is durable does not change, so once is enough.
        let mut open = None;
        move |index| {
            let failed = |reason: String| ReadError::Store {
                reason: reason.into(),
            };
            if let Some(node) = self.latest_block().and_then(|block| block.node(index)) {
                return Ok(node);
            }
            let (number, leaves) = open.get_or_insert_with(|| {
                let memory = self.memory();
                let block = memory.end().get().saturating_sub(1) >> BLOCK_LEVEL;
                (block, memory.leaves().to_vec())
            });
            let open = OpenBlock {
                number: *number,
                leaves,
            };
            let store = self.store().ok_or(ReadError::Closed)?;
            let node = match Block::around(&*store, index, &open) {
                Ok(Some(block)) => {
                    let node = block.node(index);
                    self.keep_block(block);
                    Ok(node)
                }
                Ok(None) => stored_node(&*store, index, &open),
                Err(e) => Err(e),
            };
            let node = node.map_err(|e| failed(e.to_string()))?;
            node.ok_or_else(|| failed(format!("node {index} of the tree is missing")))
        }
    }

    fn check_durable(&self, size: Position) -> Result<(), ReadError> {
        let head = self.head().position;
        match size <= head {
            true => Ok(()),
            false => Err(ReadError::Proof(ProofError::Beyond {
                wanted: size.get(),
                size: head,
            })),
        }
    }

    pub(crate) fn root_at(&self, size: Position) -> Result<TreeHash, ReadError> {
        self.check_durable(size)?;
        merkle::root(size, self.nodes())
    }

    /// The path from an event to a root that is known, checked.
    pub(crate) fn path(
        &self,
        event: (GlobalSeq, &EventHash),
        size: Position,
        root: &TreeHash,
    ) -> Result<Vec<TreeHash>, ReadError> {
        self.check_durable(size)?;
        let (seq, hash) = event;
        let path = merkle::inclusion_path(seq, size, self.nodes())?;
        match merkle::verify_inclusion(hash, seq, size, &path, root) {
            Ok(()) => Ok(path),
            Err(_) => Err(ReadError::TreeDamaged { size }),
        }
    }

    pub(crate) fn inclusion_proof(
        &self,
        seq: GlobalSeq,
        checkpoint: &SignedCheckpoint,
    ) -> Result<InclusionProof, ReadError> {
        let size = checkpoint.size();
        if seq.position() > size {
            let wanted = seq.get();
            return Err(ReadError::Proof(ProofError::Beyond { wanted, size }));
        }
        self.check_durable(size)?;
        let event = self.read_one(seq)?;
        let path = self.path((seq, &event.hash), size, &checkpoint.root())?;
        Ok(InclusionProof {
            seq,
            path,
            checkpoint: checkpoint.clone(),
        })
    }

    pub(crate) fn consistency_proof(
        &self,
        from: Position,
        checkpoint: &SignedCheckpoint,
    ) -> Result<ConsistencyProof, ReadError> {
        let to = checkpoint.size();
        self.check_durable(to)?;
        let path = merkle::consistency_path(from, to, self.nodes())?;
        let from_root = self.root_at(from)?;
        let proof = ConsistencyProof {
            from,
            path,
            checkpoint: checkpoint.clone(),
        };
        match proof.verify(&from_root) {
            Ok(()) => Ok(proof),
            Err(_) => Err(ReadError::TreeDamaged { size: to }),
        }
    }

    pub(crate) fn checkpoint_at(
        &self,
        size: Position,
    ) -> Result<Option<SignedCheckpoint>, ReadError> {
        let failed = |reason: String| ReadError::Store {
            reason: reason.into(),
        };
        let store = self.store().ok_or(ReadError::Closed)?;
        let note = store.get(&keys::checkpoint(size));
        let Some(note) = note.map_err(|e| failed(e.to_string()))? else {
            return Ok(None);
        };
        let note = std::str::from_utf8(&note).map_err(|e| failed(e.to_string()))?;
        note.parse().map(Some).map_err(|e| failed(format!("{e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::store;

    /// Enough for two whole blocks and a part of one.
    const EVENTS: u64 = 2 * BLOCK_LEAVES as u64 + 77;

    fn hash(n: u64) -> EventHash {
        EventHash::from_bytes(*blake3::hash(&n.to_be_bytes()).as_bytes())
    }

    #[test]
    fn every_number_of_a_node_has_its_place() {
        for level in 0..12 {
            for n in [0, 1, 2, 3, 7, 100, 4095] {
                let index = merkle::stored_index(level, n);
                assert_eq!(place_of(index), (level, n));
            }
        }
    }

    #[test]
    fn a_node_out_of_a_block_is_the_one_that_was_stored_by_itself_before() {
        let dir = tempfile::tempdir().unwrap();
        let environment = Environment::default();
        let open = |name| store::open(&dir.path().join(name), 8 << 20, &environment).unwrap();
        let (blocks, nodes) = (open("blocks"), open("nodes"));
        let mut growth = Growth::of(Frontier::default(), &[]);
        let mut frontier = Frontier::default();
        let mut writes = Vec::new();
        for n in 0..EVENTS {
            growth.push(&hash(n));
            frontier.push(&hash(n), |index, node| {
                writes.push((keys::node(index).to_vec(), node.as_bytes().to_vec()));
            });
        }
        assert_eq!(growth.frontier, frontier);
        // Two blocks and the node above them, each block with the node above it.
        assert_eq!(growth.writes.len(), 2 + 3);
        blocks.commit(&growth.writes).unwrap();
        nodes.commit(&writes).unwrap();
        let open = OpenBlock {
            number: 2,
            leaves: &growth.block,
        };
        let nothing = OpenBlock {
            number: u64::MAX,
            leaves: &[],
        };
        for index in 0..merkle::stored_count(Position::new(EVENTS)) {
            let of_block = stored_node(&*blocks, index, &open).unwrap().unwrap();
            let by_itself = stored_node(&*nodes, index, &nothing).unwrap().unwrap();
            assert_eq!(of_block, by_itself, "{index}");
            if let Some(block) = Block::around(&*blocks, index, &open).unwrap() {
                assert_eq!(block.node(index), Some(by_itself), "{index}");
                assert_eq!(block.node(merkle::stored_index(0, 2 * 256)), None);
            }
        }
        let beyond = merkle::stored_index(0, EVENTS);
        assert_eq!(stored_node(&*blocks, beyond, &open).unwrap(), None);
    }
}
