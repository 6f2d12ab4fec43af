//! What the events about snapshots make of a session, and which snapshots are needed.

use std::collections::BTreeSet;

use crate::checkpoints::Checkpoint;
use crate::envelope::Envelope;
use crate::event::Event;
use crate::event::fork::ForkStarted;
use crate::event::rewind::RewindMoveStarted;
use crate::event::rewind::RewindMoved;
use crate::event::rewind::RewindPointStarted;
use crate::event::rewind::RewindPointTaken;
use crate::ids::SandboxId;
use crate::ids::SnapshotId;
use crate::operations::OperationKind;
use crate::rewind::Point;
use crate::sessions::Session;
use crate::sessions::SessionStatus;
use crate::sessions::Sessions;

impl Session {
    pub(crate) fn apply_snapshots(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::CheckpointStarted(started) => {
                let (tag, snapshot) = (started.tag.clone(), started.snapshot);
                self.open(envelope, OperationKind::Checkpoint { tag, snapshot });
            }
            Event::CheckpointTaken(taken) => {
                self.close(envelope);
                self.checkpoints.add(Checkpoint {
                    tag: taken.tag.clone(),
                    created_at: envelope.at,
                    snapshot: taken.snapshot.clone(),
                });
                self.save();
            }
            Event::CheckpointDeleted(deleted) => {
                self.checkpoints.remove(&deleted.tag);
                self.save();
            }
            Event::RestoreStarted(started) => {
                let (tag, snapshot) = (started.tag.clone(), started.snapshot);
                self.open(envelope, OperationKind::Restore { tag, snapshot });
            }
            Event::Restored(restored) => {
                self.close(envelope);
                self.rewind.something_new();
                self.replace_sandbox(restored.sandbox_id);
            }
            Event::ForkStarted(ForkStarted { snapshot, .. }) => {
                let snapshot = *snapshot;
                self.open(envelope, OperationKind::Fork { snapshot });
            }
            Event::BranchStarted(ForkStarted { snapshot, .. }) => {
                let snapshot = *snapshot;
                self.open(envelope, OperationKind::Branch { snapshot });
            }
            Event::Forked(forked) | Event::Branched(forked) => {
                self.close(envelope);
                self.children.extend(&forked.children);
                self.save();
            }
            Event::BisectStarted(_) => self.open(envelope, OperationKind::Bisect),
            Event::PromoteStarted(started) => {
                self.rewind.something_new();
                let kind = OperationKind::Promote {
                    child: started.child,
                    checkpoint: started.checkpoint,
                    theirs: started.theirs,
                    baseline: started.baseline,
                    paths: started.paths.clone(),
                };
                self.open(envelope, kind);
            }
            Event::Promoted(_) => {
                self.close(envelope);
                self.save();
            }
            Event::EvaluateStarted(started) | Event::RolloutStarted(started) => {
                let kind = OperationKind::Evaluate {
                    children: started.children.clone(),
                    rollout: matches!(envelope.event, Event::RolloutStarted(_)),
                };
                self.open(envelope, kind);
            }
            Event::PromoteFailed(_)
            | Event::Evaluated(_)
            | Event::EvaluateFailed(_)
            | Event::RolledOut(_)
            | Event::RolloutFailed(_)
            | Event::Bisected(_)
            | Event::BisectFailed(_)
            | Event::CheckpointFailed(_)
            | Event::RestoreFailed(_)
            | Event::ForkFailed(_)
            | Event::BranchFailed(_)
            | Event::RewindUndoFailed(_)
            | Event::RewindRedoFailed(_)
            | Event::RewindCaptureFailed(_) => {
                self.close(envelope);
            }
            _ => self.apply_rewind(envelope),
        }
    }

    fn apply_rewind(&mut self, envelope: &Envelope) {
        match &envelope.event {
            Event::RewindConfigured(config) => self.rewind.configure(config),
            Event::RewindPointStarted(started) => self.start_point(envelope, started),
            Event::RewindPointTaken(taken) => self.take_point(envelope, taken),
            Event::RewindUndoStarted(started) => {
                self.rewind.begun += u64::from(started.keep.is_some());
                self.open(envelope, undo(started));
            }
            Event::RewindRedoStarted(started) => {
                let snapshot = started.snapshot;
                self.open(envelope, OperationKind::Redo { snapshot });
            }
            Event::RewindUndone(moved) | Event::RewindRedone(moved) => self.go_to(envelope, moved),
            Event::RewindPinned(pin) => self.rewind.pin(&pin.tag, pin.pinned),
            _ => {}
        }
    }

    fn start_point(&mut self, envelope: &Envelope, started: &RewindPointStarted) {
        self.rewind.begun += 1;
        self.rewind.something_new();
        // What a point is taken before is said once, so that erasing it erases it.
        let before = self
            .in_flight
            .iter()
            .find(|operation| Some(operation.seq) == started.before);
        let command = match before.map(|operation| &operation.kind) {
            Some(OperationKind::Exec { command, .. } | OperationKind::Job { command, .. }) => {
                Some(command.clone())
            }
            _ => started.label.clone(),
        };
        let kind = OperationKind::RewindPoint {
            tag: started.tag.clone(),
            snapshot: started.snapshot,
            trigger: started.trigger,
            before: started.before,
            command,
        };
        self.open(envelope, kind);
    }

    fn take_point(&mut self, envelope: &Envelope, taken: &RewindPointTaken) {
        let Some(operation) = self.close(envelope) else {
            return;
        };
        let command = match operation.kind {
            OperationKind::RewindPoint { command, .. } => command,
            _ => None,
        };
        let point = Point {
            tag: taken.tag.clone(),
            trigger: Some(taken.trigger),
            before: taken.before,
            command,
            created_at: envelope.at,
            snapshot: taken.snapshot.clone(),
            pinned: false,
        };
        self.rewind.add(point, &taken.evicted);
    }

    fn go_to(&mut self, envelope: &Envelope, moved: &RewindMoved) {
        self.close(envelope);
        let kept = moved.kept.as_ref().map(|kept| Point {
            tag: kept.tag.clone(),
            trigger: None,
            before: None,
            command: None,
            created_at: envelope.at,
            snapshot: kept.snapshot.clone(),
            pinned: false,
        });
        self.rewind.go_to(&moved.tag, kept);
        self.replace_sandbox(moved.sandbox_id);
    }

    /// Another sandbox is the session's from here on. A session whose own had ended runs again.
    fn replace_sandbox(&mut self, sandbox_id: SandboxId) {
        self.hostname = Some(self.machine_name());
        self.sandbox_id = sandbox_id;
        if self.status == SessionStatus::Gone {
            self.status = SessionStatus::Running;
            self.status_reason = None;
        }
        self.save();
    }

    /// The host name of its machine, which outlives a replaced sandbox.
    #[must_use]
    pub fn machine_name(&self) -> String {
        self.hostname
            .clone()
            .unwrap_or_else(|| self.sandbox_id.machine_name())
    }

    /// The snapshots that this session needs, those that it works with right now included.
    fn needed_snapshots(&self) -> impl Iterator<Item = SnapshotId> {
        let operations = self
            .in_flight
            .iter()
            .flat_map(|operation| operation.kind.snapshots())
            .flatten();
        // Nothing can be made of an ended session any more.
        let kept = (!self.ended()).then(|| {
            let checkpoints = self.checkpoints.iter().map(|it| it.snapshot.id);
            let points = self.rewind.timeline().map(|it| it.snapshot.id);
            let baseline = self.origin.iter().map(|origin| origin.snapshot.id);
            checkpoints.chain(points).chain(baseline)
        });
        operations.chain(kept.into_iter().flatten())
    }
}

impl Sessions {
    /// Every snapshot that a session still needs. Whatever else exists can be removed.
    #[must_use]
    pub fn needed_snapshots(&self) -> BTreeSet<SnapshotId> {
        self.iter().flat_map(Session::needed_snapshots).collect()
    }
}

impl SandboxId {
    /// The host name of a machine that has none of its own.
    #[must_use]
    pub fn machine_name(&self) -> String {
        format!("fluxvm-{:08x}", self.0.as_fields().0)
    }
}

fn undo(started: &RewindMoveStarted) -> OperationKind {
    OperationKind::Undo {
        snapshot: started.snapshot,
        keep: started.keep.as_ref().map(|keep| keep.snapshot),
    }
}
