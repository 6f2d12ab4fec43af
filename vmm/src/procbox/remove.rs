//! Ending a sandbox and removing every trace of it. Blocking: it runs on a thread that may wait.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cgroup;
use super::folder::{Folder, TRASH_PREFIX};
use super::freeze;
use super::process::Process;
use super::record::Record;
use crate::backend::Removal;
use crate::error::RemoveError;
use crate::spec::SandboxId;

/// How long a killed first process may take to end. The kernel ends everything inside first;
/// thousands of processes and gigabytes of memory take seconds.
const KILL_WAIT_MS_MAX: u16 = 30_000;

/// What is needed to remove one sandbox.
pub(super) struct Remains {
    pub(super) id: SandboxId,
    pub(super) folder: Folder,
    /// The control groups that a sandbox of this id has here; its record may name others.
    pub(super) cgroups: Vec<PathBuf>,
    /// Its first process, if this daemon holds it.
    pub(super) process: Option<Arc<Process>>,
}

impl Remains {
    /// Removes everything but the files, which wait in the returned folder to be removed.
    pub(super) fn remove(&self) -> Result<(Removal, Option<PathBuf>), RemoveError> {
        let existed = self.folder.exists();
        let record = match Record::read(&self.folder.path) {
            Ok(record) => record,
            // It names nothing, but the groups of this id, or the held process, find what runs.
            Err(_) if !self.cgroups.is_empty() || self.process.is_some() => None,
            Err(error) => return Err(self.error("reading its record", error)),
        };
        let mut groups = self.cgroups.clone();
        groups.extend(record.iter().flat_map(|record| record.cgroups.clone()));
        // What stands still in a group of version 1 cannot be ended.
        if let Err(error) = freeze::thaw(&groups) {
            tracing::debug!(%error, id = %self.id, "its groups cannot be let run");
        }
        let was_running = self.end_process(record.as_ref())?;
        groups.sort();
        groups.dedup();
        cgroup::remove(&groups)
            .map_err(|error| self.error("removing its control groups", error))?;
        let trash = self
            .folder
            .discard()
            .map_err(|error| self.error("removing its folder", error))?;
        Ok((
            Removal {
                existed,
                was_running,
            },
            trash,
        ))
    }

    fn end_process(&self, record: Option<&Record>) -> Result<bool, RemoveError> {
        let failed = |error| self.error("ending its first process", error);
        let process = match (&self.process, record) {
            (Some(process), _) => Some(Arc::clone(process)),
            (
                None,
                Some(Record {
                    process: Some(process),
                    boot_id,
                    ..
                }),
            ) => Process::find(process, boot_id)
                .map_err(failed)?
                .map(Arc::new),
            (None, _) => None,
        };
        let Some(process) = process else {
            return Ok(false);
        };
        let was_running = process.alive();
        process.kill().map_err(failed)?;
        if process.wait_blocking(KILL_WAIT_MS_MAX).map_err(failed)? {
            Ok(was_running)
        } else {
            Err(failed(io::ErrorKind::TimedOut.into()))
        }
    }

    fn error(&self, what: &str, source: io::Error) -> RemoveError {
        RemoveError {
            id: self.id,
            what: what.to_owned(),
            source,
        }
    }
}

/// The folders of sandboxes whose removal was interrupted.
pub(super) fn left_in_trash(sandboxes_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(sandboxes_dir)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(TRASH_PREFIX)
        {
            left.push(entry.path());
        }
    }
    Ok(left)
}
