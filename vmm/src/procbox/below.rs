//! What lies below a sandbox's captured layers, read from the host's side with the sandbox's eyes.
//!
//! The skeleton lies on top, with its marks; below it the image, or the host's own root. Of the
//! latter only what everybody may read is opened or named, because the kernel gives a sandbox no
//! more ([`super`]); what is mounted there is not entered, because a sandbox does not see it either.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};

use super::engine::Engine;
use super::wire::{Lower, Users};
use crate::error::SnapshotError;
use crate::layers::{
    Attributes, LayerPath, Tree, is_whiteout, kind, link_target, names, open_file, os, stat,
};
use crate::spec::ImageRef;

/// Who has no number inside.
const NOBODY: u32 = 65_534;
/// Read and enter, for everybody.
const OTHERS_READ: u32 = 0o4;
const OTHERS_ENTER: u32 = 0o1;

/// What is at a path below the captured layers.
pub(super) enum Seen {
    Folder(Facts),
    File { file: File, facts: Facts },
    Link { target: Vec<u8>, facts: Facts },
    Special(Facts),
}

/// A file's attributes, with its owners as they are inside.
pub(super) struct Facts {
    pub(super) stat: FileStat,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Whose numbers the files of a tree bear.
#[derive(Clone, Copy)]
enum Numbers {
    /// Those of the host's disk for the users inside.
    Shifted { base: u32 },
    /// The same as inside.
    Same,
    /// Root inside is this user, and everybody else is nobody.
    Single { uid: u32, gid: u32 },
}

impl Numbers {
    fn facts(self, stat: FileStat) -> Facts {
        let (uid, gid) = match self {
            Self::Shifted { base } => (
                stat.st_uid.wrapping_sub(base),
                stat.st_gid.wrapping_sub(base),
            ),
            Self::Same => (stat.st_uid, stat.st_gid),
            Self::Single { uid, gid } => (
                if stat.st_uid == uid { 0 } else { NOBODY },
                if stat.st_gid == gid { 0 } else { NOBODY },
            ),
        };
        Facts { stat, uid, gid }
    }
}

/// Everything below the captured layers.
pub(super) struct Below {
    skeleton: Tree,
    base: Tree,
    /// Only what lies in these is taken from the base; `None` for all of it.
    grafts: Option<Vec<PathBuf>>,
    /// Only what everybody may read is seen of the base.
    for_everybody: bool,
    attributes: Attributes,
    skeleton_numbers: Numbers,
    base_numbers: Numbers,
}

/// One folder of it.
pub(super) struct BelowFolder<'a> {
    below: &'a Below,
    skeleton: Option<OwnedFd>,
    base: Option<OwnedFd>,
}

impl Below {
    pub(super) fn open(engine: &Engine, image: &ImageRef) -> Result<Self, SnapshotError> {
        let gone = |error: crate::error::CreateError| {
            SnapshotError::Unsupported(format!("what it was made from cannot be read: {error}"))
        };
        let (skeleton, lower) = engine.lower(image).map_err(gone)?;
        let skeleton = engine.options.sandboxes_dir.join(skeleton);
        let open =
            |path: &Path| Tree::open(path).map_err(os(|| format!("opening {}", path.display())));
        let (base, grafts, for_everybody) = match lower {
            Lower::HostRoot => (PathBuf::from("/"), None, true),
            Lower::Image(path) => (path, None, false),
            Lower::HostFolders(folders) => (PathBuf::from("/"), Some(folders), false),
        };
        let (skeleton_numbers, base_numbers) = match engine.users {
            Users::Shifted { base, .. } => (Numbers::Shifted { base }, Numbers::Same),
            Users::Single { uid, gid } => {
                (Numbers::Single { uid, gid }, Numbers::Single { uid, gid })
            }
        };
        Ok(Self {
            skeleton: open(&skeleton)?,
            base: open(&base)?,
            grafts,
            for_everybody,
            attributes: engine.attributes(),
            skeleton_numbers,
            base_numbers,
        })
    }

    pub(super) fn root(&self) -> Result<Seen, SnapshotError> {
        let stat = fstat(self.skeleton.root()).map_err(|errno| unreadable(errno, b"/"))?;
        Ok(Seen::Folder(self.skeleton_numbers.facts(stat)))
    }

    /// A folder, if there is one.
    pub(super) fn folder(
        &self,
        path: &LayerPath,
    ) -> Result<Option<BelowFolder<'_>>, SnapshotError> {
        let (mut in_skeleton, mut in_base) = (true, true);
        let places = path.above().into_iter().chain([path.clone()]);
        for place in places.filter(|place| !place.is_root()) {
            let Some((parent, name)) = place.split() else {
                continue;
            };
            if in_skeleton {
                match self.mark(&parent, name)? {
                    Mark::None => in_skeleton = false,
                    Mark::Folder { opaque } => in_base &= !opaque,
                    Mark::NotAFolder => return Ok(None),
                }
            }
        }
        in_base &= self.taken(path) && self.may_enter(path)?;
        let skeleton = match in_skeleton {
            true => absent_is_none(self.skeleton.folder(path), path.as_bytes())?,
            false => None,
        };
        let base = match in_base {
            true => absent_is_none(self.base.folder(path), path.as_bytes())?,
            false => None,
        };
        let found = skeleton.is_some() || base.is_some();
        Ok(found.then_some(BelowFolder {
            below: self,
            skeleton,
            base,
        }))
    }

    fn mark(&self, parent: &LayerPath, name: &[u8]) -> Result<Mark, SnapshotError> {
        let Some(folder) = absent_is_none(self.skeleton.folder(parent), name)? else {
            return Ok(Mark::None);
        };
        self.mark_in(folder.as_fd(), name)
    }

    fn mark_in(&self, folder: BorrowedFd<'_>, name: &[u8]) -> Result<Mark, SnapshotError> {
        let found = stat(folder, name).map_err(|errno| unreadable(errno, name))?;
        let Some(found) = found else {
            return Ok(Mark::None);
        };
        if kind(&found) != SFlag::S_IFDIR {
            return Ok(Mark::NotAFolder);
        }
        let (opaque, _) = self
            .attributes
            .of(folder, name)
            .map_err(os(|| "reading the attributes of the skeleton".to_owned()))?;
        Ok(Mark::Folder { opaque })
    }

    /// Whether this part of the base is taken at all.
    fn taken(&self, path: &LayerPath) -> bool {
        self.grafts.as_ref().is_none_or(|grafts| {
            let inside = |graft: &PathBuf| {
                let graft = LayerPath::from(graft.to_string_lossy().as_ref());
                path.below(&graft).is_some()
            };
            grafts.iter().any(inside)
        })
    }

    /// Whether everybody may enter every folder down to this one, where that counts.
    fn may_enter(&self, path: &LayerPath) -> Result<bool, SnapshotError> {
        if !self.for_everybody {
            return Ok(true);
        }
        for place in path.above().into_iter().chain([path.clone()]) {
            let Some(folder) = absent_is_none(self.base.folder(&place), place.as_bytes())? else {
                return Ok(false);
            };
            let found = fstat(&folder).map_err(|errno| unreadable(errno, place.as_bytes()))?;
            if found.st_mode & OTHERS_ENTER == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

enum Mark {
    None,
    Folder { opaque: bool },
    NotAFolder,
}

impl BelowFolder<'_> {
    /// What is at a name, if the sandbox saw anything there.
    pub(super) fn look(&self, name: &[u8]) -> Result<Option<Seen>, SnapshotError> {
        if let Some(skeleton) = &self.skeleton {
            let found = stat(skeleton.as_fd(), name).map_err(|errno| unreadable(errno, name))?;
            if let Some(found) = found {
                if is_whiteout(&found) {
                    return Ok(None);
                }
                return seen(
                    skeleton.as_fd(),
                    name,
                    found,
                    self.below.skeleton_numbers,
                    false,
                );
            }
        }
        let Some(base) = &self.base else {
            return Ok(None);
        };
        let found = stat(base.as_fd(), name).map_err(|errno| unreadable(errno, name))?;
        let Some(found) = found else {
            return Ok(None);
        };
        let numbers = self.below.base_numbers;
        seen(base.as_fd(), name, found, numbers, self.below.for_everybody)
    }

    /// The names in it, those that were hidden left out.
    pub(super) fn names(&self) -> Result<BTreeSet<Vec<u8>>, SnapshotError> {
        let mut all = BTreeSet::new();
        if let Some(base) = &self.base {
            let listed = fstat(base).map_err(|errno| unreadable(errno, b"."))?;
            if !self.below.for_everybody || listed.st_mode & OTHERS_READ != 0 {
                all.extend(names(base.as_fd()).map_err(|errno| unreadable(errno, b"."))?);
            }
        }
        if let Some(skeleton) = &self.skeleton {
            all.extend(names(skeleton.as_fd()).map_err(|errno| unreadable(errno, b"."))?);
        }
        Ok(all)
    }
}

/// Describes what is there. What not everybody may read is not there, where that counts.
fn seen(
    folder: BorrowedFd<'_>,
    name: &[u8],
    found: FileStat,
    numbers: Numbers,
    for_everybody: bool,
) -> Result<Option<Seen>, SnapshotError> {
    let hidden = |stat: &FileStat, bits: u32| for_everybody && stat.st_mode & bits != bits;
    Ok(Some(match kind(&found) {
        SFlag::S_IFDIR if hidden(&found, OTHERS_READ | OTHERS_ENTER) => return Ok(None),
        SFlag::S_IFDIR => Seen::Folder(numbers.facts(found)),
        SFlag::S_IFLNK => Seen::Link {
            target: link_target(folder, name).map_err(|errno| unreadable(errno, name))?,
            facts: numbers.facts(found),
        },
        SFlag::S_IFREG => {
            if hidden(&found, OTHERS_READ) {
                return Ok(None);
            }
            let file = match open_file(folder, name) {
                Ok(file) => file,
                // Also what an ordinary user's daemon may not read, its sandbox could not.
                Err(Errno::EACCES | Errno::ENOENT | Errno::ELOOP) => return Ok(None),
                Err(errno) => return Err(unreadable(errno, name)),
            };
            // Looked at once more: what was opened may not be what was there before.
            let opened = fstat(&file).map_err(|errno| unreadable(errno, name))?;
            if hidden(&opened, OTHERS_READ) {
                return Ok(None);
            }
            let facts = numbers.facts(opened);
            Seen::File { file, facts }
        }
        _ => Seen::Special(numbers.facts(found)),
    }))
}

/// What is missing, is no folder, lies behind a link or a mount, or may not be entered, is not there.
fn absent_is_none(
    found: Result<OwnedFd, Errno>,
    name: &[u8],
) -> Result<Option<OwnedFd>, SnapshotError> {
    match found {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV | Errno::EACCES) => {
            Ok(None)
        }
        Err(errno) => Err(unreadable(errno, name)),
    }
}

fn unreadable(errno: Errno, name: &[u8]) -> SnapshotError {
    let name = String::from_utf8_lossy(name).into_owned();
    os(|| format!("reading {name} below the captured layers"))(errno.into())
}
