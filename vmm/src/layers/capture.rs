//! Finding what changed in a live upper layer, and copying it into a new one.
//!
//! The work has two halves. The first runs while the sandbox stands still: it looks at every path,
//! compares inode, time of change and kind with what the last capture saw, and copies what differs.
//! The second ([`Draft::finish`](super::draft::Draft::finish)) hashes and dresses the copies while
//! the sandbox runs on.
//!
//! A change of content that leaves the time of change alone is possible in two ways: a second one
//! within one tick of the clock, and one through a memory mapping. Paths that may have had either are
//! *doubtful* and are compared by content the next time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag};

use super::digest;
use super::draft::Draft;
use super::entry::{Entry, Node, Seen};
use super::fold::Fold;
use super::path::LayerPath;
use super::tree::{self, Tree, nanoseconds};
use super::xattr::Attributes;
use super::{FILE_BYTES_MAX, os};
use crate::error::SnapshotError;

/// A clock's tick, twice: a change within it may keep the time of the one before.
const CLOCK_DOUBT_NS: i64 = 20_000_000;

/// One folder of a sandbox whose content belongs into the layer.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// The folder on the host.
    pub(crate) folder: PathBuf,
    /// Where it is seen inside.
    pub(crate) at: LayerPath,
}

/// What is known before the scan.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    /// What this sandbox's own captures say, folded. Empty for the first one.
    pub(crate) own: &'a Fold,
    /// Files that programs inside can change through a memory mapping.
    pub(crate) mapped: &'a HashSet<LayerPath>,
    /// The file system tells of every change by time.
    pub(crate) times_tell: bool,
    pub(crate) attributes: Attributes,
}

/// What a path was found to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visited {
    Folder,
    /// A folder that hides everything captured below it so far.
    FreshFolder,
    Other,
}

/// One name of a file that has several, and that did not change.
struct Unchanged {
    path: LayerPath,
    entry: Entry,
}

struct Scan<'a> {
    known: Known<'a>,
    draft: &'a mut Draft,
    visited: HashMap<LayerPath, Visited>,
    unchanged: HashMap<u64, Vec<Unchanged>>,
    doubt_from_ns: i64,
}

/// Looks through the sources and puts what changed into the draft.
pub(crate) fn capture(
    sources: &[Source],
    known: Known<'_>,
    draft: &mut Draft,
) -> Result<(), SnapshotError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    let mut scan = Scan {
        known,
        draft,
        visited: HashMap::new(),
        unchanged: HashMap::new(),
        doubt_from_ns: now_ns.saturating_sub(CLOCK_DOUBT_NS),
    };
    for source in sources {
        scan.source(source)?;
    }
    scan.deletions()?;
    scan.names_of_changed_files()?;
    scan.folders_above()
}

/// A folder still to be looked into.
struct Todo {
    inside: LayerPath,
    path: LayerPath,
    fresh: bool,
}

impl Scan<'_> {
    fn source(&mut self, source: &Source) -> Result<(), SnapshotError> {
        let what = || format!("reading {}", source.folder.display());
        let tree = Tree::open(&source.folder).map_err(os(what))?;
        if source.at.is_root() {
            self.root(&tree)?;
        } else {
            self.visited.insert(source.at.clone(), Visited::Folder);
        }
        let mut todo = vec![Todo {
            inside: LayerPath::root(),
            path: source.at.clone(),
            fresh: false,
        }];
        while let Some(next) = todo.pop() {
            let read = || format!("reading {}", next.path);
            let folder = match tree.folder(&next.inside) {
                Ok(folder) => folder,
                // It was removed, or became something else, since its parent was read: the next
                // capture sees what came of it.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                Err(errno) => return Err(os(read)(errno.into())),
            };
            let names = tree::names(folder.as_fd()).map_err(|errno| os(read)(errno.into()))?;
            for name in names {
                let path = next.path.child(&name);
                if let Some(fresh) = self.look(folder.as_fd(), &name, &path, next.fresh)? {
                    todo.push(Todo {
                        inside: next.inside.child(&name),
                        path,
                        fresh,
                    });
                }
            }
        }
        Ok(())
    }

    /// The root itself: its time changes with every mount point made, and counts for nothing.
    fn root(&mut self, tree: &Tree) -> Result<(), SnapshotError> {
        let path = LayerPath::root();
        let what = || "reading the root folder".to_owned();
        let stat = tree::stat(tree.root(), b"").map_err(|errno| os(what)(errno.into()))?;
        let Some(stat) = stat else {
            return Ok(());
        };
        let mut entry = self.entry(&stat, Node::Folder { opaque: false });
        entry.modified_ns = 0;
        entry.seen = None;
        self.visited.insert(path.clone(), Visited::Folder);
        let same = self.known.own.paths.get(&path).map(|found| &found.entry);
        if same != Some(&entry) {
            self.draft.add(path, entry);
        }
        Ok(())
    }

    /// Looks at one entry. For a folder that is to be looked into, says whether it is fresh.
    fn look(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &LayerPath,
        fresh: bool,
    ) -> Result<Option<bool>, SnapshotError> {
        let what = || format!("reading {path}");
        let found = tree::stat(folder, name).map_err(|errno| os(what)(errno.into()))?;
        let Some(stat) = found else {
            return Ok(None);
        };
        let own = self.known.own;
        let known = own.paths.get(path).map(|found| &found.entry);
        let known = known.filter(|_| !fresh);
        if tree::kind(&stat) == SFlag::S_IFDIR {
            return self
                .look_at_folder(folder, name, path, &stat, known, fresh)
                .map(Some);
        }
        self.visited.insert(path.clone(), Visited::Other);
        if tree::is_whiteout(&stat) {
            if !known.is_some_and(Entry::is_whiteout) {
                self.draft.add(path.clone(), Entry::whiteout(None));
            }
            return Ok(None);
        }
        match known {
            Some(entry) if self.same(entry, &stat, folder, name, path)? => {
                if stat.st_nlink > 1 {
                    let names = self.unchanged.entry(stat.st_ino).or_default();
                    names.push(Unchanged {
                        path: path.clone(),
                        entry: entry.clone(),
                    });
                }
            }
            _ => self.take(folder, name, path, &stat)?,
        }
        Ok(None)
    }

    fn look_at_folder(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &LayerPath,
        stat: &FileStat,
        known: Option<&Entry>,
        fresh: bool,
    ) -> Result<bool, SnapshotError> {
        let before = known.filter(|known| known.is_folder());
        let before = before.and_then(|known| known.seen);
        let before = before.filter(|seen| seen.inode == stat.st_ino);
        let untouched = before.is_some_and(|seen| seen.changed_ns == changed_ns(stat));
        let (opaque, xattrs) = match before {
            Some(seen) if untouched => (seen.opaque, Vec::new()),
            _ => self
                .known
                .attributes
                .of(folder, name)
                .map_err(os(|| format!("reading the attributes of {path}")))?,
        };
        // What an earlier layer of this sandbox hides already need not be hidden again; hiding it
        // would hide what those layers hold of the folder itself.
        let hides = opaque && !before.is_some_and(|seen| seen.opaque);
        let fresh = fresh || hides;
        let visited = if fresh {
            Visited::FreshFolder
        } else {
            Visited::Folder
        };
        self.visited.insert(path.clone(), visited);
        if !untouched {
            let mut entry = self.entry(stat, Node::Folder { opaque: hides });
            entry.xattrs = xattrs;
            if let Some(seen) = &mut entry.seen {
                seen.opaque = opaque;
            }
            self.draft.add(path.clone(), entry);
        }
        Ok(fresh)
    }

    /// Whether what is there is what was captured last.
    fn same(
        &self,
        known: &Entry,
        stat: &FileStat,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &LayerPath,
    ) -> Result<bool, SnapshotError> {
        let Some(seen) = known.seen else {
            return Ok(false);
        };
        if seen.inode != stat.st_ino || seen.changed_ns != changed_ns(stat) {
            return Ok(false);
        }
        let Node::File { bytes, digest } = &known.node else {
            return Ok(matches!(
                (&known.node, tree::kind(stat)),
                (Node::Link { .. }, SFlag::S_IFLNK)
                    | (Node::Fifo, SFlag::S_IFIFO)
                    | (Node::Socket, SFlag::S_IFSOCK)
            ));
        };
        if tree::kind(stat) != SFlag::S_IFREG || u64::try_from(stat.st_size) != Ok(*bytes) {
            return Ok(false);
        }
        let sure = self.known.times_tell && !seen.doubtful && !self.known.mapped.contains(path);
        if sure {
            return Ok(true);
        }
        let what = || format!("reading {path}");
        match tree::open_file(folder, name) {
            Ok(file) => Ok(digest::of_file(&file).map_err(os(what))? == (*bytes, *digest)),
            Err(Errno::ENOENT | Errno::ELOOP) => Ok(false),
            Err(errno) => Err(os(what)(errno.into())),
        }
    }

    /// Copies something that changed.
    fn take(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        path: &LayerPath,
        stat: &FileStat,
    ) -> Result<(), SnapshotError> {
        let what = || format!("copying {path}");
        let errno = |errno: Errno| os(what)(errno.into());
        let (_, xattrs) = self
            .known
            .attributes
            .of(folder, name)
            .map_err(os(|| format!("reading the attributes of {path}")))?;
        let node = match tree::kind(stat) {
            SFlag::S_IFREG => self.draft.placeholder(stat),
            SFlag::S_IFLNK => {
                let target = tree::link_target(folder, name).map_err(errno)?;
                Node::Link {
                    target: LayerPath::from(target.as_slice()),
                }
            }
            SFlag::S_IFIFO => Node::Fifo,
            SFlag::S_IFSOCK => Node::Socket,
            // No guest may make a device, and the engine puts none into an upper layer.
            _ => return Ok(()),
        };
        let mut entry = self.entry(stat, node);
        entry.xattrs = xattrs;
        let regular = tree::kind(stat) == SFlag::S_IFREG;
        let named = regular && stat.st_nlink > 1;
        let again = named && self.draft.link(stat.st_ino, path, &mut entry)?;
        if regular && !again {
            if u64::try_from(stat.st_size).unwrap_or(0) > FILE_BYTES_MAX {
                let limit = usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX);
                let what = "bytes in one file";
                return Err(SnapshotError::TooMany { what, limit });
            }
            match tree::open_file(folder, name) {
                Ok(file) => self.draft.copy(path, &file, stat)?,
                // Gone since: the next capture sees it gone.
                Err(Errno::ENOENT | Errno::ELOOP) => {
                    self.draft.forget(stat.st_ino);
                    return Ok(());
                }
                Err(failed) => return Err(errno(failed)),
            }
        }
        if let Some(seen) = &mut entry.seen {
            seen.doubtful |= self.known.mapped.contains(path);
        }
        self.draft.add(path.clone(), entry);
        Ok(())
    }

    /// Marks what earlier captures have and the upper layer has no more.
    fn deletions(&mut self) -> Result<(), SnapshotError> {
        let mut last: Option<LayerPath> = None;
        let mut gone = Vec::new();
        for (path, found) in &self.known.own.paths {
            if found.entry.is_whiteout() || self.visited.contains_key(path) {
                continue;
            }
            if last
                .as_ref()
                .is_some_and(|above| path.below(above).is_some())
            {
                continue;
            }
            let parent = path.parent().and_then(|parent| self.visited.get(&parent));
            if parent == Some(&Visited::Folder) {
                last = Some(path.clone());
                gone.push(path.clone());
            }
        }
        for path in gone {
            self.draft.add(path, Entry::whiteout(None));
        }
        Ok(())
    }

    /// Names of one file stay names of one file: where one was copied, the others follow.
    fn names_of_changed_files(&mut self) -> Result<(), SnapshotError> {
        for (inode, names) in std::mem::take(&mut self.unchanged) {
            if !self.draft.has(inode) {
                continue;
            }
            for Unchanged { path, mut entry } in names {
                self.draft.link(inode, &path, &mut entry)?;
                self.draft.add(path, entry);
            }
        }
        Ok(())
    }

    /// A layer that has a path has the folders above it, and as the sandbox has them.
    fn folders_above(&mut self) -> Result<(), SnapshotError> {
        let mut missing: BTreeMap<LayerPath, Entry> = BTreeMap::new();
        for path in self.draft.paths() {
            for above in path.above().into_iter().rev() {
                if self.draft.contains(&above) || missing.contains_key(&above) {
                    continue;
                }
                // The place of a grafted folder is the image's: only what is in it is captured.
                let known = self.known.own.paths.get(&above).map(|found| &found.entry);
                let mut entry = match known.filter(|known| known.is_folder()) {
                    Some(known) => known.clone(),
                    None => self.draft.plain_folder(),
                };
                if let Node::Folder { opaque } = &mut entry.node {
                    *opaque = false;
                }
                missing.insert(above, entry);
            }
        }
        for (path, entry) in missing {
            self.draft.add(path, entry);
        }
        Ok(())
    }

    fn entry(&self, stat: &FileStat, node: Node) -> Entry {
        let changed_ns = changed_ns(stat);
        Entry {
            node,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            xattrs: Vec::new(),
            group: None,
            seen: Some(Seen {
                inode: stat.st_ino,
                changed_ns,
                doubtful: changed_ns >= self.doubt_from_ns,
                opaque: false,
            }),
        }
    }
}

fn changed_ns(stat: &FileStat) -> i64 {
    nanoseconds(stat.st_ctime, stat.st_ctime_nsec)
}
