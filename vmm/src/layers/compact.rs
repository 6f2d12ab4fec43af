//! Keeping chains short: a mount, a look-up and a check cost something for each layer.
//!
//! Neighbouring small layers become one. Files are shared by hard link, which is safe because
//! neither layer ever changes; paths that a higher one of them replaced are left out. A layer takes
//! part only while it is small beside its neighbours, so that each path is linked again a few times
//! in all, however many captures there are.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::draft::Owners;
use super::entry::Node;
use super::fold::Fold;
use super::manifest::Manifest;
use super::store::{Pin, Published, Store};
use super::tree::Tree;
use super::xattr::Attributes;
use super::{LayerRef, TREE, os};
use crate::error::SnapshotError;

/// Layers of one size that become one. Fewer would link more often, more would make chains longer;
/// with this a chain of thousands of captures has some thirty layers.
const RUN_LENGTH: usize = 8;
/// Layers of up to this many paths count as the smallest.
const SMALL_PATHS: u64 = 64;
/// Each size holds this many times more.
const SIZE_FACTOR: u64 = 8;

/// How many layers at the end of a chain are to become one, if any.
fn run(chain: &[LayerRef]) -> Option<usize> {
    let largest = chain.iter().map(|layer| size(layer.paths)).max()?;
    (0..=largest).find_map(|limit| {
        let sizes = chain.iter().rev().map(|layer| size(layer.paths));
        let run: Vec<u32> = sizes.take_while(|size| *size <= limit).collect();
        let alike = run.iter().filter(|size| **size == limit).count();
        (alike >= RUN_LENGTH).then_some(run.len())
    })
}

fn size(paths: u64) -> u32 {
    let mut size = 0;
    let mut limit = SMALL_PATHS;
    while paths > limit {
        size += 1;
        limit = limit.saturating_mul(SIZE_FACTOR);
    }
    size
}

/// Shortens a chain where that is due. The pins keep the new layers until something stands on them.
pub(crate) fn compact(
    store: &Arc<Store>,
    chain: &mut Vec<LayerRef>,
    owners: Owners,
    attributes: Attributes,
) -> Result<Vec<Pin>, SnapshotError> {
    let mut pins = Vec::new();
    while let Some(length) = run(chain) {
        let part = chain.split_off(chain.len() - length);
        let merged = merge(store, &part, owners, attributes)?;
        pins.push(merged.pin);
        chain.push(merged.layer);
    }
    Ok(pins)
}

fn merge(
    store: &Arc<Store>,
    layers: &[LayerRef],
    owners: Owners,
    attributes: Attributes,
) -> Result<Published, SnapshotError> {
    let manifests: Vec<Arc<Manifest>> = layers
        .iter()
        .map(|layer| {
            store
                .load(layer.id)
                .map(|loaded| Arc::clone(&loaded.manifest))
        })
        .collect::<Result<_, _>>()?;
    let trees: Vec<Tree> = layers
        .iter()
        .map(|layer| open(&store.layer_dir(layer.id).join(TREE)))
        .collect::<Result<_, _>>()?;
    let fold = Fold::of(&manifests);
    let mut draft = store.draft(owners, attributes)?;
    let mut numbers: HashMap<(usize, u32), u32> = HashMap::new();
    for (path, found) in fold.paths {
        let mut entry = found.entry;
        if let Some(group) = entry.group {
            let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
            entry.group = Some(*numbers.entry((found.layer, group)).or_insert(next));
        }
        if let (Node::File { .. }, Some(tree)) = (&entry.node, trees.get(found.layer)) {
            draft.share(tree, &path)?;
        }
        draft.add(path, entry);
    }
    store.publish(draft)
}

fn open(path: &Path) -> Result<Tree, SnapshotError> {
    Tree::open(path).map_err(os(|| format!("opening {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_grows_with_the_logarithm_of_its_captures() {
        let mut chain: Vec<LayerRef> = Vec::new();
        let mut longest = 0;
        let mut linked = 0;
        let layer = |paths| LayerRef {
            id: super::super::LayerId::random(),
            paths,
        };
        chain.push(layer(5000));
        for _ in 0..5000 {
            chain.push(layer(12));
            while let Some(length) = run(&chain) {
                let part = chain.split_off(chain.len() - length);
                let paths: u64 = part.iter().map(|layer| layer.paths).sum();
                linked += paths;
                chain.push(layer(paths));
            }
            longest = longest.max(chain.len());
        }
        assert!(longest <= 40, "{longest}");
        assert!(linked <= 5000 * 12 * 8, "{linked}");
    }
}
