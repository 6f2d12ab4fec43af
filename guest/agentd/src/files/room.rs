//! The disk's reserve: what a transfer must leave free, so that a guest with a full disk can still
//! be looked at and cleaned up.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;

use agentd_protocol::limits::DISK_PROBE_BYTES;
use nix::sys::statvfs::Statvfs;
use nix::sys::statvfs::fstatvfs;
use nix::sys::statvfs::statvfs;

use super::Fault;

/// A guard over one transfer's writes to one file system.
#[derive(Debug)]
pub(crate) struct Room {
    reserve_bytes: u64,
    unprobed_bytes: u64,
}

impl Room {
    pub(crate) fn new(reserve_bytes: u64) -> Self {
        Self {
            reserve_bytes,
            unprobed_bytes: 0,
        }
    }

    /// Asks once before anything is written: `announced_bytes` have to fit too.
    pub(super) fn before(&self, path: &Path, announced_bytes: u64) -> Result<(), Fault> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let mut ancestor: PathBuf = match std::env::current_dir() {
            Ok(folder) => folder.join(path),
            Err(_) => path.to_owned(),
        };
        loop {
            match statvfs(&ancestor) {
                Ok(figures) => return self.judge(&figures, announced_bytes),
                Err(_) if ancestor.pop() => {}
                // What cannot be measured is not full.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Takes note of written bytes, and asks again now and then.
    pub(super) fn wrote(&mut self, bytes: usize, file: &File) -> Result<(), Fault> {
        self.unprobed_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        if self.reserve_bytes == 0 || self.unprobed_bytes < DISK_PROBE_BYTES {
            return Ok(());
        }
        self.unprobed_bytes = 0;
        match fstatvfs(file) {
            Ok(figures) => self.judge(&figures, 0),
            Err(_) => Ok(()),
        }
    }

    fn judge(&self, figures: &Statvfs, wanted_bytes: u64) -> Result<(), Fault> {
        let available = figures
            .blocks_available()
            .saturating_mul(figures.fragment_size());
        if available.saturating_sub(wanted_bytes) < self.reserve_bytes {
            return Err(Fault::NoRoom);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_is_judged_by_its_nearest_ancestor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c");
        assert_eq!(Room::new(1).before(&path, 0), Ok(()));
        assert_eq!(Room::new(1).before(&path, u64::MAX), Err(Fault::NoRoom));
        assert_eq!(Room::new(u64::MAX).before(&path, 0), Err(Fault::NoRoom));
        assert_eq!(Room::new(0).before(&path, u64::MAX), Ok(()));
    }

    #[test]
    fn written_bytes_are_judged_again_every_few_megabytes() {
        let file = tempfile::tempfile().unwrap();
        let mut room = Room::new(u64::MAX);
        let step = usize::try_from(DISK_PROBE_BYTES / 2).unwrap();
        assert_eq!(room.wrote(step, &file), Ok(()));
        assert_eq!(room.wrote(step, &file), Err(Fault::NoRoom));
    }
}
