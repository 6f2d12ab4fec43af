//! What led to a session's states: what was done on the way to each, in order. Pure.
//!
//! An undo or a restore goes back to an earlier state, and what was done since is no longer on the way to
//! anything that comes after. So every state that can be named has its own list of steps, and two states
//! of one line share the beginning of theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use fluxvm_projections::Envelope;
use fluxvm_projections::Event;

/// One thing that was done and may have changed the session's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The ledger number of its intent.
    pub(crate) seq: u64,
    pub(crate) deed: Deed,
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// A command ran.
    Command {
        /// The shell line.
        command: String,
        /// Its time limit, in milliseconds.
        timeout_ms: u64,
        /// It read what its caller sent, which is not kept.
        stdin: bool,
    },
    /// A job was started. It may have gone on for long.
    Job {
        /// The shell line.
        command: String,
    },
    /// One path was written or removed through the file routes.
    Path {
        /// `write`, `delete` or `upload`.
        verb: &'static str,
        /// Absolute.
        path: String,
        /// What it takes to do it again, where that was kept.
        again: Option<Again>,
    },
    /// Something that may have changed many paths: git, a promotion.
    Other {
        /// The kind of its outcome.
        kind: &'static str,
        /// What it was about, for a person.
        words: String,
    },
}

/// What it takes to do something to one path again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Write this.
    Write {
        size: u64,
        mode: u32,
        parents: bool,
        /// The kept content.
        blobs: Vec<String>,
    },
    /// Remove it.
    Delete { recursive: bool },
}

impl Deed {
    /// The kind of the event that tells how it ended.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Command { .. } => "exec",
            Self::Job { .. } => "job.start",
            Self::Path { verb: "write", .. } => "file.write",
            Self::Path { verb: "delete", .. } => "file.delete",
            Self::Path { .. } => "file.upload",
            Self::Other { kind, .. } => kind,
        }
    }

    /// Why it cannot be done again in another sandbox, if it cannot.
    pub(crate) fn unrepeatable(&self) -> Option<&'static str> {
        match self {
            Self::Command { stdin: false, .. } => None,
            Self::Command { .. } => Some("read an input that is not kept"),
            Self::Job { .. } => Some("started a job, which has no end that it could be held to"),
            Self::Path { again: Some(_), .. } => None,
            Self::Path { .. } => Some("put a content that is not kept with it"),
            Self::Other { .. } => Some("was no command"),
        }
    }

    /// What it was, for a person: the shell line of a command.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Command { command, .. } | Self::Job { command } => command.clone(),
            Self::Path { verb, path, .. } => format!("{verb} {path}"),
            Self::Other { words, .. } => words.clone(),
        }
    }

    fn of(event: &Event) -> Option<Self> {
        let path = |verb, path: &String, again| {
            let path = path.clone();
            Some(Self::Path { verb, path, again })
        };
        match event {
            Event::ExecStarted(started) => Some(Self::Command {
                command: started.command.clone(),
                timeout_ms: started.timeout_ms,
                stdin: started.stdin,
            }),
            Event::JobStarted(started) => Some(Self::Job {
                command: started.command.clone(),
            }),
            Event::FileWriteStarted(started) => {
                let kept = started.size == 0 || !started.blobs.is_empty();
                let again = kept.then(|| Again::Write {
                    size: started.size,
                    mode: started.mode,
                    parents: started.parents,
                    blobs: started.blobs.clone(),
                });
                path("write", &started.path, again)
            }
            Event::FileDeleteStarted(started) => {
                let recursive = started.recursive;
                path("delete", &started.path, Some(Again::Delete { recursive }))
            }
            Event::FileUploadStarted(started) => path("upload", &started.path, None),
            Event::GitCommitStarted(started) => Some(Self::Other {
                kind: "git.commit",
                words: format!("commit {}", started.message),
            }),
            Event::GitBranchStarted(started) => Some(Self::Other {
                kind: "git.branch",
                words: format!("branch {}", started.name),
            }),
            Event::ChangesStarted(started) => Some(Self::Other {
                kind: "changes",
                words: format!("promotion {} of {}", started.seq, started.source),
            }),
            Event::PromoteStarted(started) => Some(Self::Other {
                kind: "promote",
                words: format!("promotion of {}", started.child),
            }),
            _ => None,
        }
    }
}

/// The steps on the way to each state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lineage {
    now: Vec<Arc<Step>>,
    tags: BTreeMap<String, Vec<Arc<Step>>>,
    /// Points that are being taken: what led to them, by the number of their intent.
    open: BTreeMap<u64, Vec<Arc<Step>>>,
    /// What is not on the way to now any more, with the number of the event that went back past it.
    undone: BTreeMap<u64, u64>,
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

    /// The event that went back past the step with this number, unless that was gone forward to again.
    pub(crate) fn undone_by(&self, seq: u64) -> Option<u64> {
        self.undone.get(&seq).copied()
    }

    fn apply(&mut self, envelope: &Envelope) {
        let seq = envelope.seq.get();
        if let Some(deed) = Deed::of(&envelope.event) {
            self.now.push(Arc::new(Step { seq, deed }));
        }
        match &envelope.event {
            Event::CheckpointStarted(_) => {
                self.open.insert(seq, self.now.clone());
            }
            Event::RewindPointStarted(started) => {
                // The action that it is taken before is recorded before it.
                let before = |step: &&Arc<Step>| Some(step.seq) != started.before;
                let led = self.now.iter().filter(before).cloned().collect();
                self.open.insert(seq, led);
            }
            // What was taken back left nothing.
            Event::PromoteFailed(failed) if failed.rolled_back => {
                self.now.retain(|step| step.seq != failed.op);
            }
            Event::CheckpointTaken(taken) => self.taken(taken.op, &taken.tag),
            Event::RewindPointTaken(taken) => self.taken(taken.op, &taken.tag),
            Event::Restored(restored) => self.go_to(seq, &restored.tag),
            Event::RewindUndone(moved) | Event::RewindRedone(moved) => {
                if let Some(kept) = &moved.kept {
                    self.tags.insert(kept.tag.clone(), self.now.clone());
                }
                self.go_to(seq, &moved.tag);
            }
            _ => {}
        }
    }

    fn taken(&mut self, op: u64, tag: &str) {
        if let Some(led) = self.open.remove(&op) {
            self.tags.insert(tag.to_owned(), led);
        }
    }

    fn go_to(&mut self, by: u64, tag: &str) {
        let there = self.tags.get(tag).cloned().unwrap_or_default();
        let left = std::mem::replace(&mut self.now, there);
        self.undone.extend(left.iter().map(|step| (step.seq, by)));
        for step in &self.now {
            self.undone.remove(&step.seq);
        }
    }
}

/// What was done between two states; `None` when the one is not on the way to the other.
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
        let words: Vec<String> = steps.iter().map(|step| step.deed.words()).collect();
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
        // The restore is the sixth thing and the seventh event.
        let undone = |seq| lineage.undone_by(seq);
        assert_eq!((undone(1), undone(4), undone(8)), (None, Some(7), None));
    }
}
