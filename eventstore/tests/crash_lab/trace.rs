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
pub struct Disk {
    /// By the number of the folder; the watched one is the first.
    folders: Vec<Folder>,
    inodes: BTreeMap<u64, Inode>,
}

/// The names in a folder. A folder that gets another name keeps them.
#[derive(Default)]
struct Folder {
    safe: Entries,
    /// Changes that no sync of the folder has followed.
    pending: Vec<NameChange>,
    /// The names as the running process sees them.
    live: Entries,
}

type Entries = BTreeMap<String, Entry>;

#[derive(Clone, Copy)]
enum Entry {
    File(u64),
    Folder(usize),
}

#[derive(Clone)]
enum NameChange {
    Insert(String, Entry),
    Remove(String),
    /// Within the folder.
    Move(String, String, Entry),
}

#[derive(Default)]
struct Inode {
    safe: Vec<u8>,
    pending: Vec<Change>,
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Default for Disk {
    fn default() -> Disk {
        Disk {
            folders: vec![Folder::default()],
            inodes: BTreeMap::new(),
        }
    }
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
                let folder = self.folder(path);
                self.folders[folder].sync();
            }
            Op::Answer { .. } => {}
            Op::MakeDir { path } => {
                self.folders.push(Folder::default());
                self.insert(path, Entry::Folder(self.folders.len() - 1));
            }
            Op::Create { path, inode } => self.insert(path, Entry::File(*inode)),
            Op::Remove { path } => self.remove(path),
            Op::Link { from, to } => {
                let entry = self.entry(from);
                self.insert(to, entry);
            }
            Op::Rename { from, to } => self.rename(from, to),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let entry = self.entry(from);
        if folder_of(from) == folder_of(to) {
            let folder = self.folder(&folder_of(to));
            let change = NameChange::Move(name_of(from), name_of(to), entry);
            self.folders[folder].change(change);
        } else {
            // Each folder keeps its own half, and the loss of power may keep just one.
            self.insert(to, entry);
            self.remove(from);
        }
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        let folder = self.folder(&folder_of(path));
        self.folders[folder].change(NameChange::Insert(name_of(path), entry));
    }

    fn remove(&mut self, path: &str) {
        let folder = self.folder(&folder_of(path));
        self.folders[folder].change(NameChange::Remove(name_of(path)));
    }

    /// The number of the folder that the process sees under this path.
    fn folder(&self, path: &str) -> usize {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(0, |folder, name| {
            match self.folders[folder].live.get(name) {
                Some(Entry::Folder(number)) => *number,
                _ => panic!("there is no folder {path}"),
            }
        })
    }

    fn entry(&self, path: &str) -> Entry {
        let folder = &self.folders[self.folder(&folder_of(path))];
        *folder
            .live
            .get(&name_of(path))
            .unwrap_or_else(|| panic!("there is no {path}"))
    }

    /// What the disk may hold if the power went now.
    pub fn image(&self, model: Model, random: &mut Random) -> Image {
        let mut image = Image::default();
        self.lay_down(0, "", model, random, &mut image);
        image
    }

    fn lay_down(
        &self,
        number: usize,
        path: &str,
        model: Model,
        random: &mut Random,
        image: &mut Image,
    ) {
        image.dirs.insert(path.to_owned());
        let empty = Inode::default();
        for (name, entry) in self.folders[number].image(model, random) {
            let path = match path {
                "" => name,
                path => format!("{path}/{name}"),
            };
            match entry {
                Entry::Folder(number) => self.lay_down(number, &path, model, random, image),
                Entry::File(inode) => {
                    let inode = self.inodes.get(&inode).unwrap_or(&empty);
                    image.files.insert(path, inode.image(model, random));
                }
            }
        }
    }
}

impl Folder {
    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.safe);
        }
    }

    fn image(&self, model: Model, random: &mut Random) -> Entries {
        let kept = match model {
            Model::KeepAll => self.pending.len(),
            Model::DropUnsynced => 0,
            Model::RandomPieces(_) => random.below(self.pending.len() + 1),
        };
        let mut entries = self.safe.clone();
        self.pending[..kept]
            .iter()
            .for_each(|change| change.apply(&mut entries));
        entries
    }
}

impl NameChange {
    fn apply(&self, entries: &mut Entries) {
        match self {
            NameChange::Insert(name, entry) => {
                entries.insert(name.clone(), *entry);
            }
            NameChange::Remove(name) => {
                entries.remove(name);
            }
            NameChange::Move(from, to, entry) => {
                entries.remove(from);
                entries.insert(to.clone(), *entry);
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

fn name_of(path: &str) -> String {
    path.rsplit_once('/')
        .map_or(path, |(_, name)| name)
        .to_owned()
}
