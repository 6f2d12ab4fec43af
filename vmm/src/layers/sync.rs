//! Making a layer durable.
//!
//! **The promise.** When a checkpoint has been answered, its layers and its record survive the end of
//! the daemon at once, and the loss of power as far as the device keeps what it has acknowledged.
//! What half survives a loss of power is found by its digest and never passed off as whole.
//!
//! A sync of each file would cost a flush of the device each. On file systems with one journal for
//! everything (ext4, xfs) it is enough to have the content written out and the journal flushed once,
//! behind it; elsewhere each file and folder is synced.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::sys::statfs::{FsType, fstatfs};

use super::manifest::Manifest;
use super::path::LayerPath;
use super::sys::{Wait, write_back};
use super::tree::Tree;

/// Files held open between copying and syncing. Beyond, they are synced one by one.
const OPEN_FILES_MAX: usize = 64;
const EXT4: FsType = nix::sys::statfs::EXT4_SUPER_MAGIC;
const XFS: FsType = nix::sys::statfs::XFS_SUPER_MAGIC;
const TMPFS: FsType = nix::sys::statfs::TMPFS_MAGIC;

/// What of a layer is not known to be on the device.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    open: Vec<File>,
    /// Those for which there were too many open files.
    paths: Vec<LayerPath>,
}

impl Unsynced {
    /// Notes a fresh file, and has the device begin with it.
    pub(super) fn push(&mut self, path: &LayerPath, file: File) -> io::Result<()> {
        if self.open.len() < OPEN_FILES_MAX {
            write_back(&file, Wait::No)?;
            self.open.push(file);
        } else {
            self.paths.push(path.clone());
        }
        Ok(())
    }
}

/// Has a layer's content written out. What is left to do is to sync the folder that its name will
/// be in.
pub(super) fn layer(
    tree: &Tree,
    manifest: &Manifest,
    manifest_file: File,
    unsynced: Unsynced,
) -> io::Result<()> {
    let kind = fstatfs(tree.root())?.filesystem_type();
    if kind == TMPFS {
        return Ok(());
    }
    let joint = kind == EXT4 || kind == XFS;
    let sync = |file: &File| match joint {
        true => write_back(file, Wait::ForDevice),
        false => file.sync_all(),
    };
    unsynced.open.iter().try_for_each(sync)?;
    sync(&manifest_file)?;
    for path in &unsynced.paths {
        sync(&tree.file(path)?)?;
    }
    if !joint {
        for (path, entry) in &manifest.entries {
            if entry.is_folder() {
                nix::unistd::fsync(tree.folder(path)?)?;
            }
        }
    }
    Ok(())
}

/// Makes the names in a folder durable.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether the file system notes every change of content in the time of change. One in memory does
/// not where a program changes a file through a mapping.
pub(crate) fn times_tell(folder: BorrowedFd<'_>) -> bool {
    fstatfs(folder).is_ok_and(|stat| stat.filesystem_type() != TMPFS)
}

/// The same of a path.
pub(crate) fn times_tell_at(path: &Path) -> bool {
    File::open(path).is_ok_and(|folder| times_tell(folder.as_fd()))
}

/// Has the pages of a mapped file written, so that its next change is noticed.
pub(crate) fn write_back_mapped(file: &File) -> io::Result<()> {
    write_back(file, Wait::ForDevice)
}
