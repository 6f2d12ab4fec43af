//! Putting a file in its place: written beside it, checked, given its mode, renamed over it.
//!
//! Nobody in the guest ever sees half of it under its name. What was there keeps its other names and
//! its bytes under them.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use agentd_protocol::EntryKind;
use agentd_protocol::FileFault;
use agentd_protocol::Placed;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::fcntl::OFlag;
use nix::fcntl::openat;
use nix::fcntl::renameat;
use nix::sys::stat::Mode;
use nix::sys::stat::fstatat;
use nix::sys::stat::mkdirat;
use nix::unistd::Gid;
use nix::unistd::Uid;
use nix::unistd::UnlinkatFlags;
use nix::unistd::fchownat;
use nix::unistd::unlinkat;
use sha2::Digest;
use sha2::Sha256;

use super::Denial;
use super::facts::kind_of;
use super::hex;
use super::reach;
use super::reach::Spot;
use crate::files::Incoming;
use crate::files::Room;
use crate::files::file::FOLDER_MODE;

/// Permissions of the file until it is whole.
const UNFINISHED_MODE: u32 = 0o600;

/// Who gets what is made; `None` keeps the daemon's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

/// What to put where.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) path: String,
    pub(crate) mode: u32,
    /// Folders on the way are made.
    pub(crate) parents: bool,
    /// How many bytes have to come.
    pub(crate) size: u64,
    /// The digest that they have to have.
    pub(crate) sha256: Option<String>,
    pub(crate) owner: Owner,
}

/// Puts a body in its place, or changes nothing but for folders that were made on the way.
pub(crate) fn place(order: &Order, mut room: Room, mut body: Incoming) -> Result<Placed, Denial> {
    let path = order.path.as_str();
    room.before(Path::new(path), order.size)?;
    let make = |folder: &OwnedFd, name: &str| make_folder(folder, name, order.owner);
    let spot = reach::reach(path, if order.parents { Some(&make) } else { None })?;
    let replaced = check_target(path, &spot)?;
    let unfinished = unfinished_name()?;
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW;
    let opened = openat(
        spot.folder.as_fd(),
        unfinished.as_str(),
        flags | OFlag::O_CLOEXEC,
        Mode::from_bits_truncate(UNFINISHED_MODE),
    );
    let mut file = File::from(opened.map_err(|errno| Denial::of(path, errno))?);
    let placed = fill(order, &mut file, &mut room, &mut body).and_then(|sha256| {
        let folder = spot.folder.as_fd();
        renameat(folder, unfinished.as_str(), folder, spot.name.as_str())
            .map_err(|errno| Denial::of(path, errno))?;
        Ok(Placed {
            size: order.size,
            sha256,
            mode: order.mode,
            replaced,
        })
    });
    if placed.is_err() {
        let _ = unlinkat(
            spot.folder.as_fd(),
            unfinished.as_str(),
            UnlinkatFlags::NoRemoveDir,
        );
    }
    placed
}

/// Whether a regular file is there that may be replaced.
fn check_target(path: &str, spot: &Spot) -> Result<bool, Denial> {
    let stat = fstatat(
        spot.folder.as_fd(),
        spot.name.as_str(),
        AtFlags::AT_SYMLINK_NOFOLLOW,
    );
    let (fault, why) = match stat.map(|stat| kind_of(&stat)) {
        Err(Errno::ENOENT) => return Ok(false),
        Err(errno) => return Err(Denial::of(path, errno)),
        Ok(EntryKind::File) => return Ok(true),
        Ok(EntryKind::Dir) => (FileFault::NotAFile, "is a folder"),
        Ok(EntryKind::Symlink) => (
            FileFault::Symlink,
            "is a symbolic link; name the file that it points at, or remove it first",
        ),
        Ok(EntryKind::Other) => (FileFault::NotAFile, "is no regular file"),
    };
    Err(Denial::new(fault, format!("{path} {why}")))
}

fn make_folder(folder: &OwnedFd, name: &str, owner: Owner) -> Result<(), Errno> {
    match mkdirat(folder.as_fd(), name, Mode::from_bits_truncate(FOLDER_MODE)) {
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
        Ok(()) if owner == Owner::default() => Ok(()),
        Ok(()) => fchownat(
            folder.as_fd(),
            name,
            owner.uid.map(Uid::from_raw),
            owner.gid.map(Gid::from_raw),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        ),
    }
}

fn fill(
    order: &Order,
    file: &mut File,
    room: &mut Room,
    body: &mut Incoming,
) -> Result<String, Denial> {
    let failed = |error: io::Error| Denial::of_io(&order.path, &error);
    let mut hasher = Sha256::new();
    let mut size = 0_u64;
    while let Some(bytes) = body.next()? {
        size += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > order.size {
            break;
        }
        hasher.update(&bytes);
        file.write_all(&bytes).map_err(failed)?;
        room.wrote(bytes.len(), file)?;
    }
    if size != order.size {
        let why = format!(
            "{} bytes were announced and {size} or more came",
            order.size
        );
        return Err(Denial::new(FileFault::SizeMismatch, why));
    }
    let sha256 = hex(&hasher.finalize());
    if let Some(announced) = &order.sha256
        && !announced.eq_ignore_ascii_case(&sha256)
    {
        let why = format!("the bytes have the SHA-256 {sha256}, not {announced}");
        return Err(Denial::new(FileFault::ChecksumMismatch, why));
    }
    if order.owner != Owner::default() {
        let (uid, gid) = (order.owner.uid, order.owner.gid);
        std::os::unix::fs::fchown(&*file, uid, gid).map_err(failed)?;
    }
    // Last: a change of owner takes the set-id bits away.
    file.set_permissions(std::fs::Permissions::from_mode(order.mode))
        .map_err(failed)?;
    Ok(sha256)
}

/// A name that nothing in the folder has.
fn unfinished_name() -> Result<String, Denial> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Denial::new(FileFault::Failed, error.to_string()))?;
    Ok(format!(".fluxvm-{}", hex(&random)))
}
