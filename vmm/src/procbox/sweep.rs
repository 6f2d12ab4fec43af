//! What earlier daemons left: found at the start, and removed unless something stands on it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::engine::{Engine, TOKEN_PREFIX};
use super::folder::agents_dir;
use super::record::Record;
use super::remove::left_in_trash;
use super::skeleton;
use super::tree::remove_tree;
use crate::snapshot::SnapshotId;

/// How often what could not be removed is tried: five seconds. What an earlier daemon had started may
/// still write as it ends.
const TRIES_MAX: u32 = 20;
/// The pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(250);

/// Removes all of them; one that cannot be removed holds up no other.
fn remove_all(mut left: Vec<PathBuf>) -> io::Result<()> {
    for _ in 1..TRIES_MAX {
        left.retain(|path| remove_tree(path).is_err());
        if left.is_empty() {
            return Ok(());
        }
        std::thread::sleep(TRY_PAUSE);
    }
    left.iter().try_for_each(|path| remove_tree(path))
}

impl Engine {
    /// Removes what an earlier daemon left half removed, and skeletons that nobody stands on. The
    /// files go in the background: there may be many.
    pub(super) fn sweep(&self) {
        let dir = &self.options.sandboxes_dir;
        let left = left_in_trash(dir).and_then(|mut left| {
            left.extend(self.unused_skeletons(dir)?);
            left.extend(self.store.leftovers()?);
            self.forget_tokens()?;
            Ok(left)
        });
        let swept = left.and_then(|left| {
            let work = move || {
                if let Err(error) = remove_all(left) {
                    tracing::warn!(%error, "leftovers of sandboxes could not be removed yet");
                }
            };
            std::thread::Builder::new()
                .name("fluxvm-sweep".to_owned())
                .spawn(work)
        });
        if let Err(error) = swept {
            tracing::warn!(%error, "leftovers of sandboxes could not be looked for");
        }
    }

    fn unused_skeletons(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut unused = Vec::new();
        let mut used = BTreeSet::from([self.image_skeleton.clone(), self.host_skeleton.clone()]);
        let mut readable = true;
        for id in self.list()? {
            match Record::read(&self.folder(&id).path) {
                Ok(Some(record)) => {
                    self.stands(&record);
                    used.insert(record.skeleton);
                }
                Ok(None) => {}
                // Something may stand on any of them.
                Err(_) => {
                    self.store.be_careful();
                    readable = false;
                }
            }
        }
        if !readable {
            return Ok(unused);
        }
        used.extend(self.store.skeletons());
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(skeleton::PREFIX) && !used.contains(&name) {
                unused.push(entry.path());
            }
        }
        Ok(unused)
    }

    /// Removes tokens that were kept for snapshots which never came to be, or are gone.
    fn forget_tokens(&self) -> io::Result<()> {
        for entry in fs::read_dir(agents_dir(&self.options.secrets_dir))? {
            let entry = entry?;
            let name = entry.file_name();
            let id = name
                .to_str()
                .and_then(|name| name.strip_prefix(TOKEN_PREFIX)?.parse().ok());
            if id.is_some_and(|id: SnapshotId| self.store.free(&id).is_ok()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
