//! The disk that the state folder is on, and the ballast on it.
//!
//! The ballast is a file that holds room and nothing else. It is there from the start on where there is
//! room for it, and given up while commands run into the reserve: what they come to can then still be
//! recorded.

use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::path::PathBuf;

use fluxvm_commands::Room;
use fluxvm_commands::Space;
use fluxvm_projections::SandboxId;
use nix::fcntl::FallocateFlags;
use nix::fcntl::fallocate;
use nix::sys::statvfs::statvfs;

/// The size of the ballast, in bytes: two of the store's segments.
const BALLAST_BYTES: u64 = 16 * 1024 * 1024;
/// On a small disk it is one part in so many.
const BALLAST_PART: u64 = 8;

/// The disk of one state folder.
pub(crate) struct StateSpace {
    root: PathBuf,
    sandboxes: PathBuf,
}

impl StateSpace {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            sandboxes: root.join("sandboxes"),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.root.join("ballast")
    }
}

impl Space for StateSpace {
    fn room(&self) -> io::Result<Room> {
        let figures = statvfs(&self.root)?;
        let block = figures.fragment_size();
        let free_bytes = figures.blocks_available().saturating_mul(block);
        let total_bytes = figures.blocks().saturating_mul(block);
        // What the ballast gave up is not for new work.
        let lacking = match self.ballast().exists() {
            true => 0,
            false => ballast_bytes(total_bytes),
        };
        Ok(Room {
            free_bytes: free_bytes.saturating_sub(lacking),
            total_bytes,
        })
    }

    fn used_by(&self, sandbox: SandboxId) -> u64 {
        let folder = self.sandboxes.join(sandbox.0.hyphenated().to_string());
        let device = fs::symlink_metadata(&folder).map(|it| it.dev());
        device.map_or(0, |device| used_below(&folder, device))
    }

    fn give_up_ballast(&self) {
        match fs::remove_file(self.ballast()) {
            Ok(()) => tracing::warn!("the disk is short: the ballast is given up"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::error!(%error, "the ballast cannot be given up"),
        }
    }

    fn take_ballast(&self) {
        if self.ballast().exists() {
            return;
        }
        let Ok(room) = self.room() else { return };
        if room.free_bytes < room.reserve_bytes().saturating_mul(2) {
            return;
        }
        let bytes = ballast_bytes(room.total_bytes);
        if let Err(error) = allocate(&self.ballast(), bytes) {
            tracing::debug!(%error, "there is no ballast");
            let _ = fs::remove_file(self.ballast());
        }
    }
}

fn ballast_bytes(total_bytes: u64) -> u64 {
    BALLAST_BYTES.min(total_bytes / BALLAST_PART)
}

fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::create(path)?;
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(())
}

/// What lies below a folder, on its own device, as far as it can be seen.
fn used_below(folder: &Path, device: u64) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| {
        let Ok(metadata) = entry.metadata() else {
            return 0;
        };
        let own = metadata.blocks().saturating_mul(512);
        match metadata.is_dir() && metadata.dev() == device {
            true => own.saturating_add(used_below(&entry.path(), device)),
            false => own,
        }
    });
    sizes.sum()
}
