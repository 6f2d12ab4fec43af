//! What happened to the files, and what a disk may hold in the middle of it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Random;

/// One thing that happened. Paths are relative to the folder that is watched.
#[derive(Clone, Debug)]
pub enum Op {
    MakeDir {
        path: String,
    },
    Create {
        path: String,
        inode: u64,
    },
    Write {
        inode: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    Truncate {
        inode: u64,
        bytes: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Remove {
        path: String,
    },
    SyncFile {
        inode: u64,
    },
    SyncDir {
        path: String,
    },
    /// A writer was answered: what it was told, one fact a line.
    Answer {
        text: String,
    },
}

/// What the loss of power does to what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Nothing: the process was killed.
    KeepAll,
    /// All of it is gone: bytes, sizes and names.
    DropUnsynced,
    /// Each piece of so many bytes kept some of the writes to it, the first ones; so did each size,
    /// and each folder some of its changes.
    RandomPieces(usize),
}

/// The files as they are found after the power is back.
#[derive(Clone, Default)]
pub struct Image {
    pub dirs: BTreeSet<String>,
    pub files: BTreeMap<String, Vec<u8>>,
}

/// A disk in the middle of a run: what is safe, and what is on its way.
#[derive(Default)]
pub struct Disk {
    names: Names,
    /// The names as the running process sees them.
    live: BTreeMap<String, u64>,
    /// Changes that no sync of their folder has followed, each with that folder.
    pending_names: Vec<(String, NameChange)>,
    inodes: BTreeMap<u64, Inode>,
}

#[derive(Clone)]
struct Names {
    dirs: BTreeSet<String>,
    files: BTreeMap<String, u64>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            // The watched folder was there before everything.
            dirs: BTreeSet::from([String::new()]),
            files: BTreeMap::new(),
        }
    }
}

#[derive(Default)]
struct Inode {
    safe: Vec<u8>,
    pending: Vec<Change>,
}

/// One change in one folder.
#[derive(Clone)]
enum NameChange {
    MakeDir(String),
    Insert(String, u64),
    Remove(String),
    /// Within the folder.
    Move(String, String, u64),
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Disk {
    pub fn play(&mut self, op: &Op) {
        match op {
            Op::Write {
                inode,
                offset,
                bytes,
            } => {
                let change = Change::Write(*offset as usize, bytes.clone());
                self.inodes.entry(*inode).or_default().pending.push(change);
            }
            Op::Truncate { inode, bytes } => {
                let change = Change::Truncate(*bytes as usize);
                self.inodes.entry(*inode).or_default().pending.push(change);
            }
            Op::SyncFile { inode } => self.inodes.entry(*inode).or_default().sync(),
            Op::SyncDir { path } => {
                let pending = std::mem::take(&mut self.pending_names);
                let (synced, kept) = pending.into_iter().partition(|(dir, _)| dir == path);
                self.pending_names = kept;
                let synced: Vec<(String, NameChange)> = synced;
                synced
                    .iter()
                    .for_each(|(_, change)| self.names.apply(change));
            }
            Op::Answer { .. } => {}
            Op::MakeDir { path } => self.change_names(path, NameChange::MakeDir(path.clone())),
            Op::Create { path, inode } => {
                self.live.insert(path.clone(), *inode);
                self.change_names(path, NameChange::Insert(path.clone(), *inode));
            }
            Op::Remove { path } => {
                self.live.remove(path);
                self.change_names(path, NameChange::Remove(path.clone()));
            }
            Op::Link { from, to } => {
                let inode = self.live[from];
                self.live.insert(to.clone(), inode);
                self.change_names(to, NameChange::Insert(to.clone(), inode));
            }
            Op::Rename { from, to } => self.rename(from, to),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let inode = self.live.remove(from).unwrap();
        self.live.insert(to.to_owned(), inode);
        if folder_of(from) == folder_of(to) {
            let change = NameChange::Move(from.to_owned(), to.to_owned(), inode);
            self.change_names(to, change);
        } else {
            // Each folder keeps its own half, and the loss of power may keep just one.
            self.change_names(to, NameChange::Insert(to.to_owned(), inode));
            self.change_names(from, NameChange::Remove(from.to_owned()));
        }
    }

    fn change_names(&mut self, path: &str, change: NameChange) {
        self.pending_names.push((folder_of(path), change));
    }

    /// Whether the models differ at this point.
    pub fn has_pending(&self) -> bool {
        !self.pending_names.is_empty()
            || self.inodes.values().any(|inode| !inode.pending.is_empty())
    }

    /// What the disk may hold if the power went now.
    pub fn image(&self, model: Model, random: &mut Random) -> Image {
        let mut names = self.names.clone();
        for dir in self.pending_dirs() {
            let changes = self.pending_names.iter().filter(|(of, _)| *of == dir);
            let kept = match model {
                Model::KeepAll => usize::MAX,
                Model::DropUnsynced => 0,
                Model::RandomPieces(_) => random.below(changes.clone().count() + 1),
            };
            changes
                .take(kept)
                .for_each(|(_, change)| names.apply(change));
        }
        names.drop_unreachable();
        let empty = Inode::default();
        let files = names.files.iter().map(|(path, inode)| {
            let inode = self.inodes.get(inode).unwrap_or(&empty);
            (path.clone(), inode.image(model, random))
        });
        Image {
            files: files.collect(),
            dirs: names.dirs,
        }
    }

    /// The folders with changes, those that were changed first coming first.
    fn pending_dirs(&self) -> Vec<String> {
        let mut dirs: Vec<String> = Vec::new();
        for (dir, _) in &self.pending_names {
            if !dirs.contains(dir) {
                dirs.push(dir.clone());
            }
        }
        dirs
    }
}

impl Names {
    /// A file is gone with its folder, and a folder with the one that it lies in.
    fn drop_unreachable(&mut self) {
        let mut reachable = BTreeSet::from([String::new()]);
        for dir in &self.dirs {
            // A folder's name sorts before the names of what lies in it.
            if reachable.contains(&folder_of(dir)) {
                reachable.insert(dir.clone());
            }
        }
        self.dirs = reachable;
        self.files
            .retain(|path, _| self.dirs.contains(&folder_of(path)));
    }

    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::MakeDir(path) => {
                self.dirs.insert(path.clone());
            }
            NameChange::Insert(path, inode) => {
                self.files.insert(path.clone(), *inode);
            }
            NameChange::Remove(path) => {
                self.files.remove(path);
            }
            NameChange::Move(from, to, inode) => {
                self.files.remove(from);
                self.files.insert(to.clone(), *inode);
            }
        }
    }
}

impl Inode {
    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.safe);
        }
    }

    fn image(&self, model: Model, random: &mut Random) -> Vec<u8> {
        let mut bytes = self.safe.clone();
        match model {
            Model::DropUnsynced => {}
            Model::KeepAll => self
                .pending
                .iter()
                .for_each(|change| change.apply(&mut bytes)),
            Model::RandomPieces(piece) => self.random_pieces(piece, &mut bytes, random),
        }
        bytes
    }

    fn random_pieces(&self, piece: usize, bytes: &mut Vec<u8>, random: &mut Random) {
        if self.pending.is_empty() {
            return;
        }
        // The size that each change leaves, and the one that the disk happens to remember.
        let mut size = bytes.len();
        let mut sizes = vec![size];
        for change in &self.pending {
            size = match change {
                Change::Write(offset, data) => size.max(offset + data.len()),
                Change::Truncate(to) => *to,
            };
            sizes.push(size);
        }
        let kept_size = sizes[random.below(sizes.len())];
        bytes.resize(sizes.iter().copied().max().unwrap_or_default(), 0);
        // How many of the changes to it each piece has seen, decided when it is first met.
        let mut kept: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, change) in self.pending.iter().enumerate() {
            let Change::Write(offset, data) = change else {
                continue;
            };
            let mut start = *offset;
            while start < offset + data.len() {
                let number = start / piece;
                let end = ((number + 1) * piece).min(offset + data.len());
                let seen = *kept
                    .entry(number)
                    .or_insert_with(|| random.below(self.pending.len() + 1));
                if at < seen {
                    bytes[start..end].copy_from_slice(&data[start - offset..end - offset]);
                }
                start = end;
            }
        }
        bytes.resize(kept_size, 0);
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Truncate(to) => bytes.resize(*to, 0),
            Change::Write(offset, data) => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
        }
    }
}

/// The folder that a path lies in; the watched folder itself is the empty path.
pub fn folder_of(path: &str) -> String {
    path.rsplit_once('/')
        .map_or(String::new(), |(folder, _)| folder.to_owned())
}
