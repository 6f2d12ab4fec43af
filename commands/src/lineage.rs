//! What led to a session's states: the commands that ran on the way to each, in order. Pure.
//!
//! An undo or a restore goes back to an earlier state, and what ran since is no longer on the way to
//! anything that comes after. So every state that can be named has its own list of commands, and two
//! states of one line share the beginning of theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use fluxvm_projections::Envelope;
use fluxvm_projections::Event;

/// One command that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The ledger number of its intent.
    pub(crate) seq: u64,
    /// The shell line.
    pub(crate) command: String,
    /// Its time limit, in milliseconds.
    pub(crate) timeout_ms: u64,
    /// It read what its caller sent, which is not kept.
    pub(crate) stdin: bool,
}

/// The commands on the way to each state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lineage {
    now: Vec<Arc<Step>>,
    tags: BTreeMap<String, Vec<Arc<Step>>>,
    /// Points that are being taken: what led to them, by the number of their intent.
    open: BTreeMap<u64, Vec<Arc<Step>>>,
}

impl Lineage {
    /// Of these events of one session, in order.
    pub(crate) fn of<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Self {
        let mut lineage = Self::default();
        for event in events {
            lineage.apply(event);
        }
        lineage
    }

    /// What led to the state of now.
    pub(crate) fn now(&self) -> &[Arc<Step>] {
        &self.now
    }

    /// What led to a checkpoint or a point.
    pub(crate) fn at(&self, tag: &str) -> Option<&[Arc<Step>]> {
        self.tags.get(tag).map(Vec::as_slice)
    }

    fn apply(&mut self, envelope: &Envelope) {
        let seq = envelope.seq.get();
        match &envelope.event {
            Event::ExecStarted(started) => self.now.push(Arc::new(Step {
                seq,
                command: started.command.clone(),
                timeout_ms: started.timeout_ms,
                stdin: started.stdin,
            })),
            Event::CheckpointStarted(_) => {
                self.open.insert(seq, self.now.clone());
            }
            Event::RewindPointStarted(started) => {
                // The action that it is taken before is recorded before it.
                let before = |step: &&Arc<Step>| Some(step.seq) != started.before;
                let led = self.now.iter().filter(before).cloned().collect();
                self.open.insert(seq, led);
            }
            Event::CheckpointTaken(taken) => self.taken(taken.op, &taken.tag),
            Event::RewindPointTaken(taken) => self.taken(taken.op, &taken.tag),
            Event::Restored(restored) => self.go_to(&restored.tag),
            Event::RewindUndone(moved) | Event::RewindRedone(moved) => {
                if let Some(kept) = &moved.kept {
                    self.tags.insert(kept.tag.clone(), self.now.clone());
                }
                self.go_to(&moved.tag);
            }
            _ => {}
        }
    }

    fn taken(&mut self, op: u64, tag: &str) {
        if let Some(led) = self.open.remove(&op) {
            self.tags.insert(tag.to_owned(), led);
        }
    }

    fn go_to(&mut self, tag: &str) {
        self.now = self.tags.get(tag).cloned().unwrap_or_default();
    }
}

/// What ran between two states; `None` when the one is not on the way to the other.
pub(crate) fn between<'a>(from: &[Arc<Step>], to: &'a [Arc<Step>]) -> Option<&'a [Arc<Step>]> {
    to.starts_with(from)
        .then(|| to.get(from.len()..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::envelope;
    use crate::testing::snapshot;
    use fluxvm_projections::CheckpointStarted;
    use fluxvm_projections::CheckpointTaken;
    use fluxvm_projections::ExecId;
    use fluxvm_projections::ExecStarted;
    use fluxvm_projections::MemoryMode;
    use fluxvm_projections::Restored;
    use fluxvm_projections::RevivalRecord;
    use fluxvm_projections::SandboxId;
    use uuid::Uuid;

    /// Events out of words: `!x` keeps a checkpoint x, `<x` goes back to it, all else is a command.
    fn lineage(words: &str) -> Lineage {
        let mut events = Vec::new();
        for word in words.split_whitespace() {
            let seq = events.len() as u64 + 1;
            if let Some(tag) = word.strip_prefix('!') {
                let started = CheckpointStarted {
                    tag: tag.into(),
                    snapshot: snapshot(1).id,
                    memory: MemoryMode::Never,
                };
                events.push(envelope(seq, Event::CheckpointStarted(started)));
                let taken = CheckpointTaken {
                    op: seq,
                    tag: tag.into(),
                    snapshot: snapshot(1),
                    duration_ms: 1,
                };
                events.push(envelope(seq + 1, Event::CheckpointTaken(taken)));
            } else if let Some(tag) = word.strip_prefix('<') {
                let restored = Restored {
                    op: 1,
                    tag: tag.into(),
                    snapshot: snapshot(1).id,
                    disk: String::new(),
                    sandbox_id: SandboxId(Uuid::nil()),
                    previous_sandbox_id: SandboxId(Uuid::nil()),
                    revival: RevivalRecord::default(),
                    duration_ms: 1,
                };
                events.push(envelope(seq, Event::Restored(restored)));
            } else {
                let started = ExecStarted {
                    exec_id: ExecId(Uuid::nil()),
                    command: word.into(),
                    timeout_ms: 1,
                    stdin: false,
                };
                events.push(envelope(seq, Event::ExecStarted(started)));
            }
        }
        Lineage::of(&events)
    }

    fn words(steps: &[Arc<Step>]) -> String {
        let words: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
        words.join(" ")
    }

    #[test]
    fn what_was_gone_back_from_is_not_on_the_way_to_what_came_after() {
        let lineage = lineage("a !x b !y <x c !z d");
        assert_eq!(words(lineage.now()), "a c d");
        assert_eq!(words(lineage.at("y").unwrap()), "a b");
        let at = |tag: &str| lineage.at(tag).unwrap().to_vec();
        let way = |from: &str, to: &str| between(&at(from), &at(to)).map(words);
        assert_eq!(way("x", "y").as_deref(), Some("b"));
        assert_eq!(way("x", "z").as_deref(), Some("c"));
        assert_eq!(way("y", "z"), None);
        assert_eq!(way("x", "x").as_deref(), Some(""));
        assert!(lineage.at("w").is_none());
    }
}
