//! Blocks of leaves: the lower levels of the tree, 256 events a value.

use fluxvm_verify::EventHash;
use fluxvm_verify::Position;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;

use crate::keys;
use crate::record::RECORD_BYTES_MAX;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;

/// The level of the lowest nodes that are stored one by one. What is below one of them is a block,
/// and its leaves are one value: a key for every node would be two more for each event.
pub(super) const BLOCK_LEVEL: u32 = 8;
/// How many leaves a block has.
pub(crate) const BLOCK_LEAVES: usize = 1 << BLOCK_LEVEL;
/// How many bytes it is stored in.
const BLOCK_BYTES: usize = BLOCK_LEAVES * 32;

const _: () = assert!(BLOCK_BYTES <= RECORD_BYTES_MAX);

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

/// A block whose leaves are at hand.
pub(super) struct OpenBlock<'a> {
    pub(super) number: u64,
    pub(super) leaves: &'a [TreeHash],
}

/// A node of the tree, out of the store or computed from leaves.
pub(super) fn stored_node(
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
    pub(super) fn around(
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
    pub(super) fn node(&self, index: u64) -> Option<TreeHash> {
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
pub(super) fn place_of(index: u64) -> (u32, u64) {
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
