//! What of a session can be done again. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;

use super::redo::Meaning;
use super::redo::Redo;
use crate::answer::ReplayStep;
use crate::answer::SkippedStep;
use crate::book::read;
use crate::error::CommandError;
use crate::limits::REPLAY_STEPS_MAX;
use crate::lineage::Lineage;
use crate::lineage::between;

/// The steps to redo, and what cannot be redone.
pub(super) struct Plan {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) skipped: Vec<SkippedStep>,
}

/// One step to redo.
pub(super) struct PlannedStep {
    seq: u64,
    pub(super) redo: Redo,
}

impl PlannedStep {
    /// The step before its turn.
    pub(super) fn unstarted(&self) -> ReplayStep {
        ReplayStep {
            seq: self.seq,
            kind: self.redo.kind(),
            command: self.redo.words(),
            recorded_exit_code: self.redo.exit_code(),
            recorded: self.redo.recorded(),
            result: None,
            error: None,
        }
    }
}

/// Which part of a session's history.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// What was recorded after this time.
    pub(super) since: Option<DateTime<Utc>>,
    /// What was recorded until this time.
    pub(super) until: Option<DateTime<Utc>>,
    /// What was recorded from this event on.
    pub(super) from: Option<u64>,
    /// What was recorded up to this event, itself included.
    pub(super) to: Option<u64>,
}

impl Span {
    /// It is no later than the end.
    fn reaches(&self, envelope: &Envelope) -> bool {
        let seq = envelope.seq.get();
        self.until.is_none_or(|until| envelope.at <= until) && self.to.is_none_or(|to| seq <= to)
    }

    fn holds(&self, envelope: &Envelope) -> bool {
        let seq = envelope.seq.get();
        self.reaches(envelope)
            && self.since.is_none_or(|since| envelope.at > since)
            && self.from.is_none_or(|from| seq >= from)
    }
}

/// Where a replay starts; nowhere in particular is the beginning.
#[derive(Default)]
struct Start {
    /// The event that says that the state was kept.
    seq: u64,
    /// What led to it.
    led: BTreeSet<u64>,
}

impl Start {
    fn of(tag: &str, events: &[Envelope], lineage: &Lineage) -> Result<Self, CommandError> {
        let kept = |envelope: &&Envelope| match &envelope.event {
            Event::CheckpointTaken(taken) => taken.tag == tag,
            Event::RewindPointTaken(taken) => taken.tag == tag,
            _ => false,
        };
        let (Some(taken), Some(led)) = (events.iter().rev().find(kept), lineage.at(tag)) else {
            return Err(CommandError::TagNotFound {
                what: "checkpoint or rewind point",
                tag: tag.to_owned(),
                hint: "",
            });
        };
        if between(led, lineage.now()).is_none() {
            return Err(CommandError::Invalid {
                field: "checkpoint",
                message: format!("{tag} is not on the way to the session's state"),
            });
        }
        Ok(Self {
            seq: taken.seq.get(),
            led: led.iter().map(|step| step.seq).collect(),
        })
    }
}

/// Plans a replay of these events, in the order in which the steps were begun. What was gone back past is
/// no part of what the session came to, and is left out.
pub(super) fn plan(
    events: &[Arc<RecordedEvent>],
    span: Span,
    checkpoint: Option<&str>,
) -> Result<Plan, CommandError> {
    let read: Result<Vec<Envelope>, _> = events.iter().map(|event| read(event)).collect();
    let read = read?;
    let lineage = Lineage::of(read.iter().filter(|event| span.reaches(event)));
    let start = checkpoint.map(|tag| Start::of(tag, &read, &lineage));
    let start = start.transpose()?.unwrap_or_default();
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for envelope in read.into_iter().filter(|event| span.holds(event)) {
        let seq = envelope.seq.get();
        if seq <= start.seq {
            continue;
        }
        let mut skip = |reason: String| {
            skipped.push(SkippedStep {
                seq,
                kind: envelope.kind.clone(),
                reason,
            });
        };
        match Redo::meaning(seq, &envelope.kind, envelope.event) {
            Meaning::Step(redo) if start.led.contains(&redo.op()) => {
                skip("it began before the checkpoint was taken".to_owned());
            }
            Meaning::Step(redo) => match lineage.undone_by(redo.op()) {
                Some(by) => skip(format!("it was undone: event {by} went back past it")),
                None => steps.push(PlannedStep { seq, redo }),
            },
            Meaning::Skipped(reason) => skip(reason.to_owned()),
            Meaning::Nothing => {}
        }
    }
    if steps.len() > REPLAY_STEPS_MAX {
        let message = format!(
            "{} steps were recorded; one replay redoes at most {REPLAY_STEPS_MAX}: narrow it with \
             since and until",
            steps.len()
        );
        return Err(CommandError::Invalid {
            field: "until",
            message,
        });
    }
    steps.sort_by_key(|step| step.redo.op());
    Ok(Plan { steps, skipped })
}
