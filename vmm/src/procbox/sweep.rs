//! What earlier daemons left: found at the start, and removed unless something stands on it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::engine::Engine;
use super::record::Record;
use super::remove::left_in_trash;
use super::skeleton;
use super::tree::remove_tree;

impl Engine {
    /// Removes what an earlier daemon left half removed, and skeletons that nobody stands on. The
    /// files go in the background: there may be many.
    pub(super) fn sweep(&self) {
        let dir = &self.options.sandboxes_dir;
        let left = left_in_trash(dir).and_then(|mut left| {
            left.extend(self.unused_skeletons(dir)?);
            left.extend(self.store.leftovers()?);
            Ok(left)
        });
        let swept =
            left.and_then(|left| {
                let work = move || left.iter().try_for_each(|path| remove_tree(path));
                std::thread::Builder::new().name("fluxvm-sweep".to_owned()).spawn(move || {
                if let Err(error) = work() {
                    tracing::warn!(%error, "leftovers of sandboxes could not be removed yet");
                }
            })
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
}
