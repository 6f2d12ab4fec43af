//! One file, read or written.
//!
//! A write goes to the file itself, as the contract has it: an existing file keeps its other links
//! and its place. One that fails half-way is removed, because half a file that looks whole is worse
//! than none.

use std::fs;
use std::fs::DirBuilder;
use std::fs::File;
use std::fs::OpenOptions;
use std::fs::Permissions;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Fault;
use super::Incoming;
use super::Outgoing;
use super::Room;
use super::Window;
use super::path_fault;

/// Permissions of a written file that asks for none.
const FILE_MODE: u32 = 0o644;

/// Permissions of folders that are made on the way.
pub(super) const FOLDER_MODE: u32 = 0o755;

/// All permission bits.
const MODE_MAX: u32 = 0o7777;

/// Bytes of one read of a range.
const READ_BYTES: usize = 64 * 1024;

/// Reads permissions as a query spells them: octal, `0o` in front if it likes.
pub(crate) fn parse_mode(text: Option<&str>) -> Result<u32, String> {
    let Some(text) = text else {
        return Ok(FILE_MODE);
    };
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = !digits.is_empty() && digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = octal.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
    mode.filter(|mode| *mode <= MODE_MAX)
        .ok_or_else(|| "mode is not an octal number up to 7777".to_owned())
}

/// Opens a file and says so through `ready`, then sends it.
pub(crate) fn read_file(
    path: &str,
    window: Option<Window>,
    ready: impl FnOnce(Result<(), Fault>),
    mut outgoing: Outgoing,
) {
    let mut file = match open_to_read(path) {
        Ok(file) => file,
        Err(fault) => return ready(Err(fault)),
    };
    ready(Ok(()));
    let sent = match window {
        None => outgoing.copy_from(&mut file).map(|_| ()),
        Some(window) => send_window(&mut file, window, &mut outgoing),
    };
    outgoing.finish(sent);
}

fn open_to_read(path: &str) -> Result<File, Fault> {
    // Not to be held up by a pipe without a writer.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let fault = |error: io::Error| match error.raw_os_error() {
        // Nothing can lie below what is no folder.
        Some(libc::ENOTDIR) => Fault::Absent(format!("{path}: {error}")),
        _ => path_fault(path, &error),
    };
    let file = opened.map_err(fault)?;
    let kind = file.metadata().map_err(fault)?.file_type();
    if kind.is_dir() {
        return Err(Fault::Refused(format!("{path} is a folder")));
    }
    if !kind.is_file() {
        return Err(Fault::Refused(format!("{path} is no regular file")));
    }
    Ok(file)
}

fn send_window(file: &mut File, window: Window, outgoing: &mut Outgoing) -> io::Result<()> {
    let mut cut = window.cut();
    let mut buffer = vec![0; READ_BYTES];
    while !cut.is_closed() {
        let bytes = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        outgoing.write_all(cut.take(buffer.get(..bytes).unwrap_or_default()))?;
    }
    Ok(())
}

/// Writes a whole body to a file, or leaves none.
pub(crate) fn write_file(
    path: &str,
    mode: u32,
    announced_bytes: u64,
    mut room: Room,
    mut body: Incoming,
) -> Result<(), Fault> {
    let target = Path::new(path);
    room.before(target, announced_bytes)?;
    // A missing folder is made, so that nothing being there is no reason to fail.
    let fault = |error: io::Error| match path_fault(path, &error) {
        Fault::Absent(said) => Fault::Failed(said),
        fault => fault,
    };
    if let Some(parent) = target.parent().filter(|parent| *parent != Path::new("")) {
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(parent)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    Fault::Refused(format!("{path}: a part of the path is no folder"))
                }
                _ => fault(error),
            })?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(target)
        .map_err(fault)?;
    let written = fill(&mut file, mode, &mut room, &mut body).map_err(|failure| match failure {
        Failure::Fault(fault) => fault,
        Failure::Io(error) => fault(error),
    });
    if written.is_err() && fs::symlink_metadata(target).is_ok_and(|data| data.is_file()) {
        let _ = fs::remove_file(target);
    }
    written
}

enum Failure {
    Fault(Fault),
    Io(io::Error),
}

fn fill(file: &mut File, mode: u32, room: &mut Room, body: &mut Incoming) -> Result<(), Failure> {
    let permissions = Permissions::from_mode(mode);
    let regular = file.metadata().map_err(Failure::Io)?.is_file();
    if regular {
        // An existing file had its own, and a new one the mask's.
        file.set_permissions(permissions.clone())
            .map_err(Failure::Io)?;
    }
    while let Some(bytes) = body.next().map_err(Failure::Fault)? {
        file.write_all(&bytes).map_err(Failure::Io)?;
        room.wrote(bytes.len(), file).map_err(Failure::Fault)?;
    }
    if regular && mode > 0o777 {
        // Writing takes the set-id bits away.
        file.set_permissions(permissions).map_err(Failure::Io)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal_with_or_without_a_prefix() {
        for (text, mode) in [
            (None, 0o644),
            (Some("644"), 0o644),
            (Some("0644"), 0o644),
            (Some("0o755"), 0o755),
            (Some("7777"), 0o7777),
            (Some("0"), 0),
        ] {
            assert_eq!(parse_mode(text), Ok(mode), "{text:?}");
        }
        for text in ["", "0o", "8", "10000", "-1", "+7", "rwx", "0x1ff"] {
            assert!(parse_mode(Some(text)).is_err(), "{text}");
        }
    }
}
