//! The rules of the ring. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Event;
use fluxvm_projections::KeepPlan;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::Point;
use fluxvm_projections::RewindConfigured;
use fluxvm_projections::RewindMoveStarted;
use fluxvm_projections::RewindPinned;
use fluxvm_projections::RewindPointStarted;
use fluxvm_projections::RewindSkipped;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionStatus;
use fluxvm_projections::SnapshotId;

use super::Before;
use crate::book::Entry;
use crate::checkpoint;
use crate::error::CommandError;
use crate::gate;
use crate::limits::REWIND_LABEL_BYTES_MAX;
use crate::limits::REWIND_POINTS_MAX;
use crate::request::ConfigureRewind;
use crate::request::RewindTo;
use crate::restore;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Undo,
    Redo,
}

/// Checks what can be checked without a session.
pub(super) fn check_config(request: &ConfigureRewind) -> Result<(), CommandError> {
    let points = 1..=REWIND_POINTS_MAX;
    if request.max_points.is_some_and(|max| !points.contains(&max)) {
        let message = format!("must be 1 to {REWIND_POINTS_MAX}");
        return Err(CommandError::Invalid {
            field: "max_points",
            message,
        });
    }
    if request.triggers.as_ref().is_some_and(Vec::is_empty) {
        return Err(CommandError::Invalid {
            field: "triggers",
            message: "must name at least one; to take no points say `enabled: false`".to_owned(),
        });
    }
    Ok(())
}

/// Decides what holds from here on. A smaller ring lets go of its oldest points at once.
pub(super) fn configure(
    session: &Session,
    request: &ConfigureRewind,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    // An undo that is under way works with the points that there are.
    gate::no_lifecycle(session)?;
    let before = &session.rewind.config;
    let enabled = request.enabled.unwrap_or(before.enabled);
    if enabled && !(session.capabilities.snapshot && session.capabilities.restore) {
        return Err(CommandError::NotSupported {
            what: "take points that can be gone back to",
            reason: "it has no snapshots".to_owned(),
        });
    }
    let max_points = request.max_points.unwrap_or(before.max_points);
    one_slot_is_free(session.rewind.pinned(), max_points)?;
    let triggers = request.triggers.as_ref().unwrap_or(&before.triggers);
    let mut triggers = triggers.clone();
    triggers.sort_unstable();
    triggers.dedup();
    Ok(Entry::new(Event::RewindConfigured(RewindConfigured {
        enabled,
        max_points,
        memory: request.memory.unwrap_or(before.memory),
        triggers,
        evicted: session.rewind.evictions(max_points, 0),
    })))
}

/// Decides to take a point, or that none is tried; `None` when none is wanted.
pub(super) fn point(session: &Session, before: &Before, snapshot: SnapshotId) -> Option<Entry> {
    if !is_wanted(session, before) {
        return None;
    }
    if let Some(operation) = session.lifecycle() {
        let reason = format!("{} is in flight", operation.kind.name());
        return Some(Entry::new(Event::RewindSkipped(RewindSkipped {
            trigger: before.trigger,
            before: before.op,
            reason,
        })));
    }
    Some(Entry::new(Event::RewindPointStarted(RewindPointStarted {
        tag: next_tag(session),
        snapshot,
        memory: memory(session),
        trigger: before.trigger,
        before: before.op,
        label: before.label.as_deref().map(shortened),
    })))
}

/// Whether the session takes a point before this.
pub(super) fn is_wanted(session: &Session, before: &Before) -> bool {
    let config = &session.rewind.config;
    session.status == SessionStatus::Running
        && config.enabled
        && config.triggers.contains(&before.trigger)
}

/// Decides to go to another point.
pub(super) fn go(
    session: &Session,
    direction: Direction,
    to: &RewindTo,
    sandbox_id: SandboxId,
    keep: SnapshotId,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    restore::replaceable(session, now)?;
    let target = target(session, direction, to)?;
    // There is nothing to keep where the state is a point already, or no sandbox is left.
    let is_new = session.rewind.undone().is_empty() && session.status == SessionStatus::Running;
    let keep = (direction == Direction::Undo && is_new).then(|| KeepPlan {
        tag: next_tag(session),
        snapshot: keep,
        memory: memory(session),
    });
    let started = RewindMoveStarted {
        tag: target.tag.clone(),
        snapshot: target.snapshot.id,
        sandbox_id,
        keep,
    };
    Ok(Entry::new(match direction {
        Direction::Undo => Event::RewindUndoStarted(started),
        Direction::Redo => Event::RewindRedoStarted(started),
    }))
}

/// The point that is meant.
fn target<'a>(
    session: &'a Session,
    direction: Direction,
    to: &RewindTo,
) -> Result<&'a Point, CommandError> {
    let rewind = &session.rewind;
    // The nearest one first. The first of what is undone is where the session is.
    let there: Vec<&Point> = match direction {
        Direction::Undo => rewind.points().iter().rev().collect(),
        Direction::Redo => rewind.undone().iter().skip(1).collect(),
    };
    let (what, hint) = match direction {
        Direction::Undo => ("undo", "; `rewind` lists the points"),
        Direction::Redo => ("redo", "; `rewind` lists what is undone"),
    };
    match to {
        RewindTo::Steps(wanted) => {
            let index = usize::try_from(*wanted).ok().and_then(|n| n.checked_sub(1));
            let found = index.and_then(|index| there.get(index));
            found.copied().ok_or(CommandError::NoSuchStep {
                what,
                wanted: *wanted,
                there: there.len(),
            })
        }
        RewindTo::Tag(tag) => {
            let found = there.iter().find(|point| point.tag == *tag);
            found.copied().ok_or_else(|| CommandError::TagNotFound {
                what: "point to go to",
                tag: tag.clone(),
                hint,
            })
        }
    }
}

/// How many steps away a point is, for the record.
pub(super) fn steps(session: &Session, direction: Direction, tag: &str) -> u64 {
    let rewind = &session.rewind;
    let place = match direction {
        Direction::Undo => rewind.points().iter().rev().position(|it| it.tag == tag),
        Direction::Redo => rewind.undone().iter().skip(1).position(|it| it.tag == tag),
    };
    place.map_or(0, |index| index as u64 + 1)
}

/// Decides to keep a point, or to no longer.
pub(super) fn pin(
    session: &Session,
    tag: &str,
    pinned: bool,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    let rewind = &session.rewind;
    let point = rewind.get(tag).ok_or_else(|| CommandError::TagNotFound {
        what: "rewind point",
        tag: tag.to_owned(),
        hint: "; `rewind` lists the points",
    })?;
    if pinned && !point.pinned {
        one_slot_is_free(rewind.pinned() + 1, rewind.config.max_points)?;
    }
    let tag = tag.to_owned();
    Ok(Entry::new(Event::RewindPinned(RewindPinned {
        tag,
        pinned,
    })))
}

/// Checks a target that a caller named.
pub(super) fn check_target(to: &RewindTo) -> Result<(), CommandError> {
    match to {
        RewindTo::Steps(0) => Err(CommandError::Invalid {
            field: "steps",
            message: "must be 1 or more".to_owned(),
        }),
        RewindTo::Steps(_) => Ok(()),
        RewindTo::Tag(tag) => checkpoint::check_tag(tag).map_err(|_| CommandError::Invalid {
            field: "to",
            message: "is no tag: `rewind` lists the points".to_owned(),
        }),
    }
}

fn one_slot_is_free(pinned: usize, max_points: u32) -> Result<(), CommandError> {
    match u32::try_from(pinned) {
        Ok(count) if count < max_points => Ok(()),
        _ => Err(CommandError::RingFull { pinned, max_points }),
    }
}

fn memory(session: &Session) -> MemoryMode {
    match session.rewind.config.memory {
        true => MemoryMode::BestEffort,
        false => MemoryMode::Never,
    }
}

fn next_tag(session: &Session) -> String {
    format!("rw-{}", session.rewind.begun + 1)
}

fn shortened(label: &str) -> String {
    let fits =
        |(start, character): &(usize, char)| start + character.len_utf8() <= REWIND_LABEL_BYTES_MAX;
    let characters = label.char_indices().take_while(fits);
    characters.map(|(_, character)| character).collect()
}
