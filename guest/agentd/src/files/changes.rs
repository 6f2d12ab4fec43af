//! Applying a set of changes below a folder: what goes, and what is there afterwards, exactly.
//!
//! An archive says what is added. A set of changes also says what goes: a member of the kind
//! [`REMOVED`] names a path that is no more. And what it adds has the owner, the permissions and the
//! time that the archive says, so that a tree can be made equal to another one. A link may say
//! whatever it says: it is made and never followed.
//!
//! The set lands in an unnamed file first and is then applied in its own order. What fails half-way
//! leaves what was done; the caller holds the set that undoes it.

use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;

use agentd_protocol::paths::REMOVED;
use nix::errno::Errno;
use nix::sys::stat::Mode;
use nix::sys::stat::fchmod;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use nix::unistd::Gid;
use nix::unistd::Uid;
use nix::unistd::fchown;
use tar::Archive;
use tar::Entry;
use tar::EntryType;

use super::Fault;
use super::Incoming;
use super::Room;
use super::TreeLimits;
use super::beneath::Beneath;
use super::extract::spool;
use super::names::Place;
use super::path_fault;

/// All permission bits.
const MODE_MASK: u32 = 0o7777;
/// Bytes copied at once.
const COPY_BYTES: usize = 128 * 1024;
/// The record of an archive that says a time more finely than a header can.
const FINE_TIME: &str = "mtime";

/// What something that was made gets once its content is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    uid: u32,
    gid: u32,
    mode: u32,
    modified: TimeSpec,
}

/// Applies a body below `path`, which must be a folder.
pub(crate) fn apply_changes(
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
    let mut changing = Changing {
        beneath: Beneath::open(root).map_err(|errno| path_fault(path, &errno.into()))?,
        room,
        limits,
        members: 0,
        bytes: 0,
        folders: Vec::new(),
        buffer: vec![0; COPY_BYTES],
    };
    changing.apply(&spool)?;
    changing.finish_folders()
}

struct Changing {
    beneath: Beneath,
    room: Room,
    limits: TreeLimits,
    members: u64,
    bytes: u64,
    /// What folders get at the end: neither closed nor dated before their members are made.
    folders: Vec<(Place, Attributes)>,
    buffer: Vec<u8>,
}

impl Changing {
    fn apply(&mut self, spool: &File) -> Result<(), Fault> {
        let mut archive = Archive::new(spool);
        for entry in archive.entries().map_err(|error| broken(&error))? {
            let mut entry = entry.map_err(|error| broken(&error))?;
            self.members += 1;
            if self.members > self.limits.members_max {
                let most = self.limits.members_max;
                return Err(Fault::TooMuch(format!("more than {most} changes")));
            }
            self.member(&mut entry)?;
        }
        Ok(())
    }

    fn member(&mut self, entry: &mut Entry<'_, &File>) -> Result<(), Fault> {
        let name = entry.path_bytes().into_owned();
        let shown = String::from_utf8_lossy(&name).into_owned();
        let refuse = |why: String| Fault::Refused(format!("refused change of {shown}: {why}"));
        let place = Place::of(&name).map_err(|fault| refuse(fault.to_string()))?;
        if place.is_root() {
            return Err(refuse("it names the root itself".into()));
        }
        let failed = |errno: Errno| match errno {
            Errno::ENOSPC | Errno::EDQUOT => Fault::NoRoom,
            errno => refuse(errno.desc().into()),
        };
        let attributes = attributes(entry).map_err(|error| broken(&error))?;
        match entry.header().entry_type() {
            kind if kind.as_byte() == REMOVED => self.beneath.remove(&place).map_err(failed),
            EntryType::Directory => {
                self.folders.push((place.clone(), attributes));
                self.beneath.make_folder(&place).map_err(failed)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                self.beneath.make_symlink(&place, &target).map_err(failed)?;
                self.beneath
                    .date_symlink(
                        &place,
                        (attributes.uid, attributes.gid),
                        attributes.modified,
                    )
                    .map_err(failed)
            }
            EntryType::Regular => {
                let file = self.beneath.make_file(&place).map_err(failed)?;
                self.fill(&file, entry)?;
                attributes.give(&file).map_err(failed)
            }
            _ => Err(refuse("changes of its kind are not applied".into())),
        }
    }

    fn fill(&mut self, mut file: &File, entry: &mut Entry<'_, &File>) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(entry.size());
        if self.bytes > self.limits.bytes_max {
            let most = self.limits.bytes_max;
            return Err(Fault::TooMuch(format!("files of more than {most} bytes")));
        }
        let mut left = entry.size();
        while left > 0 {
            let bytes = entry
                .read(&mut self.buffer)
                .map_err(|error| broken(&error))?;
            if bytes == 0 {
                return Err(Fault::Refused("the changes end inside a file".into()));
            }
            let portion = self.buffer.get(..bytes).unwrap_or_default();
            file.write_all(portion).map_err(|error| {
                match error.raw_os_error().map(Errno::from_raw) {
                    Some(Errno::ENOSPC | Errno::EDQUOT) => Fault::NoRoom,
                    _ => broken(&error),
                }
            })?;
            self.room.wrote(bytes, file)?;
            left = left.saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// Deepest first: a folder that loses its search permission must not hide another.
    fn finish_folders(&mut self) -> Result<(), Fault> {
        let mut folders = std::mem::take(&mut self.folders);
        folders.sort_by_key(|(place, _)| std::cmp::Reverse(place.depth()));
        for (place, attributes) in folders {
            let folder = self.beneath.open_folder(&place);
            let given = folder.and_then(|folder| attributes.give(&folder));
            given.map_err(|errno| Fault::Failed(format!("a folder's attributes: {errno}")))?;
        }
        Ok(())
    }
}

impl Attributes {
    /// The owner first: a change of owner takes permissions away.
    fn give(self, to: &impl AsFd) -> Result<(), Errno> {
        let owned: OwnedFd = to.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        own(fchown(
            &owned,
            Some(Uid::from_raw(self.uid)),
            Some(Gid::from_raw(self.gid)),
        ))?;
        fchmod(&owned, Mode::from_bits_truncate(self.mode & MODE_MASK))?;
        futimens(&owned, &TimeSpec::UTIME_OMIT, &self.modified)
    }
}

/// Who may not give files away makes them its own, as every archive program does.
pub(super) fn own(given: Result<(), Errno>) -> Result<(), Errno> {
    match given {
        Err(Errno::EPERM | Errno::EINVAL) => Ok(()),
        given => given,
    }
}

fn attributes(entry: &mut Entry<'_, &File>) -> io::Result<Attributes> {
    let number =
        |read: io::Result<u64>| read.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let header = entry.header();
    let (uid, gid, mode) = (number(header.uid())?, number(header.gid())?, header.mode()?);
    let seconds = i64::try_from(header.mtime()?).unwrap_or(0);
    Ok(Attributes {
        uid,
        gid,
        mode,
        modified: fine_time(entry)?.unwrap_or_else(|| TimeSpec::new(seconds, 0)),
    })
}

/// `<seconds>.<nanoseconds, nine digits>` in a record of its own.
fn fine_time(entry: &mut Entry<'_, &File>) -> io::Result<Option<TimeSpec>> {
    const SECOND_NS: i64 = 1_000_000_000;
    let Some(records) = entry.pax_extensions()? else {
        return Ok(None);
    };
    for record in records {
        let record = record?;
        if record.key() == Ok(FINE_TIME) {
            let text = record.value().map_err(io::Error::other)?;
            let (seconds, rest) = text.split_once('.').unwrap_or((text, "0"));
            let (Ok(seconds), Ok(rest)) = (seconds.parse::<i64>(), rest.parse::<i64>()) else {
                return Err(io::Error::other("a time that is none"));
            };
            return Ok(Some(TimeSpec::new(seconds, rest.clamp(0, SECOND_NS - 1))));
        }
    }
    Ok(None)
}

fn broken(error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Fault::Refused("the changes end inside a member".into());
    }
    Fault::Failed(format!("the changes cannot be applied: {error}"))
}
