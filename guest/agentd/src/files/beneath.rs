//! Making things below one folder and nowhere else, with the kernel as the judge.
//!
//! The root is opened once. Whatever is made later is reached from that descriptor by a call that
//! follows no symbolic link, leaves the root by no way, and fails instead. A name that was harmless
//! by its text cannot be led elsewhere by a link that came before it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::fcntl::OFlag;
use nix::fcntl::OpenHow;
use nix::fcntl::ResolveFlag;
use nix::fcntl::open;
use nix::fcntl::openat2;
use nix::sys::stat::Mode;
use nix::sys::stat::UtimensatFlags;
use nix::sys::stat::mkdirat;
use nix::sys::stat::utimensat;
use nix::sys::time::TimeSpec;
use nix::unistd::Gid;
use nix::unistd::Uid;
use nix::unistd::UnlinkatFlags;
use nix::unistd::fchownat;
use nix::unistd::linkat;
use nix::unistd::symlinkat;
use nix::unistd::unlinkat;

use super::changes::own;
use super::file::FOLDER_MODE;
use super::names::Place;

/// Permissions of a file until its content has landed.
const UNFINISHED_MODE: u32 = 0o600;

/// A folder below which things are made.
#[derive(Debug)]
pub(super) struct Beneath {
    root: OwnedFd,
    /// The folder used last: members of one folder come together.
    last: Option<(Place, OwnedFd)>,
}

type Result<T> = std::result::Result<T, Errno>;

impl Beneath {
    /// Takes a folder as root. Its own path may lead over links.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self {
            root: open(root, flags, Mode::empty())?,
            last: None,
        })
    }

    /// Makes a folder, or finds it. A file in its place gives way; a link does not.
    pub(super) fn make_folder(&mut self, place: &Place) -> Result<()> {
        let Some((folder, name)) = place.split() else {
            return Ok(());
        };
        let folder = self.folder(&folder)?;
        match make_one_folder(folder, name) {
            Err(Errno::ENOTDIR) => {}
            made => return made.map(|_| ()),
        }
        unlinkat(folder, as_path(name), UnlinkatFlags::NoRemoveDir)?;
        make_one_folder(folder, name).map(|_| ())
    }

    /// Makes a file in the place of whatever file or link was there: other names of the old file
    /// keep its bytes.
    pub(super) fn make_file(&mut self, place: &Place) -> Result<File> {
        let (folder, name) = self.cleared(place)?;
        let how = how(OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY)
            .mode(Mode::from_bits_truncate(UNFINISHED_MODE));
        openat2(folder, as_path(&name), how).map(File::from)
    }

    /// Makes a symbolic link with this text.
    pub(super) fn make_symlink(&mut self, place: &Place, target: &[u8]) -> Result<()> {
        let (folder, name) = self.cleared(place)?;
        symlinkat(as_path(target), folder, as_path(&name))
    }

    /// Gives a symbolic link its owner and its time.
    pub(super) fn date_symlink(
        &mut self,
        place: &Place,
        (uid, gid): (u32, u32),
        modified: TimeSpec,
    ) -> Result<()> {
        let (folder, name) = place.split().ok_or(Errno::EISDIR)?;
        let folder = self.folder(&folder)?;
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        own(fchownat(folder, as_path(name), owner.0, owner.1, flags))?;
        let flags = UtimensatFlags::NoFollowSymlink;
        utimensat(
            folder,
            as_path(name),
            &TimeSpec::UTIME_OMIT,
            &modified,
            flags,
        )
    }

    /// Removes a file, a link or an empty folder. What is not there is removed already.
    pub(super) fn remove(&mut self, place: &Place) -> Result<()> {
        let (folder, name) = place.split().ok_or(Errno::EISDIR)?;
        // What was opened last may be what goes.
        self.last = None;
        let folder = match openat2(&self.root, as_path(&folder.path()), folder_how()) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(()),
            opened => opened?,
        };
        let gone = match unlinkat(&folder, as_path(name), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => unlinkat(&folder, as_path(name), UnlinkatFlags::RemoveDir),
            gone => gone,
        };
        match gone {
            Err(Errno::ENOENT) => Ok(()),
            gone => gone,
        }
    }

    /// Makes another name for what lies at `target`, itself a place below the root.
    pub(super) fn make_hard_link(&mut self, place: &Place, target: &Place) -> Result<()> {
        if place == target {
            return Ok(());
        }
        let (target_folder, target_name) = target.split().ok_or(Errno::EISDIR)?;
        let target_folder = openat2(&self.root, as_path(&target_folder.path()), folder_how())?;
        let (folder, name) = self.cleared(place)?;
        let flags = AtFlags::empty();
        linkat(
            target_folder,
            as_path(target_name),
            folder,
            as_path(&name),
            flags,
        )
    }

    /// Opens a folder below the root to change it.
    pub(super) fn open_folder(&self, place: &Place) -> Result<File> {
        let how = how(OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        openat2(&self.root, as_path(&place.path()), how).map(File::from)
    }

    /// The folder of a place and its name there, with no file or link in its way.
    fn cleared(&mut self, place: &Place) -> Result<(&OwnedFd, Vec<u8>)> {
        let (folder, name) = place.split().ok_or(Errno::EISDIR)?;
        let name = name.to_vec();
        let folder = self.folder(&folder)?;
        match unlinkat(folder, as_path(&name), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok((folder, name)),
            Err(errno) => Err(errno),
        }
    }

    /// A folder below the root, made with all on its way if it is not there.
    fn folder(&mut self, place: &Place) -> Result<&OwnedFd> {
        let known = self.last.as_ref().is_some_and(|(last, _)| last == place);
        if !known {
            let opened = match openat2(&self.root, as_path(&place.path()), folder_how()) {
                Err(Errno::ENOENT) => self.make_way(place)?,
                opened => opened?,
            };
            self.last = Some((place.clone(), opened));
        }
        match &self.last {
            Some((_, folder)) => Ok(folder),
            None => Err(Errno::ENOENT),
        }
    }

    fn make_way(&self, place: &Place) -> Result<OwnedFd> {
        let mut folder = self.root.try_clone().map_err(|_| Errno::EMFILE)?;
        for component in place.components() {
            folder = make_one_folder(&folder, component)?;
        }
        Ok(folder)
    }
}

fn make_one_folder(folder: &impl AsFd, name: &[u8]) -> Result<OwnedFd> {
    match mkdirat(folder, as_path(name), Mode::from_bits_truncate(FOLDER_MODE)) {
        Ok(()) | Err(Errno::EEXIST) => openat2(folder, as_path(name), folder_how()),
        Err(errno) => Err(errno),
    }
}

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    )
}

fn folder_how() -> OpenHow {
    how(OFlag::O_PATH | OFlag::O_DIRECTORY)
}

fn as_path(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
