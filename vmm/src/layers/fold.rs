//! Several layers seen as one, the way an overlay shows them.
//!
//! The fold is associative: folding two neighbours first gives the same. So a chain may be
//! compacted, and its digest stays what it was.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::entry::{Entry, Node};
use super::manifest::Manifest;
use super::path::LayerPath;
use crate::snapshot::ContentDigest;

/// Separates these digests from all others.
const DIGEST_CONTEXT: &[u8] = b"fluxvm disk 1\n";

/// One path of a fold, and which layer of those that were folded has it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    /// Counted from the bottom.
    pub(crate) layer: usize,
}

/// What a chain of layers says about each path: all that differs from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fold {
    pub(crate) paths: BTreeMap<LayerPath, Found>,
    layers: usize,
}

impl Fold {
    /// Folds layers, the lowest first.
    pub(crate) fn of(layers: &[Arc<Manifest>]) -> Self {
        let mut fold = Self::default();
        for layer in layers {
            fold.put_over(layer);
        }
        fold
    }

    /// Puts a layer over those that are folded already.
    pub(crate) fn put_over(&mut self, manifest: &Manifest) {
        let layer = self.layers;
        self.layers += 1;
        for (path, entry) in &manifest.entries {
            let mut entry = entry.clone();
            match &mut entry.node {
                Node::Folder { opaque } => {
                    if *opaque {
                        self.forget_below(path);
                    }
                    *opaque |= match self.paths.get(path).map(|found| &found.entry.node) {
                        Some(Node::Folder { opaque }) => *opaque,
                        // A file or a mark hid everything further below.
                        Some(_) => true,
                        None => false,
                    };
                }
                _ => self.forget_below(path),
            }
            self.paths.insert(path.clone(), Found { entry, layer });
        }
    }

    fn forget_below(&mut self, folder: &LayerPath) {
        let gone: Vec<LayerPath> = self.below(folder).map(|(path, _)| path.clone()).collect();
        for path in gone {
            self.paths.remove(&path);
        }
    }

    /// Everything below a folder, without the folder.
    pub(crate) fn below(
        &self,
        folder: &LayerPath,
    ) -> impl Iterator<Item = (&LayerPath, &Found)> + use<'_> {
        let prefix = folder.prefix();
        let from = Bound::Excluded(LayerPath::from(prefix.as_slice()));
        let all = self.paths.range((from, Bound::Unbounded));
        all.take_while(move |(path, _)| path.as_bytes().starts_with(&prefix))
    }

    /// The first name, in order, of each file with several names, under the layer and number that
    /// stand for the file.
    pub(crate) fn first_names(&self) -> HashMap<(usize, u32), &LayerPath> {
        let mut first = HashMap::new();
        for (path, found) in &self.paths {
            if let Some(group) = found.entry.group {
                first.entry((found.layer, group)).or_insert(path);
            }
        }
        first
    }

    /// The digest of the disk. Equal ones are equal disks over the same image.
    pub(crate) fn digest(&self, owner_base: u32) -> ContentDigest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DIGEST_CONTEXT);
        let first_names = self.first_names();
        for (path, found) in &self.paths {
            let group = found.entry.group.map(|group| (found.layer, group));
            let first = group.and_then(|group| first_names.get(&group).copied());
            let first = first.filter(|first| *first != path);
            found
                .entry
                .digest_into(&mut hasher, path, owner_base, first);
        }
        ContentDigest::new(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(node: Node) -> Entry {
        Entry {
            node,
            mode: 0o644,
            ..Entry::whiteout(None)
        }
    }

    fn layer(entries: &[(&str, &str)]) -> Arc<Manifest> {
        let node = |kind: &str| match kind {
            "folder" => Node::Folder { opaque: false },
            "opaque" => Node::Folder { opaque: true },
            "gone" => Node::Whiteout,
            content => Node::File {
                bytes: 1,
                digest: ContentDigest::new(*blake3::hash(content.as_bytes()).as_bytes()),
            },
        };
        Arc::new(Manifest {
            entries: entries
                .iter()
                .map(|(path, kind)| (LayerPath::from(*path), entry(node(kind))))
                .collect(),
        })
    }

    fn flat(fold: &Fold) -> Arc<Manifest> {
        Arc::new(Manifest {
            entries: fold
                .paths
                .iter()
                .map(|(path, found)| (path.clone(), found.entry.clone()))
                .collect(),
        })
    }

    #[test]
    fn folding_neighbours_first_gives_the_same() {
        let chain = [
            layer(&[("", "folder"), ("a", "folder"), ("a/x", "1"), ("b", "2")]),
            layer(&[("", "folder"), ("a", "gone"), ("b", "folder"), ("b/y", "3")]),
            layer(&[
                ("", "folder"),
                ("a", "folder"),
                ("a/z", "4"),
                ("b", "opaque"),
            ]),
            layer(&[("", "folder"), ("a", "folder"), ("a/z", "gone"), ("c", "5")]),
        ];
        let whole = Fold::of(&chain);
        for split in 1..chain.len() {
            let low = flat(&Fold::of(&chain[..split]));
            let high = flat(&Fold::of(&chain[split..]));
            let parts = Fold::of(&[low, high]);
            assert_eq!(parts.digest(0), whole.digest(0), "split at {split}");
        }
        let a = &whole.paths[&LayerPath::from("a")].entry.node;
        assert_eq!(
            *a,
            Node::Folder { opaque: true },
            "the image's /a was removed"
        );
        assert!(!whole.paths.contains_key(&LayerPath::from("a/x")));
        assert!(whole.paths[&LayerPath::from("a/z")].entry.is_whiteout());
        assert!(!whole.paths.contains_key(&LayerPath::from("b/y")));
    }

    #[test]
    fn a_change_of_anything_changes_the_digest() {
        let base = Fold::of(&[layer(&[("a", "1")])]);
        let path = LayerPath::from("a");
        let changes: [fn(&mut Entry); 5] = [
            |entry| entry.mode = 0o600,
            |entry| entry.uid = 1,
            |entry| entry.modified_ns = 1,
            |entry| entry.node = Node::Fifo,
            |entry| {
                entry.xattrs = vec![super::super::entry::Xattr {
                    name: LayerPath::from("user.x"),
                    value: vec![1],
                }]
            },
        ];
        for change in changes {
            let mut other = base.clone();
            change(&mut other.paths.get_mut(&path).unwrap().entry);
            assert_ne!(other.digest(0), base.digest(0));
        }
    }
}
