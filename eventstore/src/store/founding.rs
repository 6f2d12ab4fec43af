//! A store that was only half made.
//!
//! sled writes its files in several steps, and if it is cut off between two of them it never opens
//! what it finds. Until the ledger in it is founded there is nothing in a store that anyone was
//! answered for. A mark beside its files says so: whoever finds the mark makes the store anew. The
//! mark is durable before the first file of the store is made, and gone durably before the first
//! append can be answered.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use fluxvm_verify::Position;

use super::generation;
use crate::OpenError;
use crate::environment::Disk;
use crate::files;
use crate::head_file::FILE_NAME as HEAD_FILE;
use crate::head_file::HeadFile;

/// The mark.
pub(super) const MARK: &str = "founding";
/// Where any of these is, a store was made.
const STORE_FILES: [&str; 3] = [HEAD_FILE, "conf", "db"];

/// Marks a store that is about to be made, and clears away one that was only half made. Only
/// whoever holds the store's lock may call this.
pub(super) fn begin(dir: &Path, disk: &dyn Disk) -> Result<(), OpenError> {
    let mark = dir.join(MARK);
    if mark.exists() {
        return clear(dir);
    }
    if is_absent(dir) {
        let mut options = OpenOptions::new();
        let made = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&mark);
        let marked = made.and_then(|_| files::sync_path(dir, disk));
        marked.map_err(OpenError::io(mark))?;
    }
    Ok(())
}

/// Whether neither a store was made here nor a mark for one that is about to be.
pub(super) fn is_absent(dir: &Path) -> bool {
    let mut names = STORE_FILES.iter().chain([&MARK]);
    let is_written_anew = generation::newest(dir).is_ok_and(|number| number > 0);
    names.all(|name| !dir.join(name).exists()) && !is_written_anew
}

/// Takes the mark away: from now on everything in the store counts.
pub(super) fn finish(dir: &Path, disk: &dyn Disk) -> Result<(), OpenError> {
    let mark = dir.join(MARK);
    match fs::remove_file(&mark) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed
            .and_then(|()| files::sync_path(dir, disk))
            .map_err(OpenError::io(mark)),
    }
}

/// Removes everything but the mark and the lock.
fn clear(dir: &Path) -> Result<(), OpenError> {
    if let Ok(Some((_, head))) = HeadFile::open(dir)
        && head.position != Position::START
    {
        // Not to be explained by a crash of ours, so nothing is touched.
        let reason = format!(
            "it is marked as unfinished and holds {} events",
            head.position
        );
        return Err(OpenError::Store { reason });
    }
    let shown = dir.display();
    tracing::warn!(dir = %shown, "the founding of the ledger was cut off: it is begun anew");
    for entry in fs::read_dir(dir).map_err(OpenError::io(dir))? {
        let path = entry.map_err(OpenError::io(dir))?.path();
        let is_kept = path.ends_with(MARK) || path.ends_with(files::LOCK);
        let removed = match path.is_dir() {
            _ if is_kept => Ok(()),
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(OpenError::io(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::Ledger;
    use crate::LedgerOptions;

    fn options(dir: &Path) -> LedgerOptions {
        LedgerOptions {
            dir: dir.join("ledger"),
            blobs_dir: dir.join("blobs"),
            signing_key_file: dir.join("key"),
            origin: "flux.example".to_owned(),
            cache_bytes: 8 * 1024 * 1024,
            archive: None,
            snapshots: None,
            seal: None,
        }
    }

    fn founded() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        drop(Ledger::open(options.clone(), Box::new(|_| {})).unwrap());
        (dir, options.dir)
    }

    #[test]
    fn a_founded_ledger_bears_no_mark_and_keeps_its_name() {
        let (dir, ledger_dir) = founded();
        assert!(!ledger_dir.join(MARK).exists());
        let open = || Ledger::open(options(dir.path()), Box::new(|_| {})).unwrap();
        let first = open().info().ledger_id;
        assert_eq!(open().info().ledger_id, first);
    }

    #[test]
    fn a_store_that_was_half_made_is_made_anew() {
        let (dir, ledger_dir) = founded();
        fs::write(ledger_dir.join(MARK), b"").unwrap();
        fs::write(ledger_dir.join("conf"), b"half").unwrap();
        fs::remove_file(ledger_dir.join(HEAD_FILE)).unwrap();
        drop(Ledger::open(options(dir.path()), Box::new(|_| {})).unwrap());
        assert!(!ledger_dir.join(MARK).exists());
    }

    #[test]
    fn a_mark_beside_a_ledger_with_events_is_an_error_and_nothing_is_removed() {
        let (dir, ledger_dir) = founded();
        let disk = crate::Environment::default().disk;
        let head = crate::Head {
            position: Position::new(3),
            hash: fluxvm_verify::EventHash::from_bytes([1; 32]),
        };
        HeadFile::create(&ledger_dir, head, &*disk).unwrap();
        fs::write(ledger_dir.join(MARK), b"").unwrap();
        let refused = Ledger::open(options(dir.path()), Box::new(|_| {}));
        assert!(matches!(refused, Err(OpenError::Store { .. })));
        assert!(ledger_dir.join("conf").exists());
    }
}
