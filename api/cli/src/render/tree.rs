//! The shape of a history: what was gone back past, and which sessions came of it. Pure.
//!
//! ```text
//!   ●      on the way to now
//!   │ ○    undone: a later step went back past it
//!   ◀      goes to another state: restore, undo, redo
//!   ├─▶    a child
//!   ├─◀    a child's changes
//! ```

use std::collections::HashMap;

use serde_json::Value;

use super::items;
use super::number;
use super::string;

/// Kinds of intents that changed the session's files.
const DEEDS: [&str; 9] = [
    "exec.started",
    "job.start",
    "file.write.started",
    "file.delete.started",
    "file.upload.started",
    "git.commit.started",
    "git.branch.started",
    "promote.started",
    "changes.started",
];

/// A session's line of steps, as far as it can be gone back on.
#[derive(Debug, Default)]
pub(super) struct Line {
    now: Vec<u64>,
    tags: HashMap<String, Vec<u64>>,
    /// States that are being kept, by the number of their intent.
    open: HashMap<u64, Vec<u64>>,
    undone: HashMap<u64, u64>,
}

impl Line {
    /// Of these events, in order.
    pub(super) fn of(events: &[Value]) -> Self {
        let mut line = Self::default();
        for event in events {
            line.apply(event);
        }
        line
    }

    /// The event that went back past what was begun with this number.
    pub(super) fn undone_by(&self, seq: u64) -> Option<u64> {
        self.undone.get(&seq).copied()
    }

    fn apply(&mut self, event: &Value) {
        let Some(seq) = number(event, "seq") else {
            return;
        };
        let data = event.get("data").unwrap_or(&Value::Null);
        match string(event, "kind") {
            kind if DEEDS.contains(&kind) => self.now.push(seq),
            "checkpoint.started" => {
                self.open.insert(seq, self.now.clone());
            }
            "rewind.point.started" => {
                // What it is taken before is recorded before it.
                let before = number(data, "before");
                let led = self.now.iter().filter(|step| Some(**step) != before);
                self.open.insert(seq, led.copied().collect());
            }
            "checkpoint" | "rewind.point" => {
                let led = number(data, "op").and_then(|op| self.open.remove(&op));
                if let Some(led) = led {
                    self.tags.insert(string(data, "tag").to_owned(), led);
                }
            }
            "restore" => self.go_to(seq, string(data, "tag")),
            "rewind.undo" | "rewind.redo" => {
                if let Some(kept) = data.pointer("/kept/tag").and_then(Value::as_str) {
                    self.tags.insert(kept.to_owned(), self.now.clone());
                }
                self.go_to(seq, string(data, "tag"));
            }
            _ => {}
        }
    }

    fn go_to(&mut self, by: u64, tag: &str) {
        let there = self.tags.get(tag).cloned().unwrap_or_default();
        let left = std::mem::replace(&mut self.now, there);
        self.undone.extend(left.into_iter().map(|step| (step, by)));
        for step in &self.now {
            self.undone.remove(step);
        }
    }
}

/// Whether a history has any shape but a line.
pub(super) fn branches(events: &[Value]) -> bool {
    let kinds = [
        "restore",
        "rewind.undo",
        "rewind.redo",
        "fork",
        "session.branch_child",
        "promote",
    ];
    events
        .iter()
        .any(|event| kinds.contains(&string(event, "kind")))
}

/// What stands before a step.
pub(super) fn mark(kind: &str, undone: bool) -> &'static str {
    match kind {
        "restore" | "rewind.undo" | "rewind.redo" => "◀",
        _ if undone => "│ ○",
        "promote" => "├─◀",
        _ => "●",
    }
}

/// The children that an event made.
pub(super) fn children(event: &Value) -> Vec<String> {
    match string(event, "kind") {
        "fork" | "session.branch_child" => {
            let data = event.get("data").unwrap_or(&Value::Null);
            let ids = items(data, "children").iter();
            ids.filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}
