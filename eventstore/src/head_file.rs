//! A note beside the store of how far the ledger was durable.
//!
//! A log that lost its end is still a valid log: neither the chain nor the store's own checksums
//! can tell. This file can. After each commit, and never before it, the committer notes the head
//! here. At the next opening the event noted must still be there with the same hash.
//!
//! The file itself is never waited for. A loss of power may bring back an older note, which asks
//! for less but for nothing that was not durable when it was written. There are two slots, written
//! in turn and a page apart, so that a torn write spoils the newer note only.
//!
//! ```text
//! slot at 0 and at 4096:  magic "FXHD" ‖ version u8 = 1 ‖ zero 3 ‖ events u64 ‖ hash 32 ‖ check 32
//! check = derive_key("fluxvm ledger v1 head")( the 48 bytes before it )
//! ```

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_verify::EventHash;
use fluxvm_verify::Position;

use crate::Head;
use crate::OpenError;
use crate::environment::Disk;
use crate::files;

pub(crate) const FILE_NAME: &str = "head";
const CHECK_CONTEXT: &str = "fluxvm ledger v1 head";
const MAGIC_AND_VERSION: [u8; 8] = *b"FXHD\x01\0\0\0";
const SLOT_OFFSETS: [u64; 2] = [0, 4096];
const NOTE_BYTES: usize = 48;
const SLOT_BYTES: usize = NOTE_BYTES + 32;

/// The open file.
pub(crate) struct HeadFile {
    file: File,
    next_slot: usize,
}

impl HeadFile {
    /// Opens the file and reads the newest note in it; `None` where there is no such file.
    pub(crate) fn open(dir: &Path) -> Result<Option<(HeadFile, Head)>, OpenError> {
        let path = dir.join(FILE_NAME);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(OpenError::io(&path))?,
        };
        let notes = SLOT_OFFSETS.map(|offset| read_slot(&file, offset));
        let newest = notes
            .iter()
            .enumerate()
            .filter_map(|(slot, note)| Some((slot, (*note)?)));
        let newest = newest.max_by_key(|(_, note)| note.position);
        let (slot, head) = newest.ok_or(OpenError::HeadFileDamaged { path })?;
        Ok(Some((
            HeadFile {
                file,
                next_slot: 1 - slot,
            },
            head,
        )))
    }

    /// Makes the file with `head` in it, durable in its folder.
    pub(crate) fn create(dir: &Path, head: Head, disk: &dyn Disk) -> Result<HeadFile, OpenError> {
        let path = dir.join(FILE_NAME);
        let unfinished = dir.join("head.tmp");
        let failed = OpenError::io(&path);
        create_slots(&unfinished, head, disk)
            .and_then(|file| {
                std::fs::rename(&unfinished, &path)?;
                files::sync_path(dir, disk)?;
                Ok(HeadFile { file, next_slot: 1 })
            })
            .map_err(failed)
    }

    /// Notes `head`, which must be durable already.
    pub(crate) fn note(&mut self, head: Head) -> io::Result<()> {
        let offset = SLOT_OFFSETS
            .get(self.next_slot)
            .copied()
            .unwrap_or_default();
        self.file.write_all_at(&slot_bytes(head), offset)?;
        self.next_slot = 1 - self.next_slot;
        Ok(())
    }

    /// Makes the notes durable. Only a courtesy at the end of a run.
    pub(crate) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        disk.sync_data(&self.file)
    }
}

fn create_slots(path: &PathBuf, head: Head, disk: &dyn Disk) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600);
    let file = options.open(path)?;
    for offset in SLOT_OFFSETS {
        file.write_all_at(&slot_bytes(head), offset)?;
    }
    disk.sync_all(&file)?;
    Ok(file)
}

fn slot_bytes(head: Head) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SLOT_BYTES);
    bytes.extend_from_slice(&MAGIC_AND_VERSION);
    bytes.extend_from_slice(&head.position.get().to_be_bytes());
    bytes.extend_from_slice(head.hash.as_bytes());
    bytes.extend_from_slice(&blake3::derive_key(CHECK_CONTEXT, &bytes));
    bytes
}

fn read_slot(file: &File, offset: u64) -> Option<Head> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    let (note, check) = bytes.split_at_checked(NOTE_BYTES)?;
    let events = u64::from_be_bytes(note.get(8..16)?.try_into().ok()?);
    let hash = EventHash::from_bytes(note.get(16..NOTE_BYTES)?.try_into().ok()?);
    let holds = note.starts_with(&MAGIC_AND_VERSION)
        && blake3::derive_key(CHECK_CONTEXT, note).as_slice() == check;
    holds.then_some(Head {
        position: Position::new(events),
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    fn head(events: u64) -> Head {
        Head {
            position: Position::new(events),
            hash: EventHash::from_bytes([7; 32]),
        }
    }

    #[test]
    fn the_newest_note_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Environment::default().disk;
        assert!(HeadFile::open(dir.path()).unwrap().is_none());
        let mut file = HeadFile::create(dir.path(), head(0), &*disk).unwrap();
        for events in 1..4 {
            file.note(head(events)).unwrap();
            let (reopened, newest) = HeadFile::open(dir.path()).unwrap().unwrap();
            assert_eq!(newest, head(events));
            file = reopened;
        }
    }

    #[test]
    fn a_flipped_bit_brings_back_the_note_before_and_two_are_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Environment::default().disk;
        let mut file = HeadFile::create(dir.path(), head(5), &*disk).unwrap();
        file.note(head(6)).unwrap();
        file.file
            .write_all_at(&[0xff], SLOT_OFFSETS[1] + 20)
            .unwrap();
        assert_eq!(HeadFile::open(dir.path()).unwrap().unwrap().1, head(5));
        file.file
            .write_all_at(&[0xff], SLOT_OFFSETS[0] + 3)
            .unwrap();
        let damaged = HeadFile::open(dir.path());
        assert!(matches!(damaged, Err(OpenError::HeadFileDamaged { .. })));
    }
}
