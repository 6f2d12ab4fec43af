//! `snapshot.json`: what must be known of a snapshot to start from it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::LayerRef;
use crate::snapshot::{ContentDigest, Snapshot};
use crate::spec::ImageRef;

/// The record's file name.
pub(super) const RECORD: &str = "snapshot.json";
/// Bumped when a field changes its meaning.
const FORMAT: u32 = 1;
/// Largest record that is read: chains are compacted long before.
const RECORD_BYTES_MAX: u64 = 1024 * 1024;

/// One snapshot on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SnapshotRecord {
    pub(crate) format: u32,
    pub(crate) snapshot: Snapshot,
    pub(crate) image: ImageRef,
    /// The host's id of root inside; absent for an ordinary user's sandbox.
    pub(crate) uid_base: Option<u32>,
    /// The host name that the sandbox had.
    pub(crate) hostname: String,
    /// The lowest first.
    pub(crate) chain: Vec<LayerRef>,
    /// What the memory images need, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryRecord>,
}

/// What must be as it was for processes to come back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryRecord {
    /// The skeleton with the guest daemon's program.
    pub(crate) skeleton: String,
    /// The boot in which they ran.
    pub(crate) boot_id: String,
    /// Each image file with its length and digest.
    pub(crate) images: Vec<(String, u64, ContentDigest)>,
    /// What they call files that programs had mapped, and where those lie inside.
    pub(crate) mapped: Vec<(String, String)>,
    /// What they call the guest daemon's log.
    pub(crate) log: String,
    /// Commands that were confined: what the kernel does not give back to them.
    pub(crate) confined: Vec<String>,
    /// The process id of the guest daemon on the host when it was dumped.
    pub(crate) pid: u32,
}

impl SnapshotRecord {
    pub(crate) const fn format() -> u32 {
        FORMAT
    }

    /// Writes it into a folder that nobody sees yet.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let mut file = File::create_new(folder.join(RECORD))?;
        file.write_all(&serde_json::to_vec(self).map_err(io::Error::other)?)?;
        file.sync_all()
    }

    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let path = folder.join(RECORD);
        if fs::symlink_metadata(&path)?.len() > RECORD_BYTES_MAX {
            return Err(invalid("the record is too large".to_owned()));
        }
        let record: Self = serde_json::from_slice(&fs::read(&path)?)
            .map_err(|error| invalid(error.to_string()))?;
        if record.format == FORMAT {
            Ok(record)
        } else {
            Err(invalid("the record has an unknown format".to_owned()))
        }
    }
}
