//! A part of a file, and the digest of all of it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;

use agentd_protocol::FileFault;
use agentd_protocol::SliceFacts;
use agentd_protocol::limits::SLICE_BYTES_MAX;
use bytes::Bytes;
use nix::fcntl::OFlag;
use sha2::Digest;
use sha2::Sha256;

use super::Denial;
use super::hex;
use super::reach;

/// Bytes that are read at once for a digest.
const READ_BYTES: usize = 256 * 1024;

/// What to cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// The digest of the whole file is wanted.
    pub(crate) checksum: bool,
}

/// Cuts a slice out of a regular file. Beyond its end there are no bytes, which is no error.
pub(crate) fn slice(path: &str, cut: Cut) -> Result<(SliceFacts, Bytes), Denial> {
    if cut.length > SLICE_BYTES_MAX {
        let why = format!("length is over {SLICE_BYTES_MAX} bytes");
        return Err(Denial::new(FileFault::TooLarge, why));
    }
    let mut file = File::from(reach::open_to_read(path, OFlag::O_RDONLY)?);
    let failed = |error: std::io::Error| Denial::of_io(path, &error);
    let data = file.metadata().map_err(failed)?;
    if !data.is_file() {
        let what = if data.is_dir() {
            "a folder"
        } else {
            "no regular file"
        };
        return Err(Denial::new(
            FileFault::NotAFile,
            format!("{path} is {what}"),
        ));
    }
    let real_path = reach::real_path(path, &file)?;
    let bytes = read_at(&file, cut).map_err(failed)?;
    let sha256 = match cut.checksum {
        true => Some(digest(&mut file).map_err(failed)?),
        false => None,
    };
    let facts = SliceFacts {
        size: data.len(),
        mode: data.mode() & 0o7777,
        mtime: data.mtime(),
        sha256,
        real_path: Some(real_path),
    };
    Ok((facts, bytes))
}

fn read_at(file: &File, cut: Cut) -> std::io::Result<Bytes> {
    let left = file.metadata()?.len().saturating_sub(cut.offset);
    let wanted = usize::try_from(cut.length.min(left)).unwrap_or(0);
    let mut bytes = vec![0; wanted];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = cut.offset + u64::try_from(filled).unwrap_or(u64::MAX);
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

fn digest(file: &mut File) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hasher.finalize())),
            Ok(read) => hasher.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
