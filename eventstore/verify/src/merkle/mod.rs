//! A Merkle tree over the event hashes, as RFC 6962 builds it.
//!
//! ```text
//! leaf = SHA-256( 0x00 ‖ event hash 32 )          leaf n belongs to event n + 1
//! node = SHA-256( 0x01 ‖ left 32 ‖ right 32 )
//! root of no events = SHA-256 of nothing
//! ```
//!
//! The tree is what makes one event provable without all the others, and one state of the ledger
//! provable as the beginning of a later one. It is stored as the checksum database of Go stores
//! its own: every complete node once, under one number, in the order in which they become complete
//! ([`stored_index`]). A tree of `n` events then has its nodes under the numbers below
//! [`stored_count`], and every proof reads a few of them.
//!
//! Nothing here trusts what it is given: a proof that is too short, too long or about an event
//! beyond the tree is refused with a word of its own, and no loop runs longer than a number has
//! bits.

mod proof;

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::Serializer;
use sha2::Digest as _;
use sha2::Sha256;

pub use proof::consistency_path;
pub use proof::inclusion_path;
pub use proof::inclusion_path_length;
pub use proof::root_of_inclusion;
pub use proof::verify_consistency;
pub use proof::verify_inclusion;

use crate::EventHash;
use crate::HashParseError;
use crate::Position;

/// The most hashes that a proof can hold: one for each bit of a tree's size.
pub const PROOF_HASHES_MAX: usize = 63;

/// The largest tree that is proven anything about: far beyond any ledger, and far enough from the
/// end of the numbers for a node's number to fit as well.
pub const TREE_EVENTS_MAX: u64 = 1 << 62;

/// A node of the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeHash([u8; 32]);

impl TreeHash {
    /// The node with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> TreeHash {
        TreeHash(bytes)
    }

    /// The thirty-two bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The leaf of an event.
    pub fn leaf(event: &EventHash) -> TreeHash {
        hashed(&[&[0], event.as_bytes()])
    }

    /// The node above two others.
    pub fn node(left: &TreeHash, right: &TreeHash) -> TreeHash {
        hashed(&[&[1], &left.0, &right.0])
    }

    /// The root of a tree without events.
    pub fn of_nothing() -> TreeHash {
        hashed(&[])
    }

    /// The form that checkpoints and proofs have it in.
    pub fn to_base64(self) -> String {
        BASE64.encode(self.0)
    }

    /// Reads that form, of which each hash has exactly one.
    pub fn parse_base64(text: &str) -> Option<TreeHash> {
        // The decoder refuses missing padding and stray bits at the end.
        let bytes: [u8; 32] = BASE64.decode(text).ok()?.try_into().ok()?;
        Some(TreeHash(bytes))
    }
}

fn hashed(parts: &[&[u8]]) -> TreeHash {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    TreeHash(hasher.finalize().into())
}

impl fmt::Display for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for TreeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TreeHash({self})")
    }
}

impl FromStr for TreeHash {
    type Err = HashParseError;

    fn from_str(text: &str) -> Result<TreeHash, HashParseError> {
        let hash: EventHash = text.parse()?;
        Ok(TreeHash(*hash.as_bytes()))
    }
}

impl Serialize for TreeHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why something cannot be proven, or a proof does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The event, or the older tree, lies beyond the tree.
    #[error("{wanted} lies beyond a tree of {size} events")]
    Beyond {
        /// The event or the size that was asked about.
        wanted: u64,
        /// How many events the tree has.
        size: Position,
    },
    /// The tree is larger than any tree may be.
    #[error("a tree of {size} events is above the limit of {TREE_EVENTS_MAX}")]
    TooLarge {
        /// Its size.
        size: Position,
    },
    /// The proof does not have the number of hashes that its place in the tree asks for.
    #[error("the proof has {found} hashes where {wanted} belong")]
    Length {
        /// How many it has.
        found: usize,
        /// How many it must have.
        wanted: usize,
    },
    /// The proof leads to another root.
    #[error("the proof leads to another root")]
    Root,
}

/// The number under which a node is stored: the `n`th of its level, where level 0 has the leaves.
pub fn stored_index(level: u32, n: u64) -> u64 {
    // The last leaf below the node; the node is complete when that leaf is there.
    let leaf = ((n + 1) << level) - 1;
    let mut index = 0;
    let mut rest = leaf;
    while rest > 0 {
        index += rest;
        rest >>= 1;
    }
    index + u64::from(level)
}

/// How many nodes a tree of this size has stored.
pub fn stored_count(size: Position) -> u64 {
    let mut count = 0;
    let mut rest = size.get();
    while rest > 0 {
        count += rest;
        rest >>= 1;
    }
    count
}

/// The right edge of a growing tree: the roots of its complete parts, the largest first. Enough to
/// append to the tree and to know its root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    events: u64,
    parts: Vec<TreeHash>,
}

impl Frontier {
    /// The edge of the tree of this size, out of stored nodes.
    pub fn read<E: From<ProofError>>(
        size: Position,
        mut stored: impl FnMut(u64) -> Result<TreeHash, E>,
    ) -> Result<Frontier, E> {
        check_size(size)?;
        let mut parts = Vec::new();
        let mut first = 0;
        for level in (0..u64::BITS).rev() {
            if size.get() & (1 << level) != 0 {
                parts.push(stored(stored_index(level, first >> level))?);
                first += 1 << level;
            }
        }
        Ok(Frontier {
            events: size.get(),
            parts,
        })
    }

    /// How many events the tree has.
    pub fn size(&self) -> Position {
        Position::new(self.events)
    }

    /// Appends an event. Each node that becomes complete is given to `store` with its number.
    pub fn push(&mut self, event: &EventHash, mut store: impl FnMut(u64, TreeHash)) {
        let mut number = stored_count(self.size());
        let mut node = TreeHash::leaf(event);
        store(number, node);
        let mut complete = self.events;
        while complete & 1 == 1 {
            let Some(left) = self.parts.pop() else { break };
            node = TreeHash::node(&left, &node);
            number += 1;
            store(number, node);
            complete >>= 1;
        }
        self.parts.push(node);
        self.events += 1;
    }

    /// The root of the tree as it is now.
    pub fn root(&self) -> TreeHash {
        let mut parts = self.parts.iter().rev().copied();
        let smallest = parts.next().unwrap_or_else(TreeHash::of_nothing);
        parts.fold(smallest, |right, left| TreeHash::node(&left, &right))
    }
}

fn check_size(size: Position) -> Result<(), ProofError> {
    match size.get() <= TREE_EVENTS_MAX {
        true => Ok(()),
        false => Err(ProofError::TooLarge { size }),
    }
}

/// The largest power of two below `n`, for `n` of at least 2.
fn split_of(n: u64) -> u64 {
    1 << (n - 1).ilog2()
}

/// The root of the events from `first` on, `events` of them. `first` must be a multiple of the
/// power of two that is at least `events`, as all parts of a tree are.
fn part_root<E>(
    first: u64,
    events: u64,
    stored: &mut impl FnMut(u64) -> Result<TreeHash, E>,
) -> Result<TreeHash, E> {
    if events.is_power_of_two() {
        let level = events.ilog2();
        return stored(stored_index(level, first >> level));
    }
    let split = split_of(events);
    let left = part_root(first, split, stored)?;
    let right = part_root(first + split, events - split, stored)?;
    Ok(TreeHash::node(&left, &right))
}

/// The root of the tree of this size, out of stored nodes.
pub fn root<E: From<ProofError>>(
    size: Position,
    mut stored: impl FnMut(u64) -> Result<TreeHash, E>,
) -> Result<TreeHash, E> {
    check_size(size)?;
    match size.get() {
        0 => Ok(TreeHash::of_nothing()),
        events => part_root(0, events, &mut stored),
    }
}
