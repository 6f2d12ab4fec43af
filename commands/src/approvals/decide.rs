//! Whether a person may decide on a command. Pure.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Approval;
use fluxvm_projections::ApprovalDecided;
use fluxvm_projections::ApprovalStatus;
use fluxvm_projections::Event;
use fluxvm_projections::Session;

use super::Answer;
use crate::book::Entry;
use crate::error::CommandError;
use crate::limits::APPROVAL_NOTE_CHARS_MAX;

/// The note as it is recorded.
pub(super) fn check_note(note: Option<String>) -> Result<Option<String>, CommandError> {
    let odd = |note: &String| {
        note.chars().count() > APPROVAL_NOTE_CHARS_MAX
            || note.chars().any(|it| it.is_control() && it != '\n')
    };
    if note.as_ref().is_some_and(odd) {
        let message = format!("must be at most {APPROVAL_NOTE_CHARS_MAX} characters of text");
        return Err(CommandError::Invalid {
            field: "note",
            message,
        });
    }
    Ok(note.filter(|note| !note.trim().is_empty()))
}

/// One person, one voice, while there is something to decide.
pub(super) fn decide(
    session: &Session,
    approval: &Approval,
    answer: Answer,
    by: &str,
    note: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    let refused = |why: String| {
        Err(CommandError::ApprovalDecided {
            approval: approval.request.approval_id,
            why,
        })
    };
    if session.ended() {
        return refused("its session has ended".to_owned());
    }
    let status = approval.status(now);
    if status != ApprovalStatus::Pending {
        return refused(format!(
            "it is {} and no longer to be decided",
            status.name()
        ));
    }
    if answer == Answer::Approve && approval.approved.iter().any(|decision| decision.by == by) {
        return refused(format!(
            "{by} has approved it already; somebody else has to agree too"
        ));
    }
    let decided = ApprovalDecided {
        approval_id: approval.request.approval_id,
        by: by.to_owned(),
        note: note.map(str::to_owned),
    };
    Ok(Entry::new(match answer {
        Answer::Approve => Event::ApprovalApproved(decided),
        Answer::Deny => Event::ApprovalDenied(decided),
    }))
}
