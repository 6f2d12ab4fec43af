//! The files below the plain store, behind a trait: a test puts a disk there that forgets.
//!
//! The trait has what an append-only log needs and nothing else. It says what is durable when, in
//! the terms of POSIX: bytes after a sync of the file, names after a sync of the folder.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use crate::environment::Disk;
use crate::files;

/// Folders of files.
pub trait FileSystem: Send + Sync {
    /// Makes the folder and whatever leads to it, durable when this returns.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Keeps others out for as long as the answer lives; an error of the kind `WouldBlock` where
    /// somebody else holds the folder.
    fn lock(&self, dir: &Path) -> io::Result<Option<File>>;

    /// The names of the files in the folder, in any order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file that exists.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>>;

    /// Makes an empty file that did not exist. Its name is durable after a sync of the folder.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>>;

    /// Makes the names in the folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Gives a folder another name beside its old one. Durable after a sync of the folder above.
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file. Durable after a sync of its folder.
    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a folder and all that is in it. Durable after a sync of the folder above.
    fn remove_dir(&self, _dir: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A file of such a folder.
pub trait StoreFile: Send + Sync {
    /// How many bytes it has.
    fn bytes(&self) -> io::Result<u64>;

    /// Fills `buffer` with what lies at `offset`, or fails.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, or fails having written any part of them.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file off behind so many bytes.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Makes the file's bytes and its size durable.
    fn sync(&self) -> io::Result<()>;
}

/// The machine's own files.
pub(crate) struct RealFiles {
    disk: Arc<dyn Disk>,
}

impl RealFiles {
    /// Files that are synced by `disk`.
    pub(crate) fn new(disk: Arc<dyn Disk>) -> RealFiles {
        RealFiles { disk }
    }

    fn real(&self, file: File) -> Arc<dyn StoreFile> {
        let disk = Arc::clone(&self.disk);
        Arc::new(RealFile { file, disk })
    }
}

impl FileSystem for RealFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        files::create_private_dir(dir, &*self.disk)
    }

    fn lock(&self, dir: &Path) -> io::Result<Option<File>> {
        files::lock(dir).map(Some)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(dir)?;
        let names = entries.map(|entry| entry?.file_name().into_string().map_err(not_text));
        names.collect()
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(self.real(file))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn StoreFile>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        Ok(self.real(options.open(path)?))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        files::sync_path(dir, &*self.disk)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }
}

fn not_text(name: std::ffi::OsString) -> io::Error {
    let path = PathBuf::from(name);
    io::Error::other(format!("the name {} is not text", path.display()))
}

struct RealFile {
    file: File,
    disk: Arc<dyn Disk>,
}

impl StoreFile for RealFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync_data(&self.file)
    }
}
