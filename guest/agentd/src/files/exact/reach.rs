//! Reaching a path, with the kernel as the judge of where it leads.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use agentd_protocol::FileFault;
use agentd_protocol::paths::encode_segment;
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::fcntl::OFlag;
use nix::fcntl::OpenHow;
use nix::fcntl::ResolveFlag;
use nix::fcntl::openat2;
use nix::fcntl::readlink;

use super::Denial;

/// A path that is to be changed: the folder, opened, and the name in it.
pub(super) struct Spot {
    pub(super) folder: OwnedFd,
    pub(super) name: String,
}

/// What to do about a folder on the way that is not there.
pub(super) type Missing<'a> = &'a dyn Fn(&OwnedFd, &str) -> Result<(), Errno>;

/// The parts of an absolute path. `..` is refused: what it means depends on links.
pub(super) fn parts(path: &str) -> Result<Vec<&str>, Denial> {
    let malformed = |why: &str| Denial::new(FileFault::Malformed, format!("{path}: {why}"));
    if !path.starts_with('/') {
        return Err(malformed("the path is not absolute"));
    }
    if path.contains('\0') {
        return Err(malformed("the path holds a zero byte"));
    }
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if parts.contains(&"..") {
        return Err(malformed("the path goes upwards"));
    }
    Ok(parts)
}

/// Opens for reading whatever lies at a path. Links are followed, but for the kernel's own.
pub(super) fn open_to_read(path: &str, flags: OFlag) -> Result<OwnedFd, Denial> {
    parts(path)?;
    // Not to be held up by a pipe without a writer; a look alone is not held up by anything.
    let waits = match flags.contains(OFlag::O_PATH) {
        true => OFlag::empty(),
        false => OFlag::O_NONBLOCK | OFlag::O_NOCTTY,
    };
    let flags = flags | OFlag::O_CLOEXEC | waits;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(AT_FDCWD, OsStr::from_bytes(path.as_bytes()), how).map_err(|errno| match errno {
        Errno::ELOOP => Denial::new(
            FileFault::MagicLink,
            format!("{path}: it leads through a link of /proc, or through too many links"),
        ),
        errno => Denial::of(path, errno),
    })
}

/// Where something that was opened lies, percent-encoded as one segment. What has no name any more
/// has one that says so.
pub(super) fn real_path(path: &str, opened: &impl AsRawFd) -> Result<String, Denial> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let found = readlink(link.as_str()).map_err(|errno| Denial::of(path, errno))?;
    Ok(encode_segment(found.as_bytes()))
}

/// Reaches a path without following a link. Folders that are not there are made by `missing`, if it
/// can.
pub(super) fn reach(path: &str, missing: Option<Missing<'_>>) -> Result<Spot, Denial> {
    let parts = parts(path)?;
    let Some((name, way)) = parts.split_last() else {
        let why = format!("{path}: the root itself cannot be changed");
        return Err(Denial::new(FileFault::Malformed, why));
    };
    let mut folder = step(&AT_FDCWD, "/").map_err(|errno| Denial::of(path, errno))?;
    for part in way {
        let entered = match (step(&folder, part), missing) {
            (Err(Errno::ENOENT), Some(make)) => {
                make(&folder, part).map_err(|errno| Denial::of(path, errno))?;
                step(&folder, part)
            }
            (entered, _) => entered,
        };
        folder = entered.map_err(|errno| blocked(path, part, errno))?;
    }
    Ok(Spot {
        folder,
        name: (*name).to_owned(),
    })
}

fn step(folder: &impl AsFd, part: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(folder.as_fd(), OsStr::from_bytes(part.as_bytes()), how)
}

fn blocked(path: &str, part: &str, errno: Errno) -> Denial {
    match errno {
        Errno::ELOOP => Denial::new(
            FileFault::Symlink,
            format!("{path}: {part} is a symbolic link; name the folder that it points at"),
        ),
        errno => Denial::of(path, errno),
    }
}
