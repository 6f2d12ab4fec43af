//! What differs between two trees, and what of one tree's changes can be carried to a third. Pure.
//!
//! A tree is a listing of a folder. Two entries are the same when their kind, content, permissions and
//! owner are; times are not looked at, because writing the same bytes again changes nothing that anybody
//! would want to see.

mod merge;

use std::collections::BTreeMap;

use fluxvm_vmm::EntryKind;
use fluxvm_vmm::ManifestEntry;

pub use merge::Conflict;
pub(crate) use merge::Merge;
pub(crate) use merge::merge;

/// A folder's entries by their path in it, the folder itself left out.
pub(crate) type Tree = BTreeMap<String, ManifestEntry>;

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) path: String,
    /// `None` when it was added.
    pub(crate) before: Option<ManifestEntry>,
    /// `None` when it was deleted.
    pub(crate) after: Option<ManifestEntry>,
}

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// It is another.
    Modified,
    /// It is gone.
    Deleted,
}

/// Two trees, held against each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// By path.
    pub(crate) changed: Vec<Changed>,
    pub(crate) unchanged: u64,
}

impl Changed {
    pub(crate) fn kind(&self) -> ChangeKind {
        match (&self.before, &self.after) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            _ => ChangeKind::Modified,
        }
    }
}

/// A listing as a tree.
pub(crate) fn tree(listed: Vec<ManifestEntry>) -> Tree {
    let entries = listed.into_iter().filter(|entry| !entry.path.is_empty());
    entries.map(|entry| (entry.path.clone(), entry)).collect()
}

/// Holds two trees against each other.
pub(crate) fn compare(before: &Tree, after: &Tree) -> Comparison {
    let mut comparison = Comparison::default();
    let gone = before.keys().filter(|path| !after.contains_key(*path));
    let mut paths: Vec<&String> = after.keys().chain(gone).collect();
    paths.sort_unstable();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        if is_same(old, new) {
            comparison.unchanged += 1;
            continue;
        }
        comparison.changed.push(Changed {
            path: path.clone(),
            before: old.cloned(),
            after: new.cloned(),
        });
    }
    comparison
}

/// Whether two entries are the same but for their times; nothing is the same as nothing.
pub(crate) fn is_same(a: Option<&ManifestEntry>, b: Option<&ManifestEntry>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            // Nothing reads the permissions of a link.
            let is_link = matches!(a.kind, EntryKind::Link { .. });
            let same_mode = is_link || a.mode == b.mode;
            a.kind == b.kind && same_mode && (a.uid, a.gid) == (b.uid, b.gid)
        }
        _ => false,
    }
}

/// Whether a path is this one or lies below it.
pub(crate) fn is_within(path: &str, folder: &str) -> bool {
    match path.strip_prefix(folder) {
        Some(rest) => folder.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use fluxvm_vmm::ContentDigest;

    /// `path=content`, `path/` for a folder, `path->target` for a link, `path|` for a pipe; `path=x!` is
    /// a program.
    pub(crate) fn tree_of(words: &str) -> Tree {
        let entry = |word: &str| {
            let (path, kind, mode) = if let Some((path, target)) = word.split_once("->") {
                let target = target.to_owned();
                (path, EntryKind::Link { target }, 0o777)
            } else if let Some((path, content)) = word.split_once('=') {
                let mode = if content.ends_with('!') { 0o755 } else { 0o644 };
                let content = content.trim_end_matches('!');
                let digest = ContentDigest::new(*blake3::hash(content.as_bytes()).as_bytes());
                let bytes = content.len() as u64;
                (path, EntryKind::File { bytes, digest }, mode)
            } else if let Some(path) = word.strip_suffix('|') {
                (path, EntryKind::Special, 0o644)
            } else {
                (word.trim_end_matches('/'), EntryKind::Folder, 0o755)
            };
            ManifestEntry {
                path: path.to_owned(),
                kind,
                mode,
                uid: 0,
                gid: 0,
                modified_ns: 0,
            }
        };
        tree(words.split_whitespace().map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::tree_of;
    use super::*;
    use expect_test::Expect;
    use expect_test::expect;

    fn check(before: &str, after: &str, expected: Expect) {
        let comparison = compare(&tree_of(before), &tree_of(after));
        let line = |changed: &Changed| format!("{:?} {}\n", changed.kind(), changed.path);
        let lines: String = comparison.changed.iter().map(line).collect();
        expected.assert_eq(&format!("{lines}{} unchanged\n", comparison.unchanged));
    }

    #[test]
    fn two_trees_differ_where_kind_content_or_permissions_do() {
        check(
            "",
            "",
            expect![[r#"
            0 unchanged
        "#]],
        );
        check(
            "a=1 b=1 c=1 d/ d/x=1 l->a",
            "a=1 b=2 c=1! e/ l->b",
            expect![[r#"
                Modified b
                Modified c
                Deleted d
                Deleted d/x
                Added e
                Modified l
                1 unchanged
            "#]],
        );
        check(
            "p=1",
            "p/ p/q=1",
            expect![[r#"
            Modified p
            Added p/q
            0 unchanged
        "#]],
        );
    }

    #[test]
    fn times_are_not_looked_at() {
        let mut later = tree_of("a=1");
        if let Some(entry) = later.get_mut("a") {
            entry.modified_ns = 7;
        }
        assert_eq!(compare(&tree_of("a=1"), &later).unchanged, 1);
    }

    #[test]
    fn a_path_lies_within_itself_and_the_folders_above_it() {
        for (path, folder, within) in [
            ("a/b", "a", true),
            ("a/b", "", true),
            ("a", "a", true),
            ("ab", "a", false),
            ("a", "a/b", false),
        ] {
            assert_eq!(is_within(path, folder), within, "{path} in {folder}");
        }
    }
}
