//! What of a session can be run again. Pure.

use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::ExecCompleted;

use crate::answer::ReplayStep;
use crate::answer::SkippedStep;
use crate::error::CommandError;
use crate::limits::REPLAY_STEPS_MAX;

/// The commands to run, and what cannot be run.
pub(super) struct Plan {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) skipped: Vec<SkippedStep>,
}

/// One command to run again.
pub(super) struct PlannedStep {
    seq: u64,
    pub(super) outcome: ExecCompleted,
}

impl PlannedStep {
    /// The step before its turn.
    pub(super) fn unstarted(&self) -> ReplayStep {
        ReplayStep {
            seq: self.seq,
            command: self.outcome.command.clone(),
            recorded_exit_code: self.outcome.exit_code,
            result: None,
            error: None,
        }
    }
}

/// Plans a replay of these events: those after `since` and not after `until`, in the order in which the
/// commands were started.
pub(super) fn plan(
    events: &[Arc<RecordedEvent>],
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) -> Result<Plan, CommandError> {
    let mut steps = Vec::new();
    let mut skipped = Vec::new();
    for recorded in events {
        let envelope = Envelope::decode(recorded)
            .map_err(|error| CommandError::Internal(error.to_string()))?;
        let wanted = since.is_none_or(|since| envelope.at > since)
            && until.is_none_or(|until| envelope.at <= until);
        if !wanted {
            continue;
        }
        match skip_reason(&envelope) {
            Some(reason) => skipped.push(SkippedStep {
                seq: envelope.seq.get(),
                kind: envelope.kind,
                reason: reason.to_owned(),
            }),
            None => {
                if let Event::ExecCompleted(outcome) = envelope.event {
                    steps.push(PlannedStep {
                        seq: envelope.seq.get(),
                        outcome,
                    });
                }
            }
        }
    }
    if steps.len() > REPLAY_STEPS_MAX {
        let message = format!(
            "{} commands were recorded; one replay runs at most {REPLAY_STEPS_MAX}: narrow it with \
             since and until",
            steps.len()
        );
        return Err(CommandError::Invalid {
            field: "until",
            message,
        });
    }
    steps.sort_by_key(|step| step.outcome.op);
    Ok(Plan { steps, skipped })
}

/// Why an event that did something is not redone.
fn skip_reason(envelope: &Envelope) -> Option<&'static str> {
    match &envelope.event {
        Event::ExecFailed(_) => Some("its outcome was not known when it was recorded"),
        Event::ExecRefused(_) => Some("it was refused and did not run"),
        Event::ExecCompleted(it) if it.stdin_bytes.unwrap_or_default() > 0 || it.stdin_cut => {
            Some("it read standard input, which is not recorded")
        }
        Event::JobExited(_) | Event::JobFailed(_) => {
            Some("it was a job; a replay runs one command after the other")
        }
        Event::JobRefused(_) => Some("it was refused and did not run"),
        Event::JobStdinWritten(_) => Some("what a job reads is not recorded"),
        Event::JobKilled(_) => Some("it was a signal to a job"),
        Event::Redacted if envelope.kind == "exec" => Some("its payload was erased"),
        _ => None,
    }
}
