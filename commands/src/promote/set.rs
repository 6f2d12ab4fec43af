//! What it takes to bring a plan about, and to take it back. Pure.
//!
//! ```text
//!   removals, deepest first     what has to be out of the way
//!   entries, by path            folders before what is in them
//! ```
//!
//! The way back is a set too, from wherever the way forth ended: what was not done yet is as it was, and
//! putting it there once more changes nothing.

use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;

use crate::changes::Merge;
use crate::changes::Tree;

/// The trees of a plan.
pub(crate) struct Trees {
    pub(crate) ours: Tree,
    pub(crate) theirs: Tree,
}

/// A set of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangeSet {
    pub(crate) removals: Vec<String>,
    pub(crate) entries: Vec<ManifestEntry>,
}

/// From the parent to what the child has.
pub(super) fn forth(merge: &Merge, trees: &Trees) -> ChangeSet {
    between(merge, &trees.ours, &trees.theirs)
}

/// From anywhere on that way to what the parent had.
pub(super) fn back(merge: &Merge, trees: &Trees) -> ChangeSet {
    between(merge, &trees.theirs, &trees.ours)
}

fn between(merge: &Merge, from: &Tree, to: &Tree) -> ChangeSet {
    let mut set = ChangeSet::default();
    for path in merge.apply.keys() {
        let (old, new) = (from.get(path), to.get(path));
        match new {
            None => set.removals.push(path.clone()),
            Some(new) => {
                // A folder makes room for itself, but for a link. What takes a folder's place needs it
                // gone.
                let in_the_way = match old.map(|old| &old.kind) {
                    Some(EntryKind::Folder) => new.kind != EntryKind::Folder,
                    Some(EntryKind::Link { .. }) => new.kind == EntryKind::Folder,
                    _ => false,
                };
                if in_the_way {
                    set.removals.push(path.clone());
                }
                set.entries.push(new.clone());
            }
        }
    }
    set.removals.reverse();
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::merge;
    use crate::changes::testing::tree_of;

    fn line(set: &ChangeSet) -> String {
        let removals = set.removals.iter().map(|path| format!("-{path}"));
        let entries = set.entries.iter().map(|entry| format!("+{}", entry.path));
        removals.chain(entries).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_way_forth_makes_room_first_and_the_way_back_is_the_other_way_round() {
        for (ours, theirs, expected_forth, expected_back) in [
            ("", "d/ d/x=1", "+d +d/x", "-d/x -d"),
            ("d/ d/x=1", "", "-d/x -d", "+d +d/x"),
            ("d/ d/x=1", "d=1", "-d/x -d +d", "+d +d/x"),
            ("d/ d/x=1", "d->e", "-d/x -d +d", "-d +d +d/x"),
            ("a=1 l->a", "a=2 l->b", "+a +l", "+a +l"),
        ] {
            let trees = Trees {
                ours: tree_of(ours),
                theirs: tree_of(theirs),
            };
            let merge = merge(&trees.ours, &trees.theirs, &trees.ours, &[]);
            assert_eq!(line(&forth(&merge, &trees)), expected_forth);
            assert_eq!(line(&back(&merge, &trees)), expected_back);
        }
    }
}
