//! What of a session can be done again. Pure.

use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;

use super::redo::Meaning;
use super::redo::Redo;
use crate::answer::ReplayStep;
use crate::answer::SkippedStep;
use crate::error::CommandError;
use crate::limits::REPLAY_STEPS_MAX;

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
    fn holds(&self, envelope: &Envelope) -> bool {
        let seq = envelope.seq.get();
        self.since.is_none_or(|since| envelope.at > since)
            && self.until.is_none_or(|until| envelope.at <= until)
            && self.from.is_none_or(|from| seq >= from)
            && self.to.is_none_or(|to| seq <= to)
    }
}

/// Plans a replay of these events, in the order in which the steps were begun.
pub(super) fn plan(events: &[Arc<RecordedEvent>], span: Span) -> Result<Plan, CommandError> {
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for recorded in events {
        let envelope = Envelope::decode(recorded)
            .map_err(|error| CommandError::Internal(error.to_string()))?;
        if !span.holds(&envelope) {
            continue;
        }
        let seq = envelope.seq.get();
        match Redo::meaning(&envelope.kind, envelope.event) {
            Meaning::Step(redo) => steps.push(PlannedStep { seq, redo }),
            Meaning::Skipped(reason) => skipped.push(SkippedStep {
                seq,
                kind: envelope.kind,
                reason: reason.to_owned(),
            }),
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
