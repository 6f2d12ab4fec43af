//! A large store that was closed in order opens without reading its whole log, and without a copy.
//!
//! sled writes its own snapshot at openings only: after a long run the next opening reads the log
//! from the last one on. So a large store is opened once more when it is closed, and closed again:
//! what would be read at the next opening is then little, and what opening changes in the files has
//! been changed already.
//!
//! What little is read is noted in a file beside the store: a digest of `conf`, of the snapshot, of
//! the first bytes of each segment of the log and of all segments that are not wholly behind the
//! snapshot. Where the next opening finds these bytes as they were, sled finds nothing to repair,
//! and there is nothing that a [copy][super::before_open] could put back. Where it does not, or the
//! file is missing as it is after a crash, the store is copied as ever. The rest of the log is not
//! looked at here: sled does not do that at an opening either, and checks each page when it is
//! read.
//!
//! ```text
//! <dir>/closed    "store <n>" LF ‖ the digest, 64 hexadecimal digits, LF ‖ "end" LF
//! ```
//!
//! The file is removed, durably, before anything is appended.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::before_open::store_files;
use super::generation;
use super::strict::SEGMENT_BYTES;
use crate::environment::Disk;
use crate::files;

/// The file that says so.
const FILE: &str = "closed";

/// Stores below this size, in bytes, are read and copied in a moment.
pub(super) const LARGE_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes in front of each of sled's segments: a CRC-32, and two numbers that are stored negated but
/// for their sign.
const SEGMENT_HEAD_BYTES: usize = 20;
const NEGATED: u64 = 0x7fff_ffff_ffff_ffff;

/// Notes how the closed store in `folder` is. `dir` is the ledger's.
pub(super) fn note(dir: &Path, folder: &Path, disk: &dyn Disk) -> io::Result<()> {
    let number = generation::newest(dir)?;
    if generation::folder(dir, number) != folder {
        return Ok(());
    }
    let text = text(dir, number)?;
    let unfinished = dir.join("closed.tmp");
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    disk.sync_all(&file)?;
    fs::rename(unfinished, dir.join(FILE))?;
    files::sync_path(dir, disk)
}

/// Whether the store is as it was closed, in all that is read when it is opened.
pub(super) fn is_untouched(dir: &Path) -> io::Result<bool> {
    let noted = match fs::read(dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        noted => noted?,
    };
    Ok(noted == text(dir, generation::newest(dir)?)?.as_bytes())
}

/// From here on the store is another one than the one that was closed.
pub(super) fn forget(dir: &Path, disk: &dyn Disk) -> io::Result<()> {
    match fs::remove_file(dir.join(FILE)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => {
            removed?;
            files::sync_path(dir, disk)
        }
    }
}

fn text(dir: &Path, number: u64) -> io::Result<String> {
    let digest = digest(&generation::folder(dir, number))?;
    Ok(format!("store {number}\n{}\nend\n", digest.to_hex()))
}

/// A digest of all that sled reads of a store when it opens it.
fn digest(folder: &Path) -> io::Result<blake3::Hash> {
    let mut names = store_files(folder)?;
    names.sort_unstable();
    let snapshots = names.iter();
    let snapshots = snapshots.filter_map(|name| name.strip_prefix(generation::SNAPSHOT));
    // sled takes the one with the largest number, and reads the log from the segment on that this
    // number lies in.
    let stable = snapshots.filter_map(|number| u64::from_str_radix(number, 16).ok());
    let stable = stable.max().unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    for name in &names {
        let file = File::open(folder.join(name))?;
        let bytes = file.metadata()?.len();
        hasher.update(&u64::try_from(name.len()).unwrap_or(u64::MAX).to_be_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&bytes.to_be_bytes());
        match name.as_str() {
            "db" => add_log(&file, bytes, stable, &mut hasher)?,
            _ => drop(hasher.update_reader(&file)?),
        }
    }
    Ok(hasher.finalize())
}

/// Adds the heads of all segments, and the whole of those that the snapshot does not cover.
fn add_log(file: &File, bytes: u64, stable: u64, hasher: &mut blake3::Hasher) -> io::Result<()> {
    let segment_bytes = SEGMENT_BYTES as u64;
    let first_read = stable / segment_bytes * segment_bytes;
    let mut segment = Vec::new();
    for at in (0..bytes).step_by(SEGMENT_BYTES) {
        let mut head = [0; SEGMENT_HEAD_BYTES];
        let whole = (bytes - at).min(segment_bytes);
        let head_bytes = usize::try_from(whole)
            .map_or(SEGMENT_HEAD_BYTES, |whole| whole.min(SEGMENT_HEAD_BYTES));
        let head = head.get_mut(..head_bytes).unwrap_or_default();
        file.read_exact_at(head, at)?;
        hasher.update(head);
        let number = head.get(4..12).and_then(|number| number.try_into().ok());
        let number = number.map_or(0, u64::from_le_bytes) ^ NEGATED;
        if number >= first_read {
            segment.resize(usize::try_from(whole).map_err(io::Error::other)?, 0);
            file.read_exact_at(&mut segment, at)?;
            hasher.update(&segment);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::SledStore;
    use super::super::Store;
    use super::super::before_open;
    use super::*;
    use crate::Environment;

    fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
        let names = store_files(dir).unwrap().into_iter();
        names
            .map(|name| (name.clone(), fs::read(dir.join(name)).unwrap()))
            .collect()
    }

    fn open(dir: &Path) -> SledStore {
        let disk = Environment::default().disk;
        let lock = before_open::lock(dir, &*disk).unwrap();
        SledStore::open(dir, 8 << 20, disk, &lock).unwrap()
    }

    /// A store of more than one segment, closed in order as a large one is.
    fn closed_store() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        for n in 0..40_u32 {
            let writes: Vec<_> = (0..8_u32)
                .map(|m| {
                    let key = [n.to_be_bytes(), m.to_be_bytes()].concat();
                    (key, vec![u8::try_from(n % 251).unwrap(); 32 * 1024])
                })
                .collect();
            store.commit(&writes).unwrap();
        }
        store.founded().unwrap();
        store.ends_in_order(0);
        drop(store);
        dir
    }

    #[test]
    fn opening_a_store_that_is_as_it_was_closed_changes_no_byte_of_it() {
        let dir = closed_store();
        assert!(is_untouched(dir.path()).unwrap());
        let before = contents(dir.path());
        assert!(before["db"].len() > 2 * SEGMENT_BYTES, "several segments");
        let store = open(dir.path());
        assert_eq!(store.get(&[0; 8]).unwrap().unwrap().len(), 32 * 1024);
        drop(store);
        assert!(contents(dir.path()) == before);
        assert!(is_untouched(dir.path()).unwrap());
    }

    #[test]
    fn a_store_that_was_written_to_or_damaged_where_an_opening_looks_is_not_as_it_was_closed() {
        let dir = closed_store();
        let disk = Environment::default().disk;
        let names = store_files(dir.path()).unwrap();
        for name in &names {
            let path = dir.path().join(name);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, 5).unwrap();
            file.write_all_at(&[byte[0] ^ 4], 5).unwrap();
            assert!(!is_untouched(dir.path()).unwrap(), "{name}");
            file.write_all_at(&byte, 5).unwrap();
            assert!(is_untouched(dir.path()).unwrap());
        }
        let store = open(dir.path());
        store
            .commit(&[(b"key".to_vec(), b"value".to_vec())])
            .unwrap();
        drop(store);
        assert!(!is_untouched(dir.path()).unwrap());
        forget(dir.path(), &*disk).unwrap();
        assert!(!is_untouched(dir.path()).unwrap());
    }
}
