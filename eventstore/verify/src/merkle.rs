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

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::Serializer;
use sha2::Digest as _;
use sha2::Sha256;

use crate::EventHash;
use crate::GlobalSeq;
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

/// The hashes that lead from an event to the root of the tree of this size, the lowest first.
pub fn inclusion_path<E: From<ProofError>>(
    seq: GlobalSeq,
    size: Position,
    mut stored: impl FnMut(u64) -> Result<TreeHash, E>,
) -> Result<Vec<TreeHash>, E> {
    check_size(size)?;
    check_within(seq, size)?;
    let leaf = seq.get() - 1;
    let (mut first, mut events) = (0, size.get());
    let mut path = Vec::new();
    // From the root down: at each step the half that the event is not in belongs to the proof.
    while events > 1 {
        let split = split_of(events);
        if leaf < first + split {
            path.push(part_root(first + split, events - split, &mut stored)?);
            events = split;
        } else {
            path.push(part_root(first, split, &mut stored)?);
            first += split;
            events -= split;
        }
    }
    path.reverse();
    Ok(path)
}

fn check_within(seq: GlobalSeq, size: Position) -> Result<(), ProofError> {
    let wanted = seq.get();
    match seq.position() <= size {
        true => Ok(()),
        false => Err(ProofError::Beyond { wanted, size }),
    }
}

/// How many hashes lead from an event to the root of a tree.
pub fn inclusion_path_length(seq: GlobalSeq, size: Position) -> Result<usize, ProofError> {
    check_size(size)?;
    check_within(seq, size)?;
    let (leaf, last) = (seq.get() - 1, size.get() - 1);
    // Up to where the event's way and that of the last event meet there is a sibling at every
    // level; above that, the event is on the right edge and has siblings on its left only.
    let inner = u64::BITS - (leaf ^ last).leading_zeros();
    let border = (leaf >> inner).count_ones();
    Ok(usize::try_from(inner + border).unwrap_or(usize::MAX))
}

/// The root that a proof leads to from an event.
pub fn root_of_inclusion(
    event: &EventHash,
    seq: GlobalSeq,
    size: Position,
    path: &[TreeHash],
) -> Result<TreeHash, ProofError> {
    let wanted = inclusion_path_length(seq, size)?;
    if path.len() != wanted {
        let found = path.len();
        return Err(ProofError::Length { found, wanted });
    }
    let (mut index, mut last) = (seq.get() - 1, size.get() - 1);
    let mut node = TreeHash::leaf(event);
    for sibling in path {
        if index & 1 == 1 || index == last {
            node = TreeHash::node(sibling, &node);
            // On the right edge, levels without a sibling are passed over.
            while index & 1 == 0 && index != 0 {
                index >>= 1;
                last >>= 1;
            }
        } else {
            node = TreeHash::node(&node, sibling);
        }
        index >>= 1;
        last >>= 1;
    }
    Ok(node)
}

/// Checks that the event is in the tree with this root.
pub fn verify_inclusion(
    event: &EventHash,
    seq: GlobalSeq,
    size: Position,
    path: &[TreeHash],
    root: &TreeHash,
) -> Result<(), ProofError> {
    match root_of_inclusion(event, seq, size, path)? == *root {
        true => Ok(()),
        false => Err(ProofError::Root),
    }
}

/// The hashes that show the tree of `from` events to be the beginning of that of `to` events.
pub fn consistency_path<E: From<ProofError>>(
    from: Position,
    to: Position,
    mut stored: impl FnMut(u64) -> Result<TreeHash, E>,
) -> Result<Vec<TreeHash>, E> {
    check_size(to)?;
    check_older(from, to)?;
    let mut path = Vec::new();
    if from == to || from == Position::START {
        return Ok(path);
    }
    let (mut first, mut events, mut old) = (0, to.get(), from.get());
    // Whether what is left of the older tree is the older tree itself, which the reader knows.
    let mut is_whole = true;
    while old != events {
        let split = split_of(events);
        if old <= split {
            path.push(part_root(first + split, events - split, &mut stored)?);
            events = split;
        } else {
            path.push(part_root(first, split, &mut stored)?);
            first += split;
            events -= split;
            old -= split;
            is_whole = false;
        }
    }
    if !is_whole {
        path.push(part_root(first, events, &mut stored)?);
    }
    path.reverse();
    Ok(path)
}

fn check_older(from: Position, to: Position) -> Result<(), ProofError> {
    match from <= to {
        true => Ok(()),
        false => Err(ProofError::Beyond {
            wanted: from.get(),
            size: to,
        }),
    }
}

/// Checks that the tree with the root `from_root` is the beginning of the one with `to_root`.
pub fn verify_consistency(
    from: (Position, &TreeHash),
    to: (Position, &TreeHash),
    path: &[TreeHash],
) -> Result<(), ProofError> {
    let ((from, from_root), (to, to_root)) = (from, to);
    check_size(to)?;
    check_older(from, to)?;
    if from == to || from == Position::START {
        let expected = if from == to {
            *to_root
        } else {
            TreeHash::of_nothing()
        };
        return match (path.len(), *from_root == expected) {
            (0, true) => Ok(()),
            (0, false) => Err(ProofError::Root),
            (found, _) => Err(ProofError::Length { found, wanted: 0 }),
        };
    }
    let too_short = || ProofError::Length {
        found: path.len(),
        wanted: path.len() + 1,
    };
    let mut hashes = path.iter();
    // The older tree's last complete part starts both roots; a tree that is one part is its root.
    let start = match from.get().is_power_of_two() {
        true => from_root,
        false => hashes.next().ok_or_else(too_short)?,
    };
    let (mut index, mut last) = (from.get() - 1, to.get() - 1);
    while index & 1 == 1 {
        index >>= 1;
        last >>= 1;
    }
    let (mut old, mut new) = (*start, *start);
    while last != 0 {
        if index & 1 == 1 || index == last {
            let left = hashes.next().ok_or_else(too_short)?;
            old = TreeHash::node(left, &old);
            new = TreeHash::node(left, &new);
            while index & 1 == 0 && index != 0 {
                index >>= 1;
                last >>= 1;
            }
        } else {
            let right = hashes.next().ok_or_else(too_short)?;
            new = TreeHash::node(&new, right);
        }
        index >>= 1;
        last >>= 1;
    }
    if hashes.next().is_some() {
        let (found, left) = (path.len(), hashes.count() + 1);
        let wanted = found.saturating_sub(left);
        return Err(ProofError::Length { found, wanted });
    }
    match old == *from_root && new == *to_root {
        true => Ok(()),
        false => Err(ProofError::Root),
    }
}
