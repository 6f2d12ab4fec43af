//! Digests of file content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek64};

use crate::snapshot::ContentDigest;

/// Bytes read at a time: large enough that calls cost nothing beside hashing.
const READ_BYTES: usize = 256 * 1024;

/// The digest of a file's content, and its length. Holes are not read.
pub(crate) fn of_file(file: &File) -> io::Result<(u64, ContentDigest)> {
    let length = file.metadata()?.len();
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![
        0_u8;
        READ_BYTES
            .min(usize::try_from(length).unwrap_or(READ_BYTES))
            .max(1)
    ];
    let mut at = 0_u64;
    while at < length {
        let data = next_data(file, at, length)?;
        zeros(&mut hasher, data - at);
        at = data;
        if at == length {
            break;
        }
        let read = match file.read_at(&mut buffer, at) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            break;
        }
        let taken = usize::try_from(length - at).unwrap_or(read).min(read);
        hasher.update(buffer.get(..taken).unwrap_or_default());
        at += u64::try_from(taken).unwrap_or(0);
    }
    Ok((at, ContentDigest::new(*hasher.finalize().as_bytes())))
}

/// Where the next bytes are that are no hole. Short files are not asked: they have none worth it.
fn next_data(file: &File, at: u64, length: u64) -> io::Result<u64> {
    if length <= u64::try_from(READ_BYTES).unwrap_or(0) {
        return Ok(at);
    }
    let from = i64::try_from(at).map_err(io::Error::other)?;
    match lseek64(file, from, Whence::SeekData) {
        Ok(data) => Ok(u64::try_from(data).unwrap_or(at).clamp(at, length)),
        Err(Errno::ENXIO) => Ok(length),
        Err(Errno::EINVAL) => Ok(at),
        Err(errno) => Err(errno.into()),
    }
}

fn zeros(hasher: &mut blake3::Hasher, mut count: u64) {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    while count > 0 {
        let part = usize::try_from(count)
            .unwrap_or(ZEROS.len())
            .min(ZEROS.len());
        hasher.update(ZEROS.get(..part).unwrap_or_default());
        count -= u64::try_from(part).unwrap_or(count);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    #[test]
    fn holes_count_as_the_zeros_that_they_are() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"begin").unwrap();
        file.seek(SeekFrom::Start(3_000_000)).unwrap();
        file.write_all(b"middle").unwrap();
        file.set_len(5_000_000).unwrap();
        let mut plain = vec![0_u8; 5_000_000];
        plain[..5].copy_from_slice(b"begin");
        plain[3_000_000..3_000_006].copy_from_slice(b"middle");
        let expected = ContentDigest::new(*blake3::hash(&plain).as_bytes());
        assert_eq!(of_file(&file).unwrap(), (5_000_000, expected));
    }
}
