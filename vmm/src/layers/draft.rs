//! A layer while it is being made: a folder under a name that no layer has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmodat, mknodat, utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchownat, linkat, symlinkat};

use super::entry::{Entry, Node};
use super::manifest::Manifest;
use super::path::LayerPath;
use super::sync::Unsynced;
use super::tree::{self, Tree};
use super::xattr::Attributes;
use super::{MANIFEST, TREE, digest, os, sync};
use crate::error::SnapshotError;
use crate::snapshot::ContentDigest;

/// The names of one file.
struct Group {
    number: u32,
    first: LayerPath,
}

/// Whom the files of a layer belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owners {
    /// Everybody in a range, root inside first.
    Range {
        /// The host's id of root inside.
        base: u32,
    },
    /// The user who runs the daemon, and nobody else.
    Daemon {
        /// That user.
        uid: u32,
        /// Their group.
        gid: u32,
    },
}

/// A layer that nobody can see yet. Dropping it removes it.
pub(crate) struct Draft {
    dir: PathBuf,
    tree: Tree,
    owners: Owners,
    attributes: Attributes,
    entries: BTreeMap<LayerPath, Entry>,
    unsynced: Unsynced,
    folders: HashSet<LayerPath>,
    groups: HashMap<u64, Group>,
    stored_bytes: u64,
    kept: bool,
}

/// A finished layer, still under its draft's name.
pub(crate) struct Finished {
    pub(crate) manifest: Manifest,
    pub(crate) stored_bytes: u64,
}

impl Draft {
    /// Makes the folder.
    pub(crate) fn create(
        dir: &Path,
        owners: Owners,
        attributes: Attributes,
    ) -> Result<Self, SnapshotError> {
        let what = || format!("making {}", dir.display());
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        make(dir).map_err(os(what))?;
        let tree = make(&dir.join(TREE)).and_then(|()| Tree::open(&dir.join(TREE)));
        let tree = tree.inspect_err(|_| drop(super::remove_tree(dir)));
        Ok(Self {
            dir: dir.to_owned(),
            tree: tree.map_err(os(what))?,
            owners,
            attributes,
            entries: BTreeMap::new(),
            unsynced: Unsynced::default(),
            folders: HashSet::new(),
            groups: HashMap::new(),
            stored_bytes: 0,
            kept: false,
        })
    }

    /// Says that the layer has this path. Files were copied or linked before.
    pub(crate) fn add(&mut self, path: LayerPath, entry: Entry) {
        self.entries.insert(path, entry);
    }

    pub(crate) fn contains(&self, path: &LayerPath) -> bool {
        self.entries.contains_key(path)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &LayerPath> {
        self.entries.keys()
    }

    /// A file whose content is not hashed yet.
    pub(crate) fn placeholder(&self, stat: &FileStat) -> Node {
        Node::File {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            digest: ContentDigest::new([0; 32]),
        }
    }

    /// A folder about which nothing is known.
    pub(crate) fn plain_folder(&self) -> Entry {
        let (uid, gid) = match self.owners {
            Owners::Range { base } => (base, base),
            Owners::Daemon { uid, gid } => (uid, gid),
        };
        Entry {
            node: Node::Folder { opaque: false },
            mode: 0o755,
            uid,
            gid,
            ..Entry::whiteout(None)
        }
    }

    /// Whether a file with several names was copied.
    pub(crate) fn has(&self, inode: u64) -> bool {
        self.groups.contains_key(&inode)
    }

    pub(crate) fn forget(&mut self, inode: u64) {
        self.groups.remove(&inode);
    }

    /// Gives a file that was copied already another name. `false` for the first name, which is then
    /// to be copied.
    pub(crate) fn link(
        &mut self,
        inode: u64,
        path: &LayerPath,
        entry: &mut Entry,
    ) -> Result<bool, SnapshotError> {
        if let Some(Group { number, first }) = self.groups.get(&inode) {
            entry.group = Some(*number);
            let first = first.clone();
            return self.link_from(&first, path).map(|()| true);
        }
        let number = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        entry.group = Some(number);
        let first = path.clone();
        self.groups.insert(inode, Group { number, first });
        Ok(false)
    }

    fn link_from(&mut self, first: &LayerPath, path: &LayerPath) -> Result<(), SnapshotError> {
        let what = || format!("linking {path}");
        let errno = |errno: Errno| os(what)(errno.into());
        let (from, name) = self.parent(first).map_err(errno)?;
        let (to, new_name) = self.parent(path).map_err(errno)?;
        let (name, new_name) = (OsStr::from_bytes(&name), OsStr::from_bytes(&new_name));
        linkat(&from, name, &to, new_name, AtFlags::empty()).map_err(errno)
    }

    /// Takes a file of another layer, which never changes either.
    pub(crate) fn share(&mut self, from: &Tree, path: &LayerPath) -> Result<(), SnapshotError> {
        let what = || format!("sharing {path}");
        let errno = |errno: Errno| os(what)(errno.into());
        let (to, name) = self.parent(path).map_err(errno)?;
        let parent = path.parent().unwrap_or_default();
        let from = from.folder(&parent).map_err(errno)?;
        let name = OsStr::from_bytes(&name);
        linkat(&from, name, &to, name, AtFlags::empty()).map_err(errno)
    }

    /// The folder in which a path lies, made if need be, and its name there.
    fn parent(&mut self, path: &LayerPath) -> Result<(OwnedFd, Vec<u8>), Errno> {
        let (parent, name) = path.split().unwrap_or_default();
        let name = name.to_vec();
        if !parent.is_root() && self.folders.insert(parent.clone()) {
            self.tree.make_folder(&parent)?;
        }
        Ok((self.tree.folder(&parent)?, name))
    }

    /// Copies a file's content.
    pub(crate) fn copy(
        &mut self,
        path: &LayerPath,
        from: &File,
        stat: &FileStat,
    ) -> Result<(), SnapshotError> {
        let what = || format!("copying {path}");
        let (parent, name) = self.parent(path).map_err(|errno| os(what)(errno.into()))?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let to = openat(&parent, OsStr::from_bytes(&name), flags, mode);
        let to = File::from(to.map_err(|errno| os(what)(errno.into()))?);
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let stored = tree::copy_content(from, &to, length).map_err(os(what))?;
        self.stored_bytes = self.stored_bytes.saturating_add(stored);
        self.unsynced.push(path, to).map_err(os(what))
    }

    /// Makes what is not a file, hashes what is, gives everything its attributes and writes the
    /// manifest.
    pub(crate) fn finish(mut self) -> Result<(Self, Finished), SnapshotError> {
        let mut entries = std::mem::take(&mut self.entries);
        for (path, entry) in &entries {
            self.make(path, &entry.node)
                .map_err(|errno| os(|| format!("making {path}"))(errno.into()))?;
        }
        self.hash(&mut entries)?;
        // From the bottom up: what is made in a folder changes its time.
        for (path, entry) in entries.iter().rev() {
            self.dress(path, entry)
                .map_err(os(|| format!("setting the attributes of {path}")))?;
        }
        let manifest = Manifest { entries };
        let place = self.dir.join(MANIFEST);
        let file = manifest
            .write(&place)
            .map_err(os(|| format!("writing {}", place.display())))?;
        let unsynced = std::mem::take(&mut self.unsynced);
        sync::layer(&self.tree, &manifest, file, unsynced)
            .map_err(os(|| format!("writing {} out", self.dir.display())))?;
        let stored_bytes = self.stored_bytes;
        Ok((
            self,
            Finished {
                manifest,
                stored_bytes,
            },
        ))
    }

    /// The layer gets its name.
    pub(crate) fn publish(mut self, to: &Path) -> Result<(), SnapshotError> {
        std::fs::rename(&self.dir, to).map_err(os(|| format!("naming {}", to.display())))?;
        self.kept = true;
        Ok(())
    }

    fn make(&mut self, path: &LayerPath, node: &Node) -> Result<(), Errno> {
        if let Node::Folder { .. } = node {
            if !path.is_root() && self.folders.insert(path.clone()) {
                self.tree.make_folder(path)?;
            }
            return Ok(());
        }
        if matches!(node, Node::File { .. }) {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        let name = OsStr::from_bytes(&name);
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let made = match node {
            Node::Link { target } => symlinkat(OsStr::from_bytes(target.as_bytes()), &parent, name),
            Node::Fifo => mknodat(&parent, name, SFlag::S_IFIFO, mode, 0),
            Node::Socket => mknodat(&parent, name, SFlag::S_IFSOCK, mode, 0),
            Node::Whiteout => mknodat(&parent, name, SFlag::S_IFCHR, Mode::empty(), 0),
            Node::File { .. } | Node::Folder { .. } => Ok(()),
        };
        match made {
            // Shared from another layer.
            Err(Errno::EEXIST) => Ok(()),
            other => other,
        }
    }

    fn hash(&self, entries: &mut BTreeMap<LayerPath, Entry>) -> Result<(), SnapshotError> {
        let mut hashed: HashMap<u32, (u64, ContentDigest)> = HashMap::new();
        for (path, entry) in entries {
            let Node::File { bytes, digest } = &mut entry.node else {
                continue;
            };
            if *digest.as_bytes() != [0; 32] {
                continue;
            }
            let known = entry.group.and_then(|group| hashed.get(&group).copied());
            let found = match known {
                Some(found) => found,
                None => {
                    let what = || format!("hashing {path}");
                    let file = self.tree.file(path);
                    let file = file.map_err(|errno| os(what)(errno.into()))?;
                    digest::of_file(&file).map_err(os(what))?
                }
            };
            if let Some(group) = entry.group {
                hashed.insert(group, found);
            }
            (*bytes, *digest) = found;
        }
        Ok(())
    }

    /// Owner first, for a change of owner takes rights away; the time last.
    fn dress(&self, path: &LayerPath, entry: &Entry) -> std::io::Result<()> {
        if entry.is_whiteout() {
            return Ok(());
        }
        let (parent, name) = path.split().unwrap_or_default();
        let parent = self.tree.folder(&parent)?;
        let name: &[u8] = if path.is_root() { b"." } else { name };
        let at = OsStr::from_bytes(name);
        if let Owners::Range { .. } = self.owners {
            let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            fchownat(&parent, at, Some(uid), Some(gid), flags)?;
        }
        let opaque = matches!(entry.node, Node::Folder { opaque: true });
        self.attributes
            .set(parent.as_fd(), name, opaque, &entry.xattrs)?;
        if !matches!(entry.node, Node::Link { .. }) {
            let mode = Mode::from_bits_truncate(entry.mode);
            fchmodat(&parent, at, mode, FchmodatFlags::FollowSymlink)?;
        }
        let modified = TimeSpec::new(
            entry.modified_ns.div_euclid(1_000_000_000),
            entry.modified_ns.rem_euclid(1_000_000_000),
        );
        let flags = UtimensatFlags::NoFollowSymlink;
        Ok(utimensat(&parent, at, &modified, &modified, flags)?)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = super::remove_tree(&self.dir)
        {
            tracing::warn!(%error, dir = %self.dir.display(), "a half-made layer is left");
        }
    }
}
