//! Unpacking an archive below a folder.
//!
//! The archive lands in an unnamed temporary file first: it is whole before anything of it is made,
//! and memory holds none of it. What then fails half-way leaves what it had made; the same archive
//! sent again comes to the same end.

use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::sys::stat::fchmod;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use tar::Archive;
use tar::Entry;
use tar::EntryType;

use super::Fault;
use super::Incoming;
use super::Room;
use super::TreeLimits;
use super::beneath::Beneath;
use super::file::FOLDER_MODE;
use super::names::NameFault;
use super::names::Place;
use super::path_fault;

/// Permissions that a member can get at most.
const MEMBER_MODE_MAX: u32 = 0o755;

/// Bytes copied at once.
const COPY_BYTES: usize = 128 * 1024;

/// What an archive that cannot be read is answered with.
const BROKEN: &str = "tar operation failed";

/// Unpacks a body below `path`.
pub(crate) fn write_tree(
    path: &str,
    announced_bytes: u64,
    limits: TreeLimits,
    reserve_bytes: u64,
    body: Incoming,
) -> Result<(), Fault> {
    let root = Path::new(path);
    if !root.is_absolute() {
        return Err(Fault::Refused("the path of a tree is absolute".into()));
    }
    let spool = spool(body, Room::new(reserve_bytes), announced_bytes)?;
    let room = Room::new(reserve_bytes);
    room.before(root, 0)?;
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(root)
        .map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
                Fault::Refused(format!("{path} is no folder"))
            }
            _ => path_fault(path, &error),
        })?;
    let beneath = Beneath::open(root).map_err(|errno| path_fault(path, &errno.into()))?;
    let mut extraction = Extraction {
        beneath,
        room,
        limits,
        members: 0,
        bytes: 0,
        folder_modes: Vec::new(),
        buffer: vec![0; COPY_BYTES],
    };
    let unpacked = extraction.unpack(&spool);
    extraction.apply_folder_modes();
    unpacked
}

/// The whole body in a file that has no name.
pub(super) fn spool(
    mut body: Incoming,
    mut room: Room,
    announced_bytes: u64,
) -> Result<File, Fault> {
    let folder = std::env::temp_dir();
    room.before(&folder, announced_bytes)?;
    let failed = |error: io::Error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => Fault::NoRoom,
        _ => Fault::Failed(format!("the archive cannot be kept meanwhile: {error}")),
    };
    let mut file = unnamed_file(&folder).map_err(failed)?;
    while let Some(bytes) = body.next()? {
        file.write_all(&bytes).map_err(failed)?;
        room.wrote(bytes.len(), &file)?;
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}

fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Ok(file) => Ok(file),
        // Not every file system makes files without a name.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let name = format!(
                ".agentd-{}-{:?}",
                std::process::id(),
                std::thread::current().id()
            );
            let path = folder.join(name);
            let file = options.create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

struct Extraction {
    beneath: Beneath,
    room: Room,
    limits: TreeLimits,
    members: u64,
    bytes: u64,
    /// What folders get at the end, so that none is closed before its members are made.
    folder_modes: Vec<(Place, u32)>,
    buffer: Vec<u8>,
}

impl Extraction {
    fn unpack(&mut self, spool: &File) -> Result<(), Fault> {
        let mut archive = Archive::new(spool);
        for entry in archive.entries().map_err(|error| broken(&error))? {
            let mut entry = entry.map_err(|error| broken(&error))?;
            self.members += 1;
            if self.members > self.limits.members_max {
                let most = self.limits.members_max;
                return Err(Fault::TooMuch(format!(
                    "the archive has more than {most} members"
                )));
            }
            self.member(&mut entry)?;
        }
        Ok(())
    }

    fn member(&mut self, entry: &mut Entry<'_, &File>) -> Result<(), Fault> {
        let name = entry.path_bytes().into_owned();
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            // A remark about all members, as some programs write it in front; no member.
            return Ok(());
        }
        let refuse = |why: &dyn std::fmt::Display| {
            let name = String::from_utf8_lossy(&name);
            Fault::Refused(format!("refused tar member {name}: {why}"))
        };
        let place = Place::of(&name).map_err(|fault| refuse(&fault))?;
        let folder = kind.is_dir() || (kind.is_file() && name.ends_with(b"/"));
        if place.is_root() {
            return if folder {
                Ok(())
            } else {
                Err(refuse(&"it names the root itself"))
            };
        }
        let made = match kind {
            _ if folder => {
                let mode = entry.header().mode().unwrap_or(FOLDER_MODE);
                self.folder_modes.push((place.clone(), mode));
                self.beneath.make_folder(&place)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                match self.beneath.make_file(&place) {
                    Ok(file) => return self.fill(file, entry),
                    Err(errno) => Err(errno),
                }
            }
            EntryType::Symlink => {
                let target = link_target(entry).ok_or_else(|| refuse(&NameFault::Unusable))?;
                let (from, _) = place.split().unwrap_or_default();
                from.then(&target)
                    .map_err(|fault| refuse(&format!("its target is refused: {fault}")))?;
                self.beneath.make_symlink(&place, &target)
            }
            EntryType::Link => {
                let target = link_target(entry).ok_or_else(|| refuse(&NameFault::Unusable))?;
                let target = Place::of(&target)
                    .map_err(|fault| refuse(&format!("its target is refused: {fault}")))?;
                match self.beneath.make_hard_link(&place, &target) {
                    Err(Errno::ENOENT) => {
                        let name = String::from_utf8_lossy(&name);
                        let said = format!("{BROKEN}: {name}: its target is not there");
                        return Err(Fault::Failed(said));
                    }
                    made => made,
                }
            }
            _ => return Err(refuse(&"members of its kind are not unpacked")),
        };
        made.map_err(|errno| match errno {
            Errno::ELOOP => refuse(&"its path leads over a symbolic link"),
            Errno::EXDEV => refuse(&"its path leads out of the root"),
            Errno::EACCES | Errno::EPERM | Errno::ENAMETOOLONG => refuse(&errno.desc()),
            Errno::ENOTDIR => refuse(&"a part of its path is no folder"),
            Errno::EISDIR | Errno::EEXIST => refuse(&"a folder is in its place"),
            Errno::ENOSPC | Errno::EDQUOT => Fault::NoRoom,
            errno => Fault::Failed(format!(
                "{BROKEN}: {}: {}",
                String::from_utf8_lossy(&name),
                errno.desc()
            )),
        })
    }

    fn fill(&mut self, mut file: File, entry: &mut Entry<'_, &File>) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(entry.size());
        if self.bytes > self.limits.bytes_max {
            let most = self.limits.bytes_max;
            return Err(Fault::TooMuch(format!(
                "the archive's files hold more than {most} bytes"
            )));
        }
        let mut left = entry.size();
        while left > 0 {
            let bytes = match entry.read(&mut self.buffer) {
                Ok(0) => return Err(Fault::Refused("the archive ends inside a member".into())),
                Ok(bytes) => bytes,
                Err(error) => return Err(broken(&error)),
            };
            let portion = self.buffer.get(..bytes).unwrap_or_default();
            file.write_all(portion).map_err(|error| {
                match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ENOSPC | Errno::EDQUOT) => Fault::NoRoom,
                    _ => Fault::Failed(format!("{BROKEN}: {error}")),
                }
            })?;
            self.room.wrote(bytes, &file)?;
            left = left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        let mode = entry.header().mode().unwrap_or(0o644);
        apply_mode(&file, mode);
        if let Ok(seconds) = i64::try_from(entry.header().mtime().unwrap_or(0)) {
            let _ = futimens(&file, &TimeSpec::UTIME_OMIT, &TimeSpec::new(seconds, 0));
        }
        Ok(())
    }

    /// Deepest first: a folder that loses its search permission must not hide another.
    fn apply_folder_modes(&mut self) {
        let mut modes = std::mem::take(&mut self.folder_modes);
        modes.sort_by_key(|(place, _)| std::cmp::Reverse(place.depth()));
        for (place, mode) in modes {
            match self.beneath.open_folder(&place) {
                Ok(folder) => apply_mode(&folder, mode),
                Err(errno) => tracing::debug!(%errno, "a folder's permissions stay as they are"),
            }
        }
    }
}

/// Permissions that cannot be set are no reason to refuse a tree.
fn apply_mode(file: &File, mode: u32) {
    let mode = Mode::from_bits_truncate(mode & MEMBER_MODE_MAX);
    if let Err(errno) = fchmod(file, mode) {
        tracing::debug!(%errno, "a member's permissions stay as they are");
    }
}

fn link_target(entry: &Entry<'_, &File>) -> Option<Vec<u8>> {
    entry.link_name_bytes().map(std::borrow::Cow::into_owned)
}

fn broken(error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Fault::Refused("the archive ends inside a member".into());
    }
    Fault::Failed(format!("{BROKEN}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::Portion;
    use super::super::incoming;
    use super::*;

    /// Unpacks below `root` in a folder that nobody else uses.
    fn unpack(root: &Path, archive: Vec<u8>, limits: TreeLimits) -> Result<(), Fault> {
        let (portions, body) = incoming();
        let feeding = std::thread::spawn(move || {
            let _ = portions.blocking_send(Portion::Bytes(archive.into()));
            let _ = portions.blocking_send(Portion::End);
        });
        let unpacked = write_tree(root.to_str().unwrap(), 0, limits, 0, body);
        feeding.join().unwrap();
        unpacked
    }

    type Member = (u8, String, String, Vec<u8>);

    fn archive(members: &[Member]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, target, data) in members {
            let mut header = tar::Header::new_gnu();
            let fields = header.as_gnu_mut().unwrap();
            fields.name[..name.len()].copy_from_slice(name.as_bytes());
            fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_entry_type(EntryType::new(*kind));
            header.set_mode(0o755);
            header.set_size(u64::try_from(data.len()).unwrap());
            header.set_cksum();
            builder.append(&header, data.as_slice()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn more_members_or_bytes_than_the_caps_are_too_much() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes| (b'0', name.to_owned(), String::new(), vec![0; bytes]);
        let two = archive(&[file("a", 600), file("b", 600)]);
        let limits = |members_max, bytes_max| TreeLimits {
            members_max,
            bytes_max,
        };
        let unpack = |limits| unpack(folder.path(), two.clone(), limits);
        assert!(matches!(unpack(limits(1, 9999)), Err(Fault::TooMuch(_))));
        assert!(matches!(unpack(limits(9, 1199)), Err(Fault::TooMuch(_))));
        assert_eq!(unpack(limits(2, 1200)), Ok(()));
    }

    /// What lies in a folder outside the root, with its content.
    fn seen(folder: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
        let mut seen = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("root") {
                let content = std::fs::read(&path).unwrap_or_default();
                seen.insert(path, content);
            }
        }
        seen
    }

    fn member() -> impl Strategy<Value = Member> {
        let kind = prop::sample::select(vec![b'0', b'1', b'2', b'5', b'3', b'7', b'g', b'Z', 0]);
        let part = prop::sample::select(vec!["a", "b", "c", "..", ".", "", "outside"]);
        let path = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"));
        let data = prop::collection::vec(any::<u8>(), 0..20);
        (kind, path.clone(), path, data)
    }

    proptest! {
        #[test]
        fn no_archive_touches_anything_outside_its_root(
            members in prop::collection::vec(member(), 1..12),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("root");
            std::fs::create_dir(&root).unwrap();
            std::fs::write(folder.path().join("outside"), "kept").unwrap();
            std::os::unix::fs::symlink("..", root.join("c")).unwrap();
            let before = seen(folder.path());
            let unpacked = unpack(&root, archive(&members), TreeLimits::default());
            prop_assert_eq!(seen(folder.path()), before);
            if let Err(Fault::Refused(said)) = unpacked {
                let rest = said.strip_prefix("refused tar member ").unwrap();
                let named = members.iter().any(|(_, name, ..)| {
                    rest.strip_prefix(name.as_str()).is_some_and(|r| r.starts_with(": "))
                });
                prop_assert!(named, "{}", said);
            }
            // Once more over what is there comes to the same end.
            let first = unpack(&root, archive(&members), TreeLimits::default()).is_ok();
            let second = unpack(&root, archive(&members), TreeLimits::default()).is_ok();
            prop_assert_eq!(first, second);
        }

        #[test]
        fn any_bytes_are_unpacked_or_refused_and_stay_inside(
            bytes in prop::collection::vec(any::<u8>(), 0..4096),
            members in prop::collection::vec(member(), 0..3),
            at in any::<prop::sample::Index>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().join("root");
            let mut mixed = archive(&members);
            let at = at.index(mixed.len());
            mixed.splice(at..at, bytes);
            let _ = unpack(&root, mixed, TreeLimits::default());
            prop_assert_eq!(seen(folder.path()), BTreeMap::new());
        }
    }
}
