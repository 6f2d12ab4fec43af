//! A ledger that is being rebuilt, until it is whole.
//!
//! ```text
//! <dir>.rebuilding     the store
//! <blobs>.rebuilding   the blobs
//! ```
//!
//! Both are made before anything is in them, the one of the blobs first. When all of it is durable the
//! blobs get their name and then the store, by a rename each. So where the first folder is there, a
//! rebuilding was cut off; and where it is there without the second one, the blobs had their name
//! already and are that rebuilding's.

use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use crate::LedgerOptions;
use crate::environment::Disk;
use crate::files;

const SUFFIX: &str = ".rebuilding";

/// The folders that a ledger is rebuilt in.
pub(super) struct Unfinished {
    pub(super) dir: PathBuf,
    pub(super) blobs_dir: PathBuf,
    finished: LedgerOptions,
}

/// Whether the ledger of this folder was being rebuilt and is not whole.
pub(crate) fn is_unfinished(dir: &Path) -> bool {
    beside(dir).exists()
}

fn beside(dir: &Path) -> PathBuf {
    let mut beside = dir.as_os_str().to_owned();
    beside.push(SUFFIX);
    beside.into()
}

impl Unfinished {
    pub(super) fn of(options: &LedgerOptions) -> Unfinished {
        Unfinished {
            dir: beside(&options.dir),
            blobs_dir: beside(&options.blobs_dir),
            finished: options.clone(),
        }
    }

    pub(super) fn begin(&self, disk: &dyn Disk) -> io::Result<()> {
        files::create_private_dir(&self.blobs_dir, disk)?;
        files::create_private_dir(&self.dir, disk)
    }

    /// Gives both their names. Nothing may have them open.
    pub(super) fn finish(&self, disk: &dyn Disk) -> io::Result<()> {
        for (made, name) in [
            (&self.blobs_dir, &self.finished.blobs_dir),
            (&self.dir, &self.finished.dir),
        ] {
            // There may be an empty folder of that name, which a rename takes the place of.
            fs::rename(made, name)?;
            files::sync_path(&files::parent_of(name), disk)?;
        }
        Ok(())
    }

    /// Removes what a rebuilding left that did not come to its end.
    pub(super) fn clear(&self) -> io::Result<()> {
        if self.dir.exists() && !self.blobs_dir.exists() {
            remove(&self.finished.blobs_dir)?;
        }
        remove(&self.dir)?;
        remove(&self.blobs_dir)
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ArchiveFailure;
    use crate::ArchiveOptions;
    use crate::Ledger;
    use crate::OpenError;
    use crate::RebuildError;
    use crate::rebuild_from_archive;

    fn options(dir: &Path) -> LedgerOptions {
        LedgerOptions {
            dir: dir.join("ledger"),
            blobs_dir: dir.join("blobs"),
            signing_key_file: dir.join("key"),
            origin: "flux.example".to_owned(),
            cache_bytes: 8 * 1024 * 1024,
            archive: Some(ArchiveOptions {
                dir: dir.join("archive"),
                on_failure: ArchiveFailure::Report,
            }),
            snapshots: None,
            seal: None,
        }
    }

    /// A lost ledger whose key and archive are there, and what it was called.
    fn lost() -> (tempfile::TempDir, fluxvm_verify::LedgerId) {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        let ledger = Ledger::open(options.clone(), Box::new(|_| {})).unwrap();
        let id = ledger.info().ledger_id;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(ledger.close());
        drop(ledger);
        remove(&options.dir).unwrap();
        remove(&options.blobs_dir).unwrap();
        (dir, id)
    }

    fn rebuilds(dir: &Path, id: fluxvm_verify::LedgerId) {
        let options = options(dir);
        let archive = dir.join("archive");
        rebuild_from_archive(&archive, &options).unwrap();
        assert!(!beside(&options.dir).exists() && !beside(&options.blobs_dir).exists());
        let again = rebuild_from_archive(&archive, &options);
        assert!(matches!(again, Err(RebuildError::NotEmpty { .. })));
        let ledger = Ledger::open(options, Box::new(|_| {})).unwrap();
        assert_eq!(ledger.info().ledger_id, id);
    }

    fn is_refused(dir: &Path) {
        let refused = Ledger::open(options(dir), Box::new(|_| {}));
        let refused = refused.err().unwrap();
        assert!(
            matches!(refused, OpenError::RebuildUnfinished { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("fluxctl ledger rebuild"));
    }

    #[test]
    fn a_rebuilding_that_was_cut_off_is_no_ledger_and_the_next_one_begins_anew() {
        let (dir, id) = lost();
        let unfinished = Unfinished::of(&options(dir.path()));
        unfinished
            .begin(&*crate::Environment::default().disk)
            .unwrap();
        for name in ["founding", "conf", "db"] {
            fs::write(unfinished.dir.join(name), b"half").unwrap();
        }
        is_refused(dir.path());
        rebuilds(dir.path(), id);
    }

    #[test]
    fn one_that_was_cut_off_between_its_two_names_is_begun_anew_too() {
        let (dir, id) = lost();
        let options = options(dir.path());
        fs::create_dir(beside(&options.dir)).unwrap();
        fs::create_dir(&options.blobs_dir).unwrap();
        fs::write(options.blobs_dir.join("of it"), b"").unwrap();
        is_refused(dir.path());
        rebuilds(dir.path(), id);
    }

    #[test]
    fn an_error_leaves_nothing() {
        let (dir, _) = lost();
        let options = options(dir.path());
        let refused = rebuild_from_archive(&dir.path().join("nowhere"), &options);
        assert!(matches!(refused, Err(RebuildError::Archive { .. })));
        assert!(!is_unfinished(&options.dir) && !options.blobs_dir.exists());
    }
}
