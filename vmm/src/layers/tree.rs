//! Folders that a guest filled, read and copied without following a link.
//!
//! Everything is named by an open folder and one name in it, and folders are opened below a fixed
//! one with no link on the way: whatever a guest puts where, nothing outside is reached. Folders
//! are opened one at a time, so depth costs neither descriptors nor stack.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat, mkdirat};
use nix::unistd::{Whence, lseek64};

use super::path::LayerPath;
use super::sys;

/// Longest path of a layer in bytes: what one system call takes.
pub(crate) const PATH_BYTES_MAX: usize = 4095;
/// Bytes copied by one call where the kernel cannot do it alone.
const COPY_BYTES: usize = 1024 * 1024;

/// A folder below which everything is named.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

impl Tree {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let root = openat(AT_FDCWD, path, flags, Mode::empty())?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a folder in it.
    pub(crate) fn folder(&self, path: &LayerPath) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlag::O_DIRECTORY | OFlag::O_RDONLY)
    }

    /// Opens a regular file in it for reading. Anything else is no such file.
    pub(crate) fn file(&self, path: &LayerPath) -> Result<File, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let file = File::from(self.open_at(path, flags)?);
        regular(file)
    }

    fn open_at(&self, path: &LayerPath, flags: OFlag) -> Result<OwnedFd, Errno> {
        if path.as_bytes().len() > PATH_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = match path.is_root() {
            true => c".".to_owned(),
            false => CString::new(path.as_bytes()).map_err(|_| Errno::EINVAL)?,
        };
        let resolve = ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS
            | ResolveFlag::RESOLVE_NO_XDEV;
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        openat2(
            &self.root,
            name.as_c_str(),
            OpenHow::new().flags(flags).resolve(resolve),
        )
    }

    /// Makes a folder and those above it, for nobody else until they get their own attributes.
    pub(crate) fn make_folder(&self, path: &LayerPath) -> Result<(), Errno> {
        let Some((parent, name)) = path.split() else {
            return Ok(());
        };
        let parent = match self.folder(&parent) {
            Ok(parent) => parent,
            Err(Errno::ENOENT) => {
                self.make_folder(&parent)?;
                self.folder(&parent)?
            }
            Err(errno) => return Err(errno),
        };
        match mkdirat(&parent, OsStr::from_bytes(name), Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Opens a regular file of an open folder for reading.
pub(crate) fn open_file(folder: BorrowedFd<'_>, name: &[u8]) -> Result<File, Errno> {
    let flags = OFlag::O_RDONLY
        | OFlag::O_NOFOLLOW
        | OFlag::O_NONBLOCK
        | OFlag::O_NOCTTY
        | OFlag::O_CLOEXEC;
    let open = |flags| openat(folder, OsStr::from_bytes(name), flags, Mode::empty());
    let opened = match open(flags | OFlag::O_NOATIME) {
        // Only an owner may leave the time of access alone.
        Err(Errno::EPERM) => open(flags),
        opened => opened,
    };
    regular(File::from(opened?))
}

fn regular(file: File) -> Result<File, Errno> {
    let stat = nix::sys::stat::fstat(&file)?;
    if kind(&stat) == SFlag::S_IFREG {
        Ok(file)
    } else {
        Err(Errno::ENOENT)
    }
}

/// The names in a folder, in no order.
pub(crate) fn names(folder: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    // A second description of the same folder: reading must not move the first one's position.
    let mut dir = Dir::from_fd(openat(folder, c".", flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_bytes().to_vec());
        }
    }
    Ok(names)
}

/// What an entry of a folder is. `None` when there is none.
pub(crate) fn stat(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FileStat>, Errno> {
    let found = if name.is_empty() {
        nix::sys::stat::fstat(folder)
    } else {
        fstatat(
            folder,
            OsStr::from_bytes(name),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
    };
    match found {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The kind bits of a mode.
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Whether an entry of a layer says that there is nothing.
pub(crate) fn is_whiteout(stat: &FileStat) -> bool {
    kind(stat) == SFlag::S_IFCHR && stat.st_rdev == 0
}

/// Nanoseconds since 1970, as far as they can be counted.
pub(crate) fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Where the target of a link of an open folder points.
pub(crate) fn link_target(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let target = nix::fcntl::readlinkat(folder, OsStr::from_bytes(name))?;
    Ok(target.as_bytes().to_vec())
}

/// Copies what a file holds, holes left out. Returns the number of bytes that are not holes.
pub(crate) fn copy_content(from: &File, to: &File, length: u64) -> io::Result<u64> {
    let mut copied = 0_u64;
    let mut at = 0_i64;
    let end = i64::try_from(length).unwrap_or(i64::MAX);
    while at < end {
        let data = match lseek64(from, at, Whence::SeekData) {
            Ok(data) => data,
            Err(Errno::ENXIO) => break,
            // Without knowledge of holes all of it is data.
            Err(Errno::EINVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let hole = lseek64(from, data, Whence::SeekHole)
            .unwrap_or(end)
            .min(end);
        if hole <= data {
            break;
        }
        copy_range(from, to, data, hole)?;
        copied = copied.saturating_add(u64::try_from(hole - data).unwrap_or(0));
        at = hole;
    }
    to.set_len(length)?;
    Ok(copied)
}

fn copy_range(from: &File, to: &File, start: i64, end: i64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let rest = usize::try_from(end - at).unwrap_or(usize::MAX);
        match sys::copy_range(from, to, at, rest) {
            // The file became shorter: what is missing reads as zeros.
            Ok(0) => return Ok(()),
            Ok(copied) => at = at.saturating_add(i64::try_from(copied).unwrap_or(i64::MAX)),
            Err(Errno::EINTR) => {}
            Err(Errno::EXDEV | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                return copy_by_hand(from, to, at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, start: i64, end: i64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut at = u64::try_from(start).unwrap_or(0);
    let end = u64::try_from(end).unwrap_or(0);
    let mut buffer = vec![0_u8; COPY_BYTES];
    while at < end {
        let want = usize::try_from(end - at)
            .unwrap_or(COPY_BYTES)
            .min(COPY_BYTES);
        let slice = buffer.get_mut(..want).unwrap_or_default();
        let read = from.read_at(slice, at)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all_at(slice.get(..read).unwrap_or_default(), at)?;
        at += u64::try_from(read).unwrap_or(0);
    }
    Ok(())
}
