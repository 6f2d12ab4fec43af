//! Removing a folder whose content a guest chose.
//!
//! Every step names one entry of an open folder and follows no link, so nothing outside can be
//! reached. A guest may also have nested folders deeper than there are descriptors or stack: a
//! folder that is not empty is therefore moved up to the top and emptied there, and never more than
//! two are open.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, fchmodat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

const OPEN: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_RDONLY);

/// Removes the folder and all that is in it. A missing one is no failure.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open_folder(AT_FDCWD, path) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let mut moved = 0_u64;
    loop {
        let folders = empty(&top, &top, &mut moved)?;
        if folders.is_empty() {
            break;
        }
        for name in folders {
            let folder = match open_folder(&top, name.as_c_str()) {
                // Two removals of the same folder may run at once: what is gone is gone.
                Err(Errno::ENOENT) => continue,
                opened => opened?,
            };
            empty(&folder, &top, &mut moved)?;
            gone_is_fine(unlinkat(&top, name.as_c_str(), UnlinkatFlags::RemoveDir))?;
        }
    }
    gone_is_fine(unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir))
}

fn gone_is_fine(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Unlinks every entry of `folder`. Folders that are not empty move up to `top` under a number;
/// those that lie in `top` already stay and are returned.
fn empty(folder: &OwnedFd, top: &OwnedFd, moved: &mut u64) -> io::Result<Vec<CString>> {
    let in_top = folder.as_raw_fd() == top.as_raw_fd();
    let mut left = Vec::new();
    for name in names(folder)? {
        let name = name.as_c_str();
        if !is_folder(folder, name)? {
            gone_is_fine(unlinkat(folder, name, UnlinkatFlags::NoRemoveDir))?;
            continue;
        }
        match unlinkat(folder, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if in_top => left.push(name.to_owned()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => move_up(folder, name, top, moved)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(left)
}

fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    // A second description of the same folder: reading must not move the first one's position.
    let mut dir = Dir::from_fd(openat(folder, c".", OPEN, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn is_folder(folder: &OwnedFd, name: &CStr) -> io::Result<bool> {
    let stat = match fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => return Ok(false),
        stat => stat?,
    };
    Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
}

/// Renames `folder/name` to a fresh number in `top`.
fn move_up(folder: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        let number = CString::new(format!(".moved-{moved}"))?;
        // A folder that may not be written cannot be moved: its `..` changes.
        let mut tried = renameat(folder, name, top, number.as_c_str());
        if tried == Err(Errno::EACCES) {
            allow(folder, name)?;
            tried = renameat(folder, name, top, number.as_c_str());
        }
        match tried {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            // Somebody's entry, or the trace of an earlier attempt, has that number.
            Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Opens a folder for reading and emptying, giving its owner the right to first where it is
/// missing.
fn open_folder<F, P>(at: F, name: &P) -> Result<OwnedFd, Errno>
where
    F: std::os::fd::AsFd + Copy,
    P: nix::NixPath + ?Sized,
{
    let opened = openat(at, name, OPEN, Mode::empty());
    let usable = opened
        .as_ref()
        .is_ok_and(|fd| nix::unistd::faccessat(fd, c".", ACCESS, AtFlags::AT_EACCESS).is_ok());
    if usable || matches!(opened, Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR)) {
        return opened;
    }
    allow(at, name)?;
    openat(at, name, OPEN, Mode::empty())
}

const ACCESS: nix::unistd::AccessFlags = nix::unistd::AccessFlags::R_OK
    .union(nix::unistd::AccessFlags::W_OK)
    .union(nix::unistd::AccessFlags::X_OK);

/// Lets the owner into a folder. The sandbox is dead, so nobody swaps the folder for a link in
/// between; and a mode is all that would change.
fn allow<F, P>(at: F, name: &P) -> Result<(), Errno>
where
    F: std::os::fd::AsFd,
    P: nix::NixPath + ?Sized,
{
    fchmodat(at, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_are_removed_and_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        symlink(outside.path(), tree.join("link")).unwrap();
        symlink(outside.path(), tree.join("a/b/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.path().join("kept").exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut at = openat(AT_FDCWD, &tree, OPEN, Mode::empty()).unwrap();
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&at, c"deeper", Mode::S_IRWXU).unwrap();
            at = openat(&at, c"deeper", OPEN, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn folders_that_nobody_may_enter_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let tree = parent.path().join("tree");
        fs::create_dir_all(tree.join("a/closed/inner")).unwrap();
        fs::write(tree.join("a/closed/inner/file"), "x").unwrap();
        for path in ["a/closed/inner", "a/closed", "a"] {
            fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
