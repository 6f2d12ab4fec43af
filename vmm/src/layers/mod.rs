//! Captured disks: immutable layers, and the snapshots and sandboxes that stand on them.
//!
//! ```text
//! <layers>/<layer id>/tree            the files, as an overlay's layer
//! <layers>/<layer id>/manifest.json   every path of it, with attributes and digests
//! <snapshots>/<snapshot id>/snapshot.json   which layers, which image, what digest
//! <snapshots>/<snapshot id>/memory/         processes, where they were kept
//! ```
//!
//! A layer holds what changed since the capture before it. It appears under its name in one step,
//! whole, and never changes; what is made or being removed has a name that begins with a dot and is
//! removed at the next start. Which layers are needed is read off the records of snapshots and
//! sandboxes: there is no second list that could disagree with them.

mod capture;
mod compact;
mod digest;
mod draft;
mod entry;
mod fold;
mod manifest;
mod path;
mod record;
mod store;
mod sync;
mod sys;
mod tree;
mod verify;
mod xattr;

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) use capture::{Known, Source, capture};
pub(crate) use compact::compact;
pub(crate) use digest::of_file as digest_of_file;
pub(crate) use draft::{Draft, Owners};
pub(crate) use entry::{Entry, Node};
pub(crate) use fold::{Fold, Found};
pub(crate) use path::LayerPath;
pub use path::{escape, unescape};
pub(crate) use record::{MemoryRecord, SnapshotRecord};
pub(crate) use store::{Pin, Published, Store, remove_later};
pub(crate) use sync::{times_tell_at, write_back_mapped};
pub(crate) use tree::{Tree, is_whiteout, kind, link_target, names, nanoseconds, open_file, stat};
pub(crate) use xattr::Attributes;

use crate::error::SnapshotError;

/// The tree of a layer, in its folder.
pub(crate) const TREE: &str = "tree";
/// The list of what is in it.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Longest file that is captured, holes included: hashing a longer one would take minutes.
pub(crate) const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;

/// The name of one layer. It is also a folder name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LayerId(Uuid);

impl LayerId {
    pub(crate) fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl FromStr for LayerId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(text).map(Self)
    }
}

/// A layer in a chain, and how many paths it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRef {
    pub(crate) id: LayerId,
    pub(crate) paths: u64,
}

/// The layers on which the next capture of a sandbox stands, the lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    /// What the sandbox was revived from.
    pub(crate) base: Vec<LayerRef>,
    /// What was captured of the sandbox itself.
    pub(crate) own: Vec<LayerRef>,
}

impl Chain {
    /// All of it, the lowest first.
    pub(crate) fn all(&self) -> Vec<LayerRef> {
        self.base.iter().chain(&self.own).copied().collect()
    }
}

/// Gives the system's answer its place.
pub(crate) fn os(what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> SnapshotError {
    move |source| SnapshotError::Os {
        what: what(),
        source,
    }
}

/// Removes a folder and all that is in it, whatever a guest put there.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    crate::procbox::remove_tree(path)
}
