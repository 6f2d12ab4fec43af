//! The checkpoints that a session took and still has.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::event::snapshot::SnapshotRecord;

/// A session's checkpoints, in the order in which they were taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// How many were ever taken: what the next one is numbered after.
    pub taken: u64,
    kept: Vec<Checkpoint>,
}

/// One checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// What the session knows it by.
    pub tag: String,
    /// When it was taken.
    pub created_at: DateTime<Utc>,
    /// What was captured.
    pub snapshot: SnapshotRecord,
}

impl Checkpoints {
    /// None was ever taken.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.taken == 0
    }

    /// The checkpoint of this tag.
    #[must_use]
    pub fn get(&self, tag: &str) -> Option<&Checkpoint> {
        self.kept.iter().find(|checkpoint| checkpoint.tag == tag)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Checkpoint> {
        self.kept.iter()
    }

    pub(crate) fn add(&mut self, checkpoint: Checkpoint) {
        self.taken += 1;
        self.kept.push(checkpoint);
    }

    pub(crate) fn remove(&mut self, tag: &str) {
        self.kept.retain(|checkpoint| checkpoint.tag != tag);
    }
}
