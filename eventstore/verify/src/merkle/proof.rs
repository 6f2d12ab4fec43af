//! Proofs out of the tree, and how they are checked, as RFC 9162 lays both down.

use super::ProofError;
use super::TreeHash;
use super::check_size;
use super::part_root;
use super::split_of;
use crate::EventHash;
use crate::GlobalSeq;
use crate::Position;

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
