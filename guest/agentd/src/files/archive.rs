//! A folder as an archive, written as it is read.
//!
//! The tree is walked twice: first to know that it is within the caps, while there can still be a
//! status for that; then to send it. Links are sent as links, and their text as it is. What has no
//! place in an archive (sockets, pipes, devices) is passed over.

use std::fs;
use std::fs::File;
use std::fs::Metadata;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use tar::EntryType;
use tar::Header;

use super::Fault;
use super::Outgoing;
use super::TreeLimits;
use super::path_fault;

/// Bytes of a block; everything in an archive is a multiple of it.
const BLOCK_BYTES: u64 = 512;

/// Bytes of a name or of a link's text that a header holds itself.
const HEADER_NAME_BYTES: usize = 100;

/// Two empty blocks end an archive.
const END: [u8; 1024] = [0; 1024];

/// The name of a member that holds the next one's long name.
const LONG_NAME: &[u8] = b"././@LongLink";

/// Checks a folder and says so through `ready`, then sends it.
pub(crate) fn read_tree(
    path: &str,
    limits: TreeLimits,
    ready: impl FnOnce(Result<(), Fault>),
    mut outgoing: Outgoing,
) {
    let root = Path::new(path);
    let checked = check(root, path, limits);
    let fine = checked.is_ok();
    ready(checked);
    if fine {
        let sent = send(root, limits, &mut outgoing);
        outgoing.finish(sent);
    }
}

fn check(root: &Path, path: &str, limits: TreeLimits) -> Result<(), Fault> {
    let fault = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOTDIR) => Fault::Refused(format!("{path} is no folder")),
        _ => path_fault(path, &error),
    };
    if !fs::metadata(root).map_err(fault)?.is_dir() {
        return Err(Fault::Refused(format!("{path} is no folder")));
    }
    let mut tally = Tally::new(limits);
    let walked = walk(root, |_, data| tally.add(data));
    walked.map_err(|stop| match stop {
        Stop::Fault(fault) => fault,
        Stop::Io(error) => fault(error),
    })
}

/// Why a walk stopped.
enum Stop {
    Fault(Fault),
    Io(io::Error),
}

/// What was counted so far.
struct Tally {
    limits: TreeLimits,
    members: u64,
    bytes: u64,
}

impl Tally {
    fn new(limits: TreeLimits) -> Self {
        Self {
            limits,
            members: 0,
            bytes: 0,
        }
    }

    fn add(&mut self, data: &Metadata) -> Result<(), Stop> {
        self.members += 1;
        if data.is_file() {
            self.bytes = self.bytes.saturating_add(data.len());
        }
        let TreeLimits {
            members_max,
            bytes_max,
        } = self.limits;
        let fault = |said: String| Err(Stop::Fault(Fault::TooMuch(said)));
        if self.members > members_max {
            return fault(format!("the tree has more than {members_max} members"));
        }
        if self.bytes > bytes_max {
            return fault(format!("the tree's files hold more than {bytes_max} bytes"));
        }
        Ok(())
    }
}

/// Visits the root and everything below it that an archive can hold, folders before what is in
/// them. What vanishes meanwhile is not there.
fn walk(
    root: &Path,
    mut visit: impl FnMut(&Path, &Metadata) -> Result<(), Stop>,
) -> Result<(), Stop> {
    let data = fs::metadata(root).map_err(Stop::Io)?;
    visit(root, &data)?;
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let listing = match fs::read_dir(&folder) {
            Ok(listing) => listing,
            Err(error) if folder != root && is_gone(&error) => continue,
            Err(error) => return Err(Stop::Io(error)),
        };
        for entry in listing {
            let path = entry.map_err(Stop::Io)?.path();
            let data = match fs::symlink_metadata(&path) {
                Ok(data) => data,
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(Stop::Io(error)),
            };
            if data.is_dir() || data.is_file() || data.is_symlink() {
                visit(&path, &data)?;
            }
            if data.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn send(root: &Path, limits: TreeLimits, outgoing: &mut Outgoing) -> io::Result<()> {
    let mut tally = Tally::new(limits);
    let walked = walk(root, |path, data| {
        tally.add(data)?;
        let name = member_name(root, path, data);
        send_member(path, &name, data, outgoing).map_err(Stop::Io)
    });
    match walked {
        Ok(()) => outgoing.write_all(&END),
        Err(Stop::Io(error)) => Err(error),
        Err(Stop::Fault(fault)) => Err(io::Error::other(fault)),
    }
}

/// `./`, then the path below the root; a folder's ends in a slash.
fn member_name(root: &Path, path: &Path, data: &Metadata) -> Vec<u8> {
    let below: PathBuf = path.strip_prefix(root).unwrap_or(path).to_owned();
    let mut name = b"./".to_vec();
    name.extend_from_slice(below.as_os_str().as_bytes());
    if data.is_dir() && !name.ends_with(b"/") {
        name.push(b'/');
    }
    name
}

fn send_member(
    path: &Path,
    name: &[u8],
    data: &Metadata,
    outgoing: &mut Outgoing,
) -> io::Result<()> {
    if data.is_symlink() {
        let target = match fs::read_link(path) {
            Ok(target) => target,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let target = target.as_os_str().as_bytes();
        return send_header(name, target, EntryType::Symlink, data, 0, outgoing);
    }
    if data.is_dir() {
        return send_header(name, b"", EntryType::Directory, data, 0, outgoing);
    }
    let file = match open_regular(path) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(()),
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let data = file.metadata()?;
    let size = data.len();
    send_header(name, b"", EntryType::Regular, &data, size, outgoing)?;
    // The header has promised so many bytes: a file that grows is cut, one that shrinks is filled.
    let sent = outgoing.copy_from(&mut (&file).take(size))?;
    let padding = size.next_multiple_of(BLOCK_BYTES) - sent;
    outgoing.copy_from(&mut io::repeat(0).take(padding))?;
    Ok(())
}

fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

fn send_header(
    name: &[u8],
    target: &[u8],
    kind: EntryType,
    data: &Metadata,
    size: u64,
    outgoing: &mut Outgoing,
) -> io::Result<()> {
    if name.len() > HEADER_NAME_BYTES {
        send_long(EntryType::GNULongName, name, outgoing)?;
    }
    if target.len() > HEADER_NAME_BYTES {
        send_long(EntryType::GNULongLink, target, outgoing)?;
    }
    let mut header = header(name, kind, size);
    if let Some(fields) = header.as_gnu_mut() {
        copy_cut(&mut fields.linkname, target);
    }
    header.set_mode(data.mode() & 0o7777);
    header.set_mtime(u64::try_from(data.mtime()).unwrap_or(0));
    header.set_cksum();
    outgoing.write_all(header.as_bytes())
}

/// Sends a text that the next header cannot hold.
fn send_long(kind: EntryType, text: &[u8], outgoing: &mut Outgoing) -> io::Result<()> {
    let size = u64::try_from(text.len())
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut header = header(LONG_NAME, kind, size);
    header.set_mode(0);
    header.set_mtime(0);
    header.set_cksum();
    outgoing.write_all(header.as_bytes())?;
    outgoing.write_all(text)?;
    let padding = size.next_multiple_of(BLOCK_BYTES) - size + 1;
    outgoing.copy_from(&mut io::repeat(0).take(padding))?;
    Ok(())
}

fn header(name: &[u8], kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    if let Some(fields) = header.as_gnu_mut() {
        copy_cut(&mut fields.name, name);
    }
    header
}

fn copy_cut(field: &mut [u8], text: &[u8]) {
    for (place, byte) in field.iter_mut().zip(text) {
        *place = *byte;
    }
}
