//! The ring of points that a session can go back to, and forward again.
//!
//! ```text
//!   points              undone
//!   rw-1  rw-2  rw-3  | rw-4  rw-5  rw-6
//!                       ▲ the session is in this state
//! ```
//!
//! A point is the state before an action. While nothing is undone, `undone` is empty and the session is
//! past its last point. An undo moves the mark to the left, a redo to the right; the first undo keeps the
//! state that it leaves as one more point, so that a redo can come back to it. What is undone stays until
//! something new happens: then it describes a future that will not come, and only what is pinned is kept.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use serde::Serialize;

use crate::event::rewind::RewindConfigured;
use crate::event::rewind::Trigger;
use crate::event::snapshot::SnapshotRecord;

/// How many points are kept where nobody said.
pub const REWIND_POINTS_DEFAULT: u32 = 10;

/// A session's ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {
    /// Whether, when and how points are taken.
    pub config: RewindConfig,
    /// Points that were ever begun: what the next one is numbered after.
    pub begun: u64,
    points: Vec<Point>,
    undone: Vec<Point>,
}

/// Whether, when and how points are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindConfig {
    /// Points are taken.
    pub enabled: bool,
    /// How many are kept.
    pub max_points: u32,
    /// Processes are kept where that is possible.
    pub memory: bool,
    /// What a point is taken before.
    pub triggers: Vec<Trigger>,
}

/// One point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// What the session knows it by.
    pub tag: String,
    /// What it was taken before; `None` for the state that an undo left.
    pub trigger: Option<Trigger>,
    /// The ledger number of the intent that it was taken before.
    pub before: Option<u64>,
    /// The command that was about to run, or what was about to happen.
    pub command: Option<String>,
    /// When it was taken.
    pub created_at: DateTime<Utc>,
    /// What was captured.
    pub snapshot: SnapshotRecord,
    /// It is kept until it is let go of.
    pub pinned: bool,
}

impl Default for RewindConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            max_points: REWIND_POINTS_DEFAULT,
            memory: true,
            triggers: vec![Trigger::Exec],
        }
    }
}

impl Point {
    /// It takes a slot of the ring. The state that an undo left takes none until it is pinned: it is
    /// there for a moment, and making room for it would cost a point.
    fn takes_slot(&self) -> bool {
        self.trigger.is_some() || self.pinned
    }
}

impl Rewind {
    /// Nothing was ever configured or taken.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        *self == Self::default()
    }

    /// The points that can be gone back to, oldest first.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// What was undone: the state that the session is in, and then what a redo comes to.
    #[must_use]
    pub fn undone(&self) -> &[Point] {
        &self.undone
    }

    /// All points, in the order of what happened.
    pub fn timeline(&self) -> impl Iterator<Item = &Point> {
        self.points.iter().chain(&self.undone)
    }

    /// The point of this tag, undone or not.
    #[must_use]
    pub fn get(&self, tag: &str) -> Option<&Point> {
        self.timeline().find(|point| point.tag == tag)
    }

    /// How many points are pinned.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.timeline().filter(|point| point.pinned).count()
    }

    /// Which points must go so that `new` more fit into `max_points`: the oldest that are not pinned.
    #[must_use]
    pub fn evictions(&self, max_points: u32, new: usize) -> Vec<String> {
        let slots = usize::try_from(max_points).unwrap_or(usize::MAX);
        let taken = self.timeline().filter(|point| point.takes_slot()).count();
        // Not the state that the session is in: what would a redo start from?
        let is_current = |point: &Point| {
            let current = self.undone.first();
            current.is_some_and(|current| current.tag == point.tag)
        };
        self.timeline()
            .filter(|point| point.takes_slot() && !point.pinned && !is_current(point))
            .take((taken + new).saturating_sub(slots))
            .map(|point| point.tag.clone())
            .collect()
    }

    pub(crate) fn configure(&mut self, config: &RewindConfigured) {
        self.config = RewindConfig {
            enabled: config.enabled,
            max_points: config.max_points,
            memory: config.memory,
            triggers: config.triggers.clone(),
        };
        self.drop_points(&config.evicted);
    }

    pub(crate) fn add(&mut self, point: Point, evicted: &[String]) {
        self.drop_points(evicted);
        self.points.push(point);
    }

    pub(crate) fn pin(&mut self, tag: &str, pinned: bool) {
        let all = self.points.iter_mut().chain(&mut self.undone);
        for point in all.filter(|point| point.tag == tag) {
            point.pinned = pinned;
        }
    }

    /// Moves the mark to before this point. `kept` is the state that was left, at the end of everything.
    pub(crate) fn go_to(&mut self, tag: &str, kept: Option<Point>) {
        let mut timeline = std::mem::take(&mut self.points);
        timeline.append(&mut self.undone);
        timeline.extend(kept);
        let mark = timeline.iter().position(|point| point.tag == tag);
        self.undone = timeline.split_off(mark.unwrap_or(timeline.len()));
        self.points = timeline;
    }

    /// Something happened that is not an undo or a redo.
    pub(crate) fn something_new(&mut self) {
        let undone = std::mem::take(&mut self.undone);
        self.points
            .extend(undone.into_iter().filter(|point| point.pinned));
    }

    /// What erased events no longer say.
    pub(crate) fn erase(&mut self, seqs: &[u64]) {
        let all = self.points.iter_mut().chain(&mut self.undone);
        for point in all.filter(|point| point.before.is_some_and(|seq| seqs.contains(&seq))) {
            point.command = None;
        }
    }

    fn drop_points(&mut self, tags: &[String]) {
        self.points.retain(|point| !tags.contains(&point.tag));
        self.undone.retain(|point| !tags.contains(&point.tag));
    }
}
