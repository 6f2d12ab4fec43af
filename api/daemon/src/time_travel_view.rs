//! Checkpoints, forks and rings, out of the projection and out of outcomes.

use fluxvm_api_types::CheckpointAnswer;
use fluxvm_api_types::CheckpointView;
use fluxvm_api_types::ForkAnswer;
use fluxvm_api_types::OriginView;
use fluxvm_api_types::PointView;
use fluxvm_api_types::RestoreAnswer;
use fluxvm_api_types::RevivalView;
use fluxvm_api_types::RewindConfigView;
use fluxvm_api_types::RewindMoveAnswer;
use fluxvm_api_types::RewindView;
use fluxvm_api_types::SnapshotView;
use fluxvm_api_types::TriggerName;
use fluxvm_projections::Checkpoint;
use fluxvm_projections::MemoryRecord;
use fluxvm_projections::Origin;
use fluxvm_projections::Point;
use fluxvm_projections::RevivalRecord;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;
use fluxvm_projections::Trigger;

use crate::session_view;

/// Grants and HTTP rules are bound to nothing in this version, so that nothing can lose its address.
const GRANTS_REBOUND: u64 = 0;
const HTTP_POLICY_BOUND: bool = true;

/// A checkpoint of a session.
pub(crate) fn checkpoint(checkpoint: &Checkpoint) -> CheckpointView {
    CheckpointView {
        tag: checkpoint.tag.clone(),
        memory: has_memory(&checkpoint.snapshot),
        created_at: checkpoint.created_at,
        snapshot: snapshot(&checkpoint.snapshot),
    }
}

/// The answer to one that was taken.
pub(crate) fn checkpointed(answer: &fluxvm_commands::CheckpointAnswer) -> CheckpointAnswer {
    let outcome = &answer.outcome;
    CheckpointAnswer {
        seq: answer.seq,
        checkpoint: CheckpointView {
            tag: outcome.tag.clone(),
            memory: has_memory(&outcome.snapshot),
            created_at: answer.created_at,
            snapshot: snapshot(&outcome.snapshot),
        },
        revision: answer.revision,
        elapsed_ms: outcome.duration_ms,
    }
}

/// The answer to one that was gone back to.
pub(crate) fn restored(answer: &fluxvm_commands::RestoreAnswer) -> RestoreAnswer {
    let outcome = &answer.outcome;
    RestoreAnswer {
        seq: answer.seq,
        tag: outcome.tag.clone(),
        revision: answer.revision,
        sandbox_id: outcome.sandbox_id.0,
        disk: outcome.disk.clone(),
        revival: revival(&outcome.revival),
        grants_rebound: GRANTS_REBOUND,
        http_policy_bound: HTTP_POLICY_BOUND,
        elapsed_ms: outcome.duration_ms,
    }
}

/// The answer with the children that were made.
pub(crate) fn forked(answer: &fluxvm_commands::ForkAnswer) -> ForkAnswer {
    ForkAnswer {
        seq: answer.seq,
        items: answer.children.iter().map(session_view::view).collect(),
        snapshot: snapshot(&answer.outcome.snapshot),
        revision: answer.revision,
        elapsed_ms: answer.outcome.duration_ms,
    }
}

/// Where a fork comes from.
pub(crate) fn origin(origin: &Origin) -> OriginView {
    OriginView {
        tag: origin.tag.clone(),
        snapshot: snapshot(&origin.snapshot),
        revival: revival(&origin.revival),
        identity_renewed: origin.revival.identity_renewed,
        identity_note: origin.revival.identity_note.clone(),
    }
}

/// A session's ring.
pub(crate) fn rewind(session: &Session) -> RewindView {
    let rewind = &session.rewind;
    RewindView {
        config: RewindConfigView {
            enabled: rewind.config.enabled,
            max_points: rewind.config.max_points,
            memory: rewind.config.memory,
            triggers: rewind.config.triggers.iter().copied().map(name).collect(),
        },
        points: rewind.points().iter().map(point).collect(),
        undone: rewind.undone().iter().map(point).collect(),
    }
}

/// The answer to an undo or a redo.
pub(crate) fn moved(answer: &fluxvm_commands::RewindAnswer) -> RewindMoveAnswer {
    let (outcome, session) = (&answer.outcome, &answer.session);
    RewindMoveAnswer {
        seq: answer.seq,
        tag: outcome.tag.clone(),
        steps: outcome.steps,
        revision: session.revision,
        sandbox_id: outcome.sandbox_id.0,
        disk: outcome.disk.clone(),
        revival: revival(&outcome.revival),
        kept: outcome.kept.as_ref().map(|kept| kept.tag.clone()),
        not_kept: outcome.not_kept.clone(),
        undo_steps: session.rewind.points().len(),
        redo_steps: session.rewind.undone().len().saturating_sub(1),
        grants_rebound: GRANTS_REBOUND,
        http_policy_bound: HTTP_POLICY_BOUND,
        elapsed_ms: outcome.duration_ms,
    }
}

/// A trigger as a caller names it.
pub(crate) fn trigger(name: TriggerName) -> Trigger {
    match name {
        TriggerName::Exec => Trigger::Exec,
        TriggerName::Job => Trigger::Job,
        TriggerName::File => Trigger::File,
        TriggerName::Git => Trigger::Git,
    }
}

fn name(trigger: Trigger) -> TriggerName {
    match trigger {
        Trigger::Exec => TriggerName::Exec,
        Trigger::Job => TriggerName::Job,
        Trigger::File => TriggerName::File,
        Trigger::Git => TriggerName::Git,
    }
}

fn point(point: &Point) -> PointView {
    PointView {
        tag: point.tag.clone(),
        command: point.command.clone(),
        trigger: point.trigger.map(name),
        before: point.before,
        created_at: point.created_at,
        memory: has_memory(&point.snapshot),
        pinned: point.pinned,
        screenshot: false,
        snapshot: snapshot(&point.snapshot),
    }
}

fn revival(revival: &RevivalRecord) -> RevivalView {
    RevivalView {
        memory: revival.memory,
        unconfined: revival.unconfined.clone(),
    }
}

fn has_memory(snapshot: &SnapshotRecord) -> bool {
    matches!(snapshot.memory, MemoryRecord::Kept { .. })
}

fn snapshot(record: &SnapshotRecord) -> SnapshotView {
    let (processes, memory_digest, reason) = match &record.memory {
        MemoryRecord::Kept { digest, .. } => ("kept", Some(digest.clone()), None),
        MemoryRecord::NothingAlive => ("nothing_alive", None, None),
        MemoryRecord::NotAsked => ("not_asked", None, None),
        MemoryRecord::Impossible { reason } => ("impossible", None, Some(reason.clone())),
    };
    SnapshotView {
        id: record.id.0,
        disk: record.disk.clone(),
        processes,
        memory_digest,
        reason,
        stored_bytes: record.stored_bytes,
        pause_ms: std::time::Duration::from_micros(record.pause_us).as_secs_f64() * 1_000.0,
    }
}
