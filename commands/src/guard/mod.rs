//! The one way to a command that runs: rules are held against it here, whether it is run at once, in the
//! background or as a test.
//!
//! What the rules say of a line does not change while the session lives, so that it is found out once.
//! Everything else is decided on the session's state, and recorded together with what it lets through.

use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Event;
use fluxvm_projections::ExecRefused;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::book::Decided;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::policy;
use crate::policy::Judgement;
use crate::policy::Verdict;

/// What is about to run.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// How it runs.
    pub(crate) kind: CommandKind,
    /// The shell line.
    pub(crate) command: String,
}

/// How a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// Its caller waits for its end.
    Exec,
    /// It outlives its request.
    Job,
}

/// What was let through.
pub(crate) struct Admitted {
    /// The session as it was decided on.
    pub(crate) session: Session,
    /// The recorded intent.
    pub(crate) intent: Arc<RecordedEvent>,
}

/// Lets a command through, and records its intent, or records and answers why not.
///
/// `intent` decides what else has to hold, and makes the intent.
///
/// # Errors
///
/// What `intent` says, `Refused` for what the rules do not let through, `Ledger`.
pub(crate) async fn admit(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    asked: &Asked,
    intent: impl Fn(&Session) -> Result<Entry, CommandError>,
) -> Result<Admitted, CommandError> {
    let judgement = judge(inner, caller, id, &asked.command).await?;
    let (session, mut recorded) = inner
        .book
        .decide_all(caller, id, |session| {
            decide(session, asked, &judgement, inner.clock.now(), &intent)
        })
        .await?;
    let intent = recorded
        .pop()
        .ok_or_else(|| CommandError::Internal("no intent was recorded".to_owned()))?;
    Ok(Admitted { session, intent })
}

/// What the session's rules say of a line. A long line takes some time, which no other request waits for.
async fn judge(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    line: &str,
) -> Result<Judgement, CommandError> {
    let rules = inner.book.session(caller, id)?.policy.process;
    if rules.is_none() {
        return Ok(policy::judge(None, line));
    }
    let line = line.to_owned();
    tokio::task::spawn_blocking(move || policy::judge(rules.as_ref(), &line))
        .await
        .map_err(|error| CommandError::Internal(error.to_string()))
}

/// Pure. The intent is the last of the entries.
fn decide(
    session: &Session,
    asked: &Asked,
    judgement: &Judgement,
    _now: DateTime<Utc>,
    intent: &impl Fn(&Session) -> Result<Entry, CommandError>,
) -> Result<Decided, CommandError> {
    let intent = intent(session)?;
    match &judgement.verdict {
        Verdict::Run => Ok(Decided::done(vec![intent])),
        Verdict::Ask { matched, .. } => {
            let reason = match matched.as_str() {
                policy::UNJUDGED => format!(
                    "it cannot be judged before it runs: {}",
                    judgement.unjudged.join("; ")
                ),
                pattern => format!("`{pattern}` needs an approval"),
            };
            Ok(refuse(asked, Some(matched.clone()), reason))
        }
        Verdict::Refuse { matched, reason } => Ok(refuse(asked, matched.clone(), reason.clone())),
    }
}

fn refuse(asked: &Asked, matched: Option<String>, reason: String) -> Decided {
    let error = CommandError::Refused {
        code: "policy_refused",
        reason: reason.clone(),
    };
    let refused = ExecRefused {
        command: asked.command.clone(),
        code: error.code().to_owned(),
        reason,
        matched,
    };
    let event = match asked.kind {
        CommandKind::Exec => Event::ExecRefused(refused),
        CommandKind::Job => Event::JobRefused(refused),
    };
    Decided {
        entries: vec![Entry::new(event)],
        refused: Some(error),
    }
}
