//! The files of the keys.
//!
//! ```text
//! <keys>/<id, 32 hexadecimal digits>    mode 0600, one line:
//!   SEAL+KEY+<stream>+<64 hexadecimal digits>   the key of a stream
//!   SEAL+DESTROYED+<stream>                     what is left of one that was destroyed
//! ```
//!
//! A key is durable before anything is sealed with it. Destroying overwrites the file, syncs it, and
//! puts the line that says so in its place by a rename: what the disk does with blocks that were
//! freed is not promised, which is why the key is overwritten first. The line stays, so that an
//! older copy of the store still opens, with that stream erased.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_verify::StreamName;

use super::SealId;
use crate::Environment;
use crate::files;

const KEY: &str = "SEAL+KEY+";
const DESTROYED: &str = "SEAL+DESTROYED+";
/// A line of at most some two hundred bytes; anything longer is something else.
const FILE_BYTES_MAX: u64 = 1024;
/// What the name of a file that is not finished ends with.
const UNFINISHED: &str = ".new";

/// What lies where a key is looked for.
pub(super) enum Found {
    Nothing,
    Key([u8; 32]),
    Destroyed,
}

/// Where the key with this name lies.
pub(super) fn path(dir: &Path, id: SealId) -> PathBuf {
    dir.join(hex::encode(id.as_bytes()))
}

/// Reads a key. An error says what is wrong with the file, and nothing of what is in it.
pub(super) fn load(path: &Path, stream: &StreamName) -> Result<Found, &'static str> {
    let metadata = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        found => found.map_err(|_| "it cannot be looked at")?,
    };
    if metadata.mode() & 0o077 != 0 {
        return Err("others than its owner may use it: `chmod 600` it");
    }
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err("it is not a key file");
    }
    let text = fs::read_to_string(path).map_err(|_| "it cannot be read")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    if line.strip_prefix(DESTROYED) == Some(stream.as_str()) {
        return Ok(Found::Destroyed);
    }
    let key = line
        .strip_prefix(KEY)
        .and_then(|rest| rest.rsplit_once('+'));
    let (of, key) = key.ok_or("it is not a key file")?;
    if of != stream.as_str() {
        return Err("it is the key of another stream");
    }
    let key = hex::decode(key).ok().and_then(|key| key.try_into().ok());
    key.map(Found::Key).ok_or("its key cannot be read")
}

/// The key that is there, or a new one, durable.
pub(super) fn load_or_make(
    dir: &Path,
    id: SealId,
    stream: &StreamName,
    environment: &Environment,
) -> Result<[u8; 32], String> {
    let path = path(dir, id);
    match load(&path, stream)? {
        Found::Key(key) => return Ok(key),
        Found::Destroyed => return Err("it was destroyed".to_owned()),
        Found::Nothing => {}
    }
    let mut key = [0; 32];
    environment.entropy.fill(&mut key).map_err(said)?;
    let line = format!("{KEY}{stream}+{}\n", hex::encode(key));
    files::create_private_dir(dir, &*environment.disk).map_err(said)?;
    put(&path, &line, environment).map_err(said)?;
    Ok(key)
}

/// Whether there is no key in this file any more.
pub(super) fn is_destroyed(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.starts_with(DESTROYED))
}

/// Destroys the key and leaves the line that says so, durably.
pub(super) fn destroy(
    dir: &Path,
    id: SealId,
    stream: &StreamName,
    environment: &Environment,
) -> Result<(), String> {
    let path = path(dir, id);
    match OpenOptions::new().write(true).open(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(said(e)),
        Ok(file) => overwrite(&file, environment).map_err(said)?,
    }
    files::create_private_dir(dir, &*environment.disk).map_err(said)?;
    put(&path, &format!("{DESTROYED}{stream}\n"), environment).map_err(said)
}

fn overwrite(mut file: &File, environment: &Environment) -> io::Result<()> {
    let length = usize::try_from(file.metadata()?.len().min(FILE_BYTES_MAX)).unwrap_or_default();
    file.write_all(&vec![0; length])?;
    environment.disk.sync_all(file)
}

/// Puts a file of this content in this place, whatever was there.
fn put(path: &Path, line: &str, environment: &Environment) -> io::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(line.as_bytes())?;
    environment.disk.sync_all(&file)?;
    fs::rename(&unfinished, path)?;
    files::sync_path(&files::parent_of(path), &*environment.disk)
}

fn said(error: io::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_destroyed_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        let environment = Environment::default();
        let stream = StreamName::parse("session/a").unwrap();
        let id = SealId::from_bytes([7; 16]);
        let path = path(&keys, id);
        assert!(matches!(load(&path, &stream), Ok(Found::Nothing)));
        let key = load_or_make(&keys, id, &stream, &environment).unwrap();
        let again = load_or_make(&keys, id, &stream, &environment).unwrap();
        assert_eq!(key, again);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let other = StreamName::parse("session/b").unwrap();
        assert!(load(&path, &other).is_err(), "another stream's");

        for _ in 0..2 {
            destroy(&keys, id, &stream, &environment).unwrap();
            assert!(is_destroyed(&path));
            assert!(matches!(load(&path, &stream), Ok(Found::Destroyed)));
        }
        assert!(load_or_make(&keys, id, &stream, &environment).is_err());
        let left = fs::read_to_string(&path).unwrap();
        assert!(!left.contains(&hex::encode(key)), "{left}");
    }

    #[test]
    fn a_file_that_others_may_read_or_that_is_no_key_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let stream = StreamName::parse("session/a").unwrap();
        for bad in [
            "",
            "\0\0\0\0",
            "SEAL+KEY+session/a+AAAA",
            "SEAL+KEY+session/a",
        ] {
            fs::write(&path, bad).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            assert!(load(&path, &stream).is_err(), "{bad:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = load(&path, &stream).err().unwrap();
        assert!(refused.contains("chmod"), "{refused}");
    }
}
