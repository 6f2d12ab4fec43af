//! The user that an image was built to run as, kept across the build.
//!
//! A wrapped image starts the daemon as root, so what its own last `USER` resolved to has to be
//! written down while it still holds. Two build steps do that: one runs as that user and writes
//! the ids into a placeholder that everybody may write; one runs as root and puts a record in its
//! place that nobody else may. A record that is not sealed, or is not as it was sealed, is broken,
//! and then a start that names no user is refused; it never falls back to root.

use std::fs;
use std::fs::OpenOptions;
use std::fs::Permissions;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Deserialize;
use serde::Serialize;

/// Where the record lies.
pub(crate) const RECORD: &str = "/agentd-image-user.json";

/// Bytes of a record; the placeholder before it may be a whole program.
const RECORD_BYTES_MAX: u64 = 4096;

/// Permissions of a sealed record.
const SEALED_MODE: u32 = 0o444;

/// Ids that a build step ran with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u32,
    sealed: bool,
    #[serde(flatten)]
    user: ImageUser,
}

/// Writes the ids of this process into the placeholder.
pub(crate) fn capture(path: &Path) -> io::Result<()> {
    let user = ImageUser {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    };
    let mut file = OpenOptions::new()
        .write(true)
        .truncate(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.write_all(&encoded(user, false)?)
}

/// Replaces a captured record by one that only root can change.
pub(crate) fn seal(path: &Path) -> io::Result<()> {
    let record = read(path)?;
    let fresh = path.with_extension("sealing");
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(SEALED_MODE)
        .open(&fresh)?;
    file.write_all(&encoded(record.user, true)?)?;
    file.set_permissions(Permissions::from_mode(SEALED_MODE))?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

/// Reads a sealed record. The reason why it is none is for people.
pub(crate) fn sealed(path: &Path) -> Result<ImageUser, String> {
    let record = read(path).map_err(|error| error.to_string())?;
    if !record.sealed {
        return Err("the record was not sealed".into());
    }
    let data = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let own = nix::unistd::geteuid().as_raw();
    if data.uid() != own || data.mode() & 0o222 != 0 {
        return Err("somebody else may have written the record".into());
    }
    Ok(record.user)
}

fn encoded(user: ImageUser, sealed: bool) -> io::Result<Vec<u8>> {
    let version = 1;
    Ok(serde_json::to_vec(&Record {
        version,
        sealed,
        user,
    })?)
}

fn read(path: &Path) -> io::Result<Record> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the record is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes)?;
    let record: Record = serde_json::from_slice(&bytes)
        .map_err(|_| io::Error::other("the record does not hold captured ids"))?;
    if record.version == 1 {
        Ok(record)
    } else {
        Err(io::Error::other("the record has another version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_once_it_is_sealed_and_as_long_as_nobody_else_could_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        assert!(sealed(&path).is_err());
        // The placeholder is a copy of the daemon: no record, and longer than one.
        fs::write(&path, vec![0x7f; 100_000]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(seal(&path).is_err());
        capture(&path).unwrap();
        assert!(sealed(&path).is_err());
        seal(&path).unwrap();
        let expected = ImageUser {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        };
        assert_eq!(sealed(&path), Ok(expected));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o444);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(sealed(&path).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(capture(&link).is_err() && sealed(&link).is_err());
    }
}
