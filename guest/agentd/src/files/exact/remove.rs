//! Removing a file, a link or a tree. Links are removed and never followed.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use agentd_protocol::EntryKind;
use agentd_protocol::FileFault;
use agentd_protocol::Removed;
use agentd_protocol::limits::REMOVED_LEVELS_MAX;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::fcntl::OFlag;
use nix::fcntl::openat;
use nix::sys::stat::Mode;
use nix::sys::stat::fstatat;
use nix::unistd::UnlinkatFlags;
use nix::unistd::unlinkat;

use super::Denial;
use super::facts::kind_of;
use super::reach;

/// Removes what lies at a path. A folder that is not empty goes only with all that is in it.
pub(crate) fn remove(path: &str, recursive: bool) -> Result<Removed, Denial> {
    let spot = reach::reach(path, None)?;
    let name = CString::new(spot.name.as_str()).map_err(|_| Denial::of(path, Errno::EINVAL))?;
    let folder = &spot.folder;
    let stat = fstatat(
        folder.as_fd(),
        name.as_c_str(),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    );
    let stat = stat.map_err(|errno| Denial::of(path, errno))?;
    let mut removed = Removed {
        kind: kind_of(&stat),
        size: 0,
        entries: 0,
    };
    if removed.kind == EntryKind::Dir && recursive {
        empty(folder, &name, &mut removed, 0).map_err(|stop| match stop {
            Stop::TooDeep => Denial::new(
                FileFault::TooLarge,
                format!(
                    "{path} is more than {REMOVED_LEVELS_MAX} levels deep; remove it from inside"
                ),
            ),
            Stop::Kernel(errno) => Denial::of(path, errno),
        })?;
    }
    unlink(folder, &name, &mut removed).map_err(|errno| Denial::of(path, errno))?;
    Ok(removed)
}

enum Stop {
    TooDeep,
    Kernel(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Kernel(errno)
    }
}

/// Removes all that is in a folder.
fn empty(above: &OwnedFd, name: &CString, removed: &mut Removed, level: usize) -> Result<(), Stop> {
    if level >= REMOVED_LEVELS_MAX {
        return Err(Stop::TooDeep);
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = openat(above.as_fd(), name.as_c_str(), flags, Mode::empty())?;
    let mut names = Vec::new();
    let mut dir = Dir::from_fd(folder.try_clone().map_err(|_| Errno::EMFILE)?)?;
    for entry in dir.iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    drop(dir);
    for name in names {
        match unlink(&folder, &name, removed) {
            // Something made it a folder, or it is one that is not empty.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                empty(&folder, &name, removed, level + 1)?;
                unlink(&folder, &name, removed)?;
            }
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn unlink(folder: &OwnedFd, name: &CString, removed: &mut Removed) -> Result<(), Errno> {
    let stat = fstatat(
        folder.as_fd(),
        name.as_c_str(),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    )?;
    let kind = kind_of(&stat);
    let how = match kind {
        EntryKind::Dir => UnlinkatFlags::RemoveDir,
        _ => UnlinkatFlags::NoRemoveDir,
    };
    unlinkat(folder.as_fd(), name.as_c_str(), how)?;
    removed.entries += 1;
    if kind == EntryKind::File {
        removed.size += u64::try_from(stat.st_size).unwrap_or(0);
    }
    Ok(())
}
