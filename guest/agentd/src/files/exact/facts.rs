//! What lies at a path, and what lies in it.

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use agentd_protocol::EntryKind;
use agentd_protocol::FileEntry;
use agentd_protocol::FileFacts;
use agentd_protocol::limits::LISTED_ENTRIES_MAX;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::fcntl::OFlag;
use nix::fcntl::openat;
use nix::fcntl::readlinkat;
use nix::sys::stat::FileStat;
use nix::sys::stat::Mode;
use nix::sys::stat::fstat;
use nix::sys::stat::fstatat;

use super::Denial;
use super::reach;

/// Looks. Links to the path itself are followed, those in a folder are shown.
pub(crate) fn facts(path: &str) -> Result<FileFacts, Denial> {
    let found = reach::open_to_read(path, OFlag::O_PATH)?;
    let stat = fstat(&found).map_err(|errno| Denial::of(path, errno))?;
    let name = path.trim_end_matches('/').rsplit('/').next();
    let entry = entry(name.unwrap_or_default().to_owned(), &stat, None);
    let mut facts = FileFacts {
        entry,
        entries: None,
        truncated: false,
        real_path: Some(reach::real_path(path, &found)?),
    };
    if facts.entry.kind == EntryKind::Dir {
        let (entries, truncated) = list(&found).map_err(|errno| Denial::of(path, errno))?;
        facts.entries = Some(entries);
        facts.truncated = truncated;
    }
    Ok(facts)
}

fn list(folder: &OwnedFd) -> Result<(Vec<FileEntry>, bool), Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let readable = openat(folder.as_fd(), ".", flags, Mode::empty())?;
    let mut dir = Dir::from_fd(readable)?;
    let mut entries = Vec::new();
    let mut truncated = false;
    for found in dir.iter() {
        let found = found?;
        let name = found.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if entries.len() == LISTED_ENTRIES_MAX {
            truncated = true;
            break;
        }
        // What went away meanwhile is not there.
        let Ok(stat) = fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let target = readlinkat(folder.as_fd(), name)
            .ok()
            .map(|target| target.to_string_lossy().into_owned());
        entries.push(entry(name.to_string_lossy().into_owned(), &stat, target));
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok((entries, truncated))
}

fn entry(name: String, stat: &FileStat, target: Option<String>) -> FileEntry {
    FileEntry {
        name,
        kind: kind_of(stat),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: stat.st_mtime,
        mode: stat.st_mode & 0o7777,
        target,
    }
}

/// What a file is, by its mode.
pub(super) fn kind_of(stat: &FileStat) -> EntryKind {
    match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => EntryKind::File,
        libc::S_IFDIR => EntryKind::Dir,
        libc::S_IFLNK => EntryKind::Symlink,
        _ => EntryKind::Other,
    }
}
