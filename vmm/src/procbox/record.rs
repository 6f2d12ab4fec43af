//! `sandbox.json`: what a later daemon must know of a sandbox to take it over or to remove it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::layers::{Chain, LayerId};
use crate::spec::{ImageRef, SandboxId};

/// The record's file name.
pub(super) const RECORD: &str = "sandbox.json";
/// Bumped when a field changes its meaning.
const FORMAT: u32 = 1;
/// Largest record that is read: a thousand grafts of long paths.
const RECORD_BYTES_MAX: u64 = 1024 * 1024;

/// One sandbox on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) format: u32,
    pub(super) id: SandboxId,
    pub(super) image: ImageRef,
    /// The host's id of root inside; absent for an ordinary user's sandbox.
    pub(super) uid_base: Option<u32>,
    /// The skeleton folder below its root: must not be removed while this sandbox exists.
    pub(super) skeleton: String,
    /// Which folders the numbered grafts stand for.
    pub(super) grafts: Vec<PathBuf>,
    /// Its control groups.
    pub(super) cgroups: Vec<PathBuf>,
    /// The boot in which it was made: no process outlives one.
    pub(super) boot_id: String,
    pub(super) created_at_unix_ms: u64,
    /// The host name inside.
    #[serde(default)]
    pub(super) hostname: String,
    /// Layers that are mounted below the upper one.
    #[serde(default)]
    pub(super) mounted: Vec<LayerId>,
    /// Layers on which the next capture stands.
    #[serde(default)]
    pub(super) chain: Chain,
    /// Written before the first process may run anything.
    pub(super) process: Option<ProcessRecord>,
}

/// A process id, and when it began: together they name one process of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessRecord {
    pub(super) pid: u32,
    pub(super) start_time_ticks: u64,
}

impl Record {
    pub(super) const fn format() -> u32 {
        FORMAT
    }

    /// Every layer that must not go while this sandbox exists.
    pub(super) fn layers(&self) -> Vec<LayerId> {
        let chain = self.chain.all().into_iter().map(|layer| layer.id);
        self.mounted.iter().copied().chain(chain).collect()
    }

    /// Writes the first record: there is none that it could damage, and nothing runs yet.
    pub(super) fn write_first(&self, folder: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        fs::write(folder.join(RECORD), text)
    }

    /// Replaces the record in one step. It is not synced: no sandbox outlives the machine's uptime,
    /// and within it the page cache is as good as the disk.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let fresh = folder.join("sandbox.json.new");
        fs::write(&fresh, serde_json::to_vec(self).map_err(io::Error::other)?)?;
        fs::rename(&fresh, folder.join(RECORD))
    }

    /// Reads it back. `None` when there is none.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        let path = folder.join(RECORD);
        let length = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // The first record's file exists a moment before its text does, and nothing runs then.
        if length == 0 {
            return Ok(None);
        }
        if length > RECORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the record is too large",
            ));
        }
        let record: Self = serde_json::from_slice(&fs::read(&path)?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if record.format == FORMAT {
            Ok(Some(record))
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the record has an unknown format",
            ))
        }
    }
}

impl ProcessRecord {
    /// Looks a running process up.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_time_ticks = start_time_ticks(&stat)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc stat"))?;
        Ok(Self {
            pid,
            start_time_ticks,
        })
    }
}

/// Field 22, counted behind the command's closing parenthesis: a command may hold spaces and
/// parentheses.
fn start_time_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The kernel's name for the time since it was started.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_look_like_the_fields_behind_it() {
        let fields: Vec<String> = (3..60).map(|n| n.to_string()).collect();
        let stat = format!("7 (a) b (c) {}", fields.join(" "));
        assert_eq!(start_time_ticks(&stat), Some(22));
        assert_eq!(start_time_ticks("7 (a"), None);
    }

    #[test]
    fn a_process_is_named_by_its_number_and_its_beginning() {
        let me = ProcessRecord::of(std::process::id()).unwrap();
        assert_eq!(me, ProcessRecord::of(std::process::id()).unwrap());
        assert!(me.start_time_ticks > 0);
    }
}
