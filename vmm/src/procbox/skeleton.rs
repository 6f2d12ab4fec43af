//! The layer that every sandbox has above its lower file system: mount points, empty private
//! folders, the guest daemon, and marks that hide what must not be seen.
//!
//! Hiding is done in a layer and not by mounts, so there is nothing that root inside could unmount.
//! The layer is built once and shared: its name is a digest of everything that it is made from, so
//! a new daemon, guest daemon or mask gets a new one, while sandboxes that still run keep theirs.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, mknod};

use super::host_view::{FolderPlan, KERNEL_FOLDERS, PRIVATE_FOLDERS};
use super::sys::set_xattr;
use super::tree::remove_tree;
use super::wire::{AGENTD_GUEST_PATH, DEVICE_NODES, Users};

/// Skeleton folders begin with this, so that they are never taken for a sandbox.
pub(super) const PREFIX: &str = ".skeleton-";
/// Bumped when the same inputs give another layer.
const FORMAT: u32 = 1;
/// Small files of a folder that cannot be taken whole are copied up to this size.
const COPIED_BYTES_MAX: u64 = 1024 * 1024;
/// Links in `/dev` that programs expect.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// What lies below the skeleton, as far as the skeleton must know.
#[derive(Clone, Debug)]
pub(super) enum Below {
    /// An image: nothing of it is private.
    Image,
    /// The host's `/`, of which these paths are hidden.
    HostRoot { hidden: Vec<PathBuf> },
    /// Folders of the host, of which these paths are hidden.
    HostFolders {
        hidden: Vec<PathBuf>,
        plan: FolderPlan,
    },
}

/// The name of the skeleton made from these inputs.
pub(super) fn name(agentd: &[u8], users: Users, below: &Below) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{FORMAT} {users:?} {below:?}").as_bytes());
    hasher.update(blake3::hash(agentd).as_bytes());
    let digest = hasher.finalize().to_hex();
    format!("{PREFIX}{}", digest.as_str().get(..24).unwrap_or_default())
}

/// Builds the skeleton unless it is there. It appears in one step, whole.
pub(super) fn build(dir: &Path, agentd: &[u8], users: Users, below: &Below) -> io::Result<String> {
    let name = name(agentd, users, below);
    let target = dir.join(&name);
    if target.is_dir() {
        return Ok(name);
    }
    let fresh = dir.join(format!("{name}.new-{}", std::process::id()));
    remove_tree(&fresh)?;
    fs::create_dir(&fresh)?;
    let builder = Builder {
        root: &fresh,
        users,
        mirror: !matches!(below, Below::Image),
    };
    builder.common(agentd)?;
    match below {
        Below::Image => {}
        Below::HostRoot { hidden } => {
            builder.private_folders()?;
            builder.hide(hidden)?;
        }
        Below::HostFolders { hidden, plan } => builder.host_folders(hidden, plan)?,
    }
    match fs::rename(&fresh, &target) {
        Ok(()) => Ok(name),
        // Another one was faster with the same.
        Err(_) if target.is_dir() => remove_tree(&fresh).map(|()| name),
        Err(error) => Err(error),
    }
}

struct Builder<'a> {
    root: &'a Path,
    users: Users,
    /// Folders that are made on the way to something get the attributes of the host's.
    mirror: bool,
}

impl Builder<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn opaque_attribute(&self) -> &'static CStr {
        match self.users {
            Users::Shifted { .. } => c"trusted.overlay.opaque",
            Users::Single { .. } => c"user.overlay.opaque",
        }
    }

    /// Gives something to the user inside whose number is `uid` (for what has no user inside:
    /// nobody).
    fn own(&self, place: &Path, uid: u32, gid: u32) -> io::Result<()> {
        let Users::Shifted { base, count } = self.users else {
            return Ok(());
        };
        let shifted = |id: u32| {
            base + if id < count {
                id
            } else {
                65_534.min(count - 1)
            }
        };
        lchown(place, Some(shifted(uid)), Some(shifted(gid)))
    }

    /// What every sandbox has.
    fn common(&self, agentd: &[u8]) -> io::Result<()> {
        self.folder(Path::new("/"), 0o755)?;
        for path in KERNEL_FOLDERS {
            self.folder(Path::new(path), 0o555)?;
        }
        for path in ["/workspace", "/run", "/dev", "/dev/pts", "/etc", "/.fluxvm"] {
            self.folder(Path::new(path), 0o755)?;
        }
        for path in ["/tmp", "/var/tmp", "/run/lock", "/dev/shm"] {
            self.folder(Path::new(path), 0o1777)?;
        }
        self.folder(Path::new("/root"), 0o700)?;
        set_xattr(&self.at(Path::new("/dev")), self.opaque_attribute(), b"y")?;
        for node in DEVICE_NODES {
            self.file(&Path::new("/dev").join(node), 0o666, b"")?;
        }
        for (path, target) in DEVICE_LINKS {
            self.link(Path::new(path), Path::new(target))?;
        }
        self.file(Path::new(AGENTD_GUEST_PATH), 0o555, agentd)?;
        // There is no resolver to name: names are resolved outside, where the policy is.
        self.file(Path::new("/etc/resolv.conf"), 0o644, b"")
    }

    /// Folders of which the host's content is not shown.
    fn private_folders(&self) -> io::Result<()> {
        for (path, mode) in PRIVATE_FOLDERS {
            self.folder(Path::new(path), mode)?;
            set_xattr(&self.at(Path::new(path)), self.opaque_attribute(), b"y")?;
        }
        Ok(())
    }

    fn hide(&self, hidden: &[PathBuf]) -> io::Result<()> {
        hidden.iter().try_for_each(|path| self.whiteout(path))
    }

    /// The host's folders for an ordinary user: only what is named appears at all.
    fn host_folders(&self, hidden: &[PathBuf], plan: &FolderPlan) -> io::Result<()> {
        for (path, mode) in PRIVATE_FOLDERS {
            self.folder(Path::new(path), mode)?;
        }
        for path in plan.folders.iter().chain(&plan.grafts) {
            self.parents(path)?;
            self.mirrored(path)?;
        }
        for path in &plan.entries {
            // What cannot be read or is a socket or a device has no place here.
            let Ok(metadata) = fs::symlink_metadata(path) else {
                continue;
            };
            if metadata.is_symlink() {
                self.link(path, &fs::read_link(path)?)?;
            } else if metadata.is_file() && metadata.len() <= COPIED_BYTES_MAX {
                let Ok(bytes) = fs::read(path) else { continue };
                self.file(path, metadata.mode() & 0o777, &bytes)?;
            }
        }
        let grafted = |path: &&PathBuf| plan.grafts.iter().any(|graft| path.starts_with(graft));
        hidden
            .iter()
            .filter(grafted)
            .try_for_each(|path| self.whiteout(path))
    }

    fn folder(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.parents(path)?;
        let place = self.at(path);
        make_folder(&place)?;
        self.own(&place, 0, 0)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))
    }

    /// Makes the folders above `path`.
    fn parents(&self, path: &Path) -> io::Result<()> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        above
            .into_iter()
            .filter(|path| path.parent().is_some())
            .try_for_each(|p| self.mirrored(p))
    }

    /// Makes a folder like the host's, which it will be merged with.
    fn mirrored(&self, path: &Path) -> io::Result<()> {
        let place = self.at(path);
        if place.is_dir() {
            return Ok(());
        }
        make_folder(&place)?;
        let host = self.mirror.then(|| fs::metadata(path)).and_then(Result::ok);
        let (mode, uid, gid) = match host.filter(fs::Metadata::is_dir) {
            Some(host) => (host.mode() & 0o7777, host.uid(), host.gid()),
            None => (0o755, 0, 0),
        };
        self.own(&place, uid, gid)?;
        // An ordinary user's own layers must stay open to that user.
        let mode = if matches!(self.users, Users::Single { .. }) {
            mode | 0o700
        } else {
            mode
        };
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))
    }

    fn file(&self, path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        let place = self.at(path);
        fs::write(&place, bytes)?;
        self.own(&place, 0, 0)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(mode))
    }

    fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        self.parents(path)?;
        let place = self.at(path);
        symlink(target, &place)?;
        self.own(&place, 0, 0)
    }

    /// Hides a path, there or not: something of that name may appear on the host later.
    fn whiteout(&self, path: &Path) -> io::Result<()> {
        let mut so_far = PathBuf::from("/");
        for part in path.components().filter(|part| *part != Component::RootDir) {
            so_far.push(part);
            let real_folder = fs::symlink_metadata(&so_far).is_ok_and(|found| found.is_dir());
            if so_far != path && real_folder {
                continue;
            }
            // The first part that the host does not have, or has as something else, hides the rest
            // too.
            if so_far != path && fs::symlink_metadata(&so_far).is_ok() {
                return Ok(());
            }
            break;
        }
        let place = self.at(&so_far);
        if place.symlink_metadata().is_ok() {
            // A folder of the skeleton itself: emptied of the host's content rather than gone.
            return match place.is_dir() {
                true => set_xattr(&place, self.opaque_attribute(), b"y"),
                false => Ok(()),
            };
        }
        self.parents(&so_far)?;
        mknod(&place, SFlag::S_IFCHR, Mode::empty(), 0).map_err(io::Error::from)
    }
}

fn make_folder(place: &Path) -> io::Result<()> {
    match fs::create_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Gives the fresh upper and work folders of a sandbox to root inside.
pub(super) fn give_to_root(place: &Path, users: Users) -> io::Result<()> {
    match users {
        Users::Shifted { base, .. } => chown(place, Some(base), Some(base)),
        Users::Single { .. } => Ok(()),
    }
}
