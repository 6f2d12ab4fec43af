//! What of a child's changes can be carried to its parent: a merge of three trees.
//!
//! A path is a conflict when both sides changed it, and differently. It is one as well when what is
//! around it in the parent leaves it no place: the folder that it lies in is gone, or a folder that it
//! takes the place of holds what the child never saw. So nothing that the parent did is ever lost.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;

use super::ChangeKind;
use super::Tree;
use super::is_same;
use super::is_within;

/// What a promotion would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merge {
    /// What is done to the parent, by path.
    pub(crate) apply: BTreeMap<String, ChangeKind>,
    /// What the parent has already.
    pub(crate) already_applied: Vec<String>,
    /// What is not done.
    pub(crate) conflicts: Vec<Conflict>,
    /// How many paths the child did not change.
    pub(crate) untouched: u64,
}

/// A change that has no place in the parent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path in the workspace.
    pub path: String,
    /// Why, for a person.
    pub reason: &'static str,
}

const BOTH: &str = "the parent changed it too";
const SPECIAL: &str = "a pipe, a socket or a device is not carried";
const NAME: &str = "its name is not text";
const NO_FOLDER: &str = "the folder that it lies in is not there in the parent";
const OCCUPIED: &str = "the parent has something in it that the child never saw, or keeps";

/// Merges. `wanted` are the paths that are asked for, with everything below them; none is all.
pub(crate) fn merge(base: &Tree, child: &Tree, parent: &Tree, wanted: &[String]) -> Merge {
    let mut merge = Merge::default();
    let paths: BTreeSet<&String> = base.keys().chain(child.keys()).collect();
    for path in paths {
        let (old, new, theirs) = (base.get(path), child.get(path), parent.get(path));
        if is_same(old, new) {
            merge.untouched += 1;
        } else if !is_wanted(path, new, theirs, wanted) {
            // Left for another time.
        } else if is_same(new, theirs) {
            merge.already_applied.push(path.clone());
        } else if let Some(reason) = reason_against(path, old, new, theirs) {
            merge.conflict(path.clone(), reason);
        } else {
            let kind = match (theirs, new) {
                (None, _) => ChangeKind::Added,
                (_, None) => ChangeKind::Deleted,
                _ => ChangeKind::Modified,
            };
            merge.apply.insert(path.clone(), kind);
        }
    }
    merge.find_places(child, parent);
    merge.conflicts.sort();
    merge
}

impl Merge {
    fn conflict(&mut self, path: String, reason: &'static str) {
        self.conflicts.push(Conflict { path, reason });
    }

    /// What cannot be done leaves others without a place, and so on until nothing changes.
    fn find_places(&mut self, child: &Tree, parent: &Tree) {
        loop {
            let found = self.apply.keys().filter_map(|path| {
                let reason = self.misplaced(path, child, parent)?;
                Some((path.clone(), reason))
            });
            let found: Vec<_> = found.collect();
            if found.is_empty() {
                return;
            }
            for (path, reason) in found {
                self.apply.remove(&path);
                self.conflict(path, reason);
            }
        }
    }

    fn misplaced(&self, path: &str, child: &Tree, parent: &Tree) -> Option<&'static str> {
        let new = child.get(path);
        let folder_after = |folder: &str| {
            let after = if self.apply.contains_key(folder) {
                child.get(folder)
            } else {
                parent.get(folder)
            };
            is_folder(after)
        };
        if new.is_some() && !above(path).all(folder_after) {
            return Some(NO_FOLDER);
        }
        let goes = is_folder(parent.get(path)) && !is_folder(new);
        let kept = |below: &str| {
            let deleted = self.apply.get(below) == Some(&ChangeKind::Deleted);
            !deleted
        };
        let occupied = goes && below(parent, path).any(kept);
        occupied.then_some(OCCUPIED)
    }
}

/// Why a change is a conflict by itself.
fn reason_against(
    path: &str,
    old: Option<&ManifestEntry>,
    new: Option<&ManifestEntry>,
    theirs: Option<&ManifestEntry>,
) -> Option<&'static str> {
    let special =
        |entry: Option<&ManifestEntry>| entry.is_some_and(|entry| entry.kind == EntryKind::Special);
    if !is_same(old, theirs) {
        Some(BOTH)
    } else if special(new) || special(theirs) {
        Some(SPECIAL)
    } else if fluxvm_vmm::unescape(path).is_none_or(|bytes| String::from_utf8(bytes).is_err()) {
        Some(NAME)
    } else {
        None
    }
}

/// A path that was asked for, or a new folder without which one has no place.
fn is_wanted(
    path: &str,
    new: Option<&ManifestEntry>,
    theirs: Option<&ManifestEntry>,
    wanted: &[String],
) -> bool {
    let leads_to = |wanted: &String| theirs.is_none() && is_folder(new) && is_within(wanted, path);
    wanted.is_empty()
        || wanted.iter().any(|folder| is_within(path, folder))
        || wanted.iter().any(leads_to)
}

fn is_folder(entry: Option<&ManifestEntry>) -> bool {
    entry.is_some_and(|entry| entry.kind == EntryKind::Folder)
}

/// The folders that a path lies in.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// The paths below a folder.
fn below<'a>(tree: &'a Tree, folder: &str) -> impl Iterator<Item = &'a str> {
    let prefix = format!("{folder}/");
    tree.range(prefix.clone()..)
        .take_while(move |(path, _)| path.starts_with(&prefix))
        .map(|(path, _)| path.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree_of;
    use super::*;
    use proptest::prelude::*;

    fn line(merge: &Merge) -> String {
        let mut words: Vec<String> = Vec::new();
        for (path, kind) in &merge.apply {
            let sign = match kind {
                ChangeKind::Added => '+',
                ChangeKind::Modified => '~',
                ChangeKind::Deleted => '-',
            };
            words.push(format!("{sign}{path}"));
        }
        words.extend(merge.already_applied.iter().map(|path| format!("={path}")));
        words.extend(merge.conflicts.iter().map(|it| format!("!{}", it.path)));
        words.push(merge.untouched.to_string());
        words.join(" ")
    }

    #[test]
    fn three_trees_merge_path_by_path() {
        let table = [
            // base, child, parent, wanted, outcome
            ("a=1", "a=1", "a=2", "", "1"),
            ("a=1", "a=2", "a=1", "", "~a 0"),
            ("a=1", "a=2", "a=2", "", "=a 0"),
            ("a=1", "a=2", "a=3", "", "!a 0"),
            ("a=1", "", "a=1", "", "-a 0"),
            ("a=1", "", "", "", "=a 0"),
            ("a=1", "", "a=2", "", "!a 0"),
            ("a=1", "a=2", "", "", "!a 0"),
            ("", "a=1", "", "", "+a 0"),
            ("", "a=1", "a=2", "", "!a 0"),
            ("a=1", "a=1!", "a=1", "", "~a 0"),
            ("a=1", "a=1!", "a=2", "", "!a 0"),
            ("l->a", "l->b", "l->a", "", "~l 0"),
            ("", "p|", "", "", "!p 0"),
            ("", "d/ d/x=1", "", "", "+d +d/x 0"),
            ("", "d/ d/x=1 e=1", "", "d/x", "+d +d/x 0"),
            ("", "d/ d/x=1 e=1", "", "e", "+e 0"),
            // The folder is gone in the parent.
            ("d/", "d/ d/x=1", "", "", "!d/x 1"),
            // The folder became a file in the parent.
            ("d/", "d/ d/x=1", "d=1", "", "!d/x 1"),
            // The parent put something into a folder that the child removed.
            ("d/ d/x=1", "", "d/ d/x=1 d/y=1", "", "-d/x !d 0"),
            ("d/ d/x=1", "", "d/ d/x=2", "", "!d !d/x 0"),
            ("d/ d/x=1", "", "d/ d/x=1", "", "-d -d/x 0"),
            // Only a part of what it takes to remove a folder was asked for.
            ("d/ d/x=1 d/y=1", "", "d/ d/x=1 d/y=1", "d/x", "-d/x 0"),
            // A folder becomes a file, and a file a folder.
            ("d/ d/x=1", "d=1", "d/ d/x=1", "", "~d -d/x 0"),
            ("d/ d/x=1", "d=1", "d/ d/x=1 d/y=1", "", "-d/x !d 0"),
            ("d=1", "d/ d/x=1", "d=1", "", "~d +d/x 0"),
            ("d=1", "d/ d/x=1", "d=2", "", "!d !d/x 0"),
        ];
        for (base, child, parent, wanted, outcome) in table {
            let wanted: Vec<String> = wanted.split_whitespace().map(str::to_owned).collect();
            let merged = merge(&tree_of(base), &tree_of(child), &tree_of(parent), &wanted);
            assert_eq!(
                line(&merged),
                outcome,
                "{base} | {child} | {parent} | {wanted:?}"
            );
        }
    }

    /// A tree in which every path has a folder to lie in.
    fn any_tree() -> impl Strategy<Value = Tree> {
        let name = prop::sample::select(vec!["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z"]);
        let content = prop::sample::select(vec!["=1", "=2", "=1!", "/", "->a"]);
        prop::collection::vec((name, content), 0..8).prop_map(|words| {
            let all: Vec<String> = words
                .iter()
                .map(|(name, what)| format!("{name}{what}"))
                .collect();
            let mut tree = tree_of(&all.join(" "));
            loop {
                let lost = tree
                    .keys()
                    .find(|path| !above(path).all(|it| is_folder(tree.get(it))));
                let Some(lost) = lost.cloned() else {
                    return tree;
                };
                tree.remove(&lost);
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_applied_makes_a_tree_and_loses_nothing_that_the_parent_did(
            base in any_tree(), child in any_tree(), parent in any_tree(),
        ) {
            let merged = merge(&base, &child, &parent, &[]);
            let mut after = parent.clone();
            for path in merged.apply.keys() {
                match child.get(path) {
                    Some(entry) => after.insert(path.clone(), entry.clone()),
                    None => after.remove(path),
                };
            }
            for path in after.keys() {
                prop_assert!(above(path).all(|it| is_folder(after.get(it))), "{} hangs", path);
            }
            for (path, entry) in &parent {
                if !is_same(base.get(path), Some(entry)) {
                    prop_assert!(is_same(after.get(path), Some(entry)), "{} is lost", path);
                }
            }
            let again = merge(&base, &child, &after, &[]);
            prop_assert!(again.apply.is_empty(), "{:?}", again);
        }
    }
}
