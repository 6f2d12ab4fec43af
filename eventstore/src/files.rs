//! The few steps on files and folders that durability is made of.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::fs::TryLockError;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::path::PathBuf;

use crate::environment::Disk;

/// The file that is locked while a folder is in use.
pub(crate) const LOCK: &str = "lock";

/// What the owner may do with a folder, and nobody else.
const PRIVATE_DIR_MODE: u32 = 0o700;

/// Makes the folder and whatever leads to it, each durable in its parent.
pub(crate) fn create_private_dir(dir: &Path, disk: &dyn Disk) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = parent_of(dir);
    if parent != dir {
        create_private_dir(&parent, disk)?;
    }
    match DirBuilder::new().mode(PRIVATE_DIR_MODE).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    sync_path(&parent, disk)
}

/// Keeps other processes, and other handles of this one, out of the folder for as long as the
/// answer lives; an error of the kind `WouldBlock` where somebody else holds it.
pub(crate) fn lock(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true);
    let file = options.open(dir.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// The folder that `path` lies in.
pub(crate) fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

/// Makes a file's bytes and size, or a folder's entries, durable.
pub(crate) fn sync_path(path: &Path, disk: &dyn Disk) -> io::Result<()> {
    disk.sync_all(&File::open(path)?)
}

/// The sizes of all files below `dir`, as far as they can be seen.
pub(crate) fn bytes_under(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_under(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}
