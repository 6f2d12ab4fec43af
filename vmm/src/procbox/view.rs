//! A captured disk, read without mounting it: what was captured over what lies below.
//!
//! **What is shown.** What the sandbox saw, and of the host nothing else: below the captured layers
//! lies the skeleton with its masks, and of the host's own root only what any user may read (for an
//! ordinary user's daemon: what that user may read, and there only in folders that were grafted).
//! The host's root is read as it is now: it was never captured.
//!
//! **No link is followed**, and no path leaves its layer, whatever a guest put there.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;

use super::below::{Below, BelowFolder, Seen};
use super::engine::Engine;
use super::revive::{damaged, fold};
use crate::error::SnapshotError;
use crate::layers::{
    Entry, Fold, Found, LayerPath, Node, SnapshotRecord, TREE, Tree, digest_of_file, escape,
    nanoseconds, os,
};
use crate::snapshot::{ContentDigest, Disk, EntryKind, ManifestEntry, ManifestQuery};
use crate::spec::{GuestPath, ImageRef};

/// More is no machine id.
const MACHINE_ID_BYTES_MAX: u64 = 64;

/// A captured disk.
struct View<'a> {
    engine: &'a Engine,
    disk: Disk,
    fold: Fold,
    trees: Vec<PathBuf>,
    below: Below,
}

/// What is at one path.
enum At<'a> {
    Captured(&'a Found),
    Below(Seen),
    Nothing,
}

impl<'a> View<'a> {
    fn open(engine: &'a Engine, record: &SnapshotRecord) -> Result<Self, SnapshotError> {
        let id = record.snapshot.id;
        if record.uid_base != engine.uid_base() {
            let what = "it was taken of a sandbox whose users were others of the host's";
            return Err(SnapshotError::Unsupported(what.to_owned()));
        }
        let trees = record.chain.iter();
        Ok(Self {
            engine,
            disk: id.into(),
            fold: fold(engine, record)?,
            trees: trees
                .map(|layer| engine.store.layer_dir(layer.id).join(TREE))
                .collect(),
            below: Below::open(engine, &record.image)?,
        })
    }

    /// What a sandbox of this image begins with: no layer has anything yet.
    fn fresh(engine: &'a Engine, image: &ImageRef) -> Result<Self, SnapshotError> {
        Ok(Self {
            engine,
            disk: Disk::Image(image.clone()),
            fold: Fold::default(),
            trees: Vec::new(),
            below: Below::open(engine, image)?,
        })
    }

    /// What lies below the captured layers at a folder of the captured disk: nothing where a layer
    /// hides it.
    fn below_folder(&self, path: &LayerPath) -> Result<Option<BelowFolder<'_>>, SnapshotError> {
        for place in path.above().iter().chain([path]) {
            match self.fold.paths.get(place).map(|found| &found.entry.node) {
                Some(Node::Folder { opaque: false }) | None => {}
                Some(_) => return Ok(None),
            }
        }
        self.below.folder(path)
    }

    fn at(&self, path: &LayerPath) -> Result<At<'_>, SnapshotError> {
        if let Some(found) = self.fold.paths.get(path) {
            return Ok(match found.entry.is_whiteout() {
                true => At::Nothing,
                false => At::Captured(found),
            });
        }
        let Some((parent, name)) = path.split() else {
            return Ok(At::Below(self.below.root()?));
        };
        Ok(match self.below_folder(&parent)? {
            Some(folder) => folder.look(name)?.map_or(At::Nothing, At::Below),
            None => At::Nothing,
        })
    }

    /// Every name in a folder.
    fn names(&self, path: &LayerPath) -> Result<BTreeSet<Vec<u8>>, SnapshotError> {
        let prefix = path.prefix();
        let own = self.fold.below(path).filter_map(|(below, found)| {
            let name = below.as_bytes().get(prefix.len()..)?;
            let direct = !name.contains(&b'/') && !found.entry.is_whiteout();
            direct.then(|| name.to_vec())
        });
        let mut names: BTreeSet<Vec<u8>> = own.collect();
        if let Some(folder) = self.below_folder(path)? {
            let below = folder.names()?.into_iter();
            let seen = |name: &Vec<u8>| !self.fold.paths.contains_key(&path.child(name));
            names.extend(below.filter(seen));
        }
        Ok(names)
    }

    fn no_such(&self, what: &'static str, path: &LayerPath) -> SnapshotError {
        SnapshotError::NoSuchPath {
            disk: self.disk.to_string(),
            what,
            path: path.to_string(),
        }
    }

    /// Only what was captured can have changed since.
    fn changed(&self, what: String) -> SnapshotError {
        match self.disk {
            Disk::Snapshot(id) => damaged(id, what),
            Disk::Image(_) => SnapshotError::Unsupported(what),
        }
    }

    /// Opens a captured file.
    fn stored(&self, found: &Found, path: &LayerPath) -> Result<File, SnapshotError> {
        let missing = |what: String| self.changed(format!("{path}: {what}"));
        let tree = self.trees.get(found.layer);
        let tree = tree.ok_or_else(|| missing("its layer is missing".to_owned()))?;
        let tree = Tree::open(tree).map_err(|error| missing(error.to_string()))?;
        tree.file(path).map_err(|errno| missing(errno.to_string()))
    }

    fn captured_entry(&self, relative: &[u8], entry: &Entry) -> ManifestEntry {
        let base = self.engine.owner_base();
        ManifestEntry {
            path: escape(relative),
            kind: match &entry.node {
                Node::File { bytes, digest } => EntryKind::File {
                    bytes: *bytes,
                    digest: *digest,
                },
                Node::Folder { .. } => EntryKind::Folder,
                Node::Link { target } => EntryKind::Link {
                    target: escape(target.as_bytes()),
                },
                Node::Fifo | Node::Socket | Node::Whiteout => EntryKind::Special,
            },
            mode: entry.mode,
            uid: entry.uid.wrapping_sub(base),
            gid: entry.gid.wrapping_sub(base),
            modified_ns: entry.modified_ns,
        }
    }
}

/// Every path below a folder.
pub(super) fn manifest(
    engine: &Engine,
    query: &ManifestQuery,
) -> Result<Vec<ManifestEntry>, SnapshotError> {
    seen(engine, &query.disk, |view| list(view, query))
}

/// Looks at a disk, which stays for as long as that takes.
fn seen<T>(
    engine: &Engine,
    disk: &Disk,
    look: impl FnOnce(&View<'_>) -> Result<T, SnapshotError>,
) -> Result<T, SnapshotError> {
    match disk {
        Disk::Snapshot(id) => {
            let (record, _pin) = engine.store.pinned(id)?;
            look(&View::open(engine, &record)?)
        }
        Disk::Image(image) => look(&View::fresh(engine, image)?),
    }
}

fn list(view: &View<'_>, query: &ManifestQuery) -> Result<Vec<ManifestEntry>, SnapshotError> {
    let top = LayerPath::from(query.folder.as_str());
    let mut entries: Vec<ManifestEntry> = Vec::new();
    let mut todo = vec![top.clone()];
    while let Some(path) = todo.pop() {
        let relative = path.below(&top).unwrap_or_default();
        let is_top = path == top;
        let Some((entry, is_folder)) = describe(view, &path, relative)? else {
            if is_top {
                return Err(view.no_such("folder", &path));
            }
            continue;
        };
        if is_top && !is_folder {
            return Err(view.no_such("folder", &path));
        }
        if entries.len() >= query.entries_max {
            let limit = query.entries_max;
            return Err(SnapshotError::TooMany {
                what: "paths",
                limit,
            });
        }
        entries.push(entry);
        if is_folder {
            let names = view.names(&path)?;
            todo.extend(names.into_iter().map(|name| path.child(&name)));
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// What a path is, and whether it is a folder. `None` for what the sandbox did not see.
fn describe(
    view: &View<'_>,
    path: &LayerPath,
    relative: &[u8],
) -> Result<Option<(ManifestEntry, bool)>, SnapshotError> {
    let seen = match view.at(path)? {
        At::Nothing => return Ok(None),
        At::Captured(found) => {
            let entry = view.captured_entry(relative, &found.entry);
            return Ok(Some((entry, found.entry.is_folder())));
        }
        At::Below(seen) => seen,
    };
    let (kind, facts) = match seen {
        Seen::Folder(facts) => (EntryKind::Folder, facts),
        Seen::File { file, facts } => {
            let (bytes, digest) =
                digest_of_file(&file).map_err(os(|| format!("reading {path}")))?;
            (EntryKind::File { bytes, digest }, facts)
        }
        Seen::Link { target, facts } => {
            let target = escape(&target);
            (EntryKind::Link { target }, facts)
        }
        Seen::Special(facts) => (EntryKind::Special, facts),
    };
    let folder = matches!(kind, EntryKind::Folder);
    let entry = ManifestEntry {
        path: escape(relative),
        kind,
        mode: facts.stat.st_mode & 0o7777,
        uid: facts.uid,
        gid: facts.gid,
        modified_ns: nanoseconds(facts.stat.st_mtime, facts.stat.st_mtime_nsec),
    };
    Ok(Some((entry, folder)))
}

/// Opens a regular file for reading.
pub(super) fn open_file(
    engine: &Engine,
    disk: &Disk,
    path: &GuestPath,
) -> Result<File, SnapshotError> {
    let path = LayerPath::from(path.as_str());
    seen(engine, disk, |view| match view.at(&path)? {
        At::Captured(found) => match &found.entry.node {
            Node::File { bytes, digest } => {
                let file = view.stored(found, &path)?;
                whole(view, &path, file, *bytes, *digest)
            }
            _ => Err(view.no_such("regular file", &path)),
        },
        At::Below(Seen::File { file, .. }) => {
            let rewound = (&file).rewind();
            rewound.map_err(os(|| format!("reading {path}")))?;
            Ok(file)
        }
        At::Below(_) | At::Nothing => Err(view.no_such("regular file", &path)),
    })
}

/// The machine's id as the sandbox saw it. `None` where it had none that is one.
pub(super) fn machine_id(
    engine: &Engine,
    record: &SnapshotRecord,
) -> Result<Option<String>, SnapshotError> {
    let view = View::open(engine, record)?;
    let path = LayerPath::from("etc/machine-id");
    let file = match view.at(&path)? {
        At::Captured(found) if matches!(found.entry.node, Node::File { .. }) => {
            view.stored(found, &path)?
        }
        At::Below(Seen::File { file, .. }) => file,
        _ => return Ok(None),
    };
    let mut text = String::new();
    let read = file.take(MACHINE_ID_BYTES_MAX).read_to_string(&mut text);
    let digits = text.trim();
    let good = read.is_ok() && digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    Ok(good.then(|| digits.to_owned()))
}

/// A captured file that is what was captured.
fn whole(
    view: &View<'_>,
    path: &LayerPath,
    file: File,
    bytes: u64,
    digest: ContentDigest,
) -> Result<File, SnapshotError> {
    let found = digest_of_file(&file).map_err(os(|| format!("reading {path}")))?;
    if found == (bytes, digest) {
        // Looking for its holes has moved where the next one reads from.
        (&file).rewind().map_err(os(|| format!("reading {path}")))?;
        Ok(file)
    } else {
        Err(view.changed(format!("{path} has other content")))
    }
}
