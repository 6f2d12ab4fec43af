//! The one way to a command that runs: rules, budget and approvals are held against it here, whether it
//! is run at once, in the background or as a test.
//!
//! What the rules say of a line does not change while the session lives, so that it is found out once.
//! Everything else is decided on the session's state under the expected version of its stream, and
//! recorded together with what it lets through: two requests cannot both have the last unit of a budget,
//! nor both use one approval, whatever happens to the daemon in between.

pub(crate) mod budget;
mod hold;

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::Approval;
use fluxvm_projections::ApprovalId;
use fluxvm_projections::Event;
use fluxvm_projections::ExecRefused;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

pub(crate) use budget::Grant;

use crate::approvals;
use crate::book::Decided;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::APPROVAL_WAIT_SECONDS_MAX;
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
    /// The time that it asks for, in milliseconds; `None` for a job without an end.
    pub(crate) timeout_ms: Option<u64>,
    /// Whatever else of the request an approval is bound to.
    pub(crate) parameters: Vec<(&'static str, String)>,
    /// The approval that it comes with, as the caller named it.
    pub(crate) approval: Option<String>,
}

/// How a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// Its caller waits for its end.
    Exec,
    /// It outlives its request.
    Job,
}

impl CommandKind {
    fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Job => "job",
        }
    }
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
/// `intent` decides what else has to hold, and makes the intent with what the budget grants. What people
/// have to decide on waits for them for `wait_seconds`, and holds nothing of the session meanwhile.
///
/// # Errors
///
/// What `intent` says; `Refused` for what rules, budget or an approval do not let through;
/// `ApprovalRequired` for what people have to decide on; `Ledger`.
pub(crate) async fn admit(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    mut asked: Asked,
    wait_seconds: Option<u64>,
    intent: impl Fn(&Session, Grant) -> Result<Entry, CommandError>,
) -> Result<Admitted, CommandError> {
    let seconds = wait_seconds.unwrap_or(0);
    if seconds > APPROVAL_WAIT_SECONDS_MAX {
        return Err(CommandError::Invalid {
            field: "approval_wait_seconds",
            message: format!("must be at most {APPROVAL_WAIT_SECONDS_MAX}"),
        });
    }
    let held = match admit_now(inner, caller, id, &asked, &intent).await {
        Err(CommandError::ApprovalRequired(held)) if seconds > 0 => held,
        admitted => return admitted,
    };
    let approval = held.request.approval_id;
    let wait = Duration::from_secs(seconds);
    if approvals::decided(inner, id, approval, wait)
        .await
        .is_none()
    {
        return Err(CommandError::ApprovalRequired(held));
    }
    asked.approval = Some(approval.to_string());
    admit_now(inner, caller, id, &asked, &intent).await
}

/// The same without waiting. Decisions on one session take turns, so that a burst of commands does not
/// race for its stream.
async fn admit_now(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    asked: &Asked,
    intent: &impl Fn(&Session, Grant) -> Result<Entry, CommandError>,
) -> Result<Admitted, CommandError> {
    let judgement = judge(inner, caller, id, &asked.command).await?;
    let fresh = ApprovalId(uuid::Uuid::new_v4());
    // Relatives share one budget and not one stream: their decisions take turns too.
    let shared = {
        let world = inner.book.world();
        let session = world.sessions.get(id).filter(|it| it.budget.is_some());
        session.and_then(|it| budget::root(&world.sessions, it))
    };
    let _own_turn = inner.turns.take(id).await;
    let _shared_turn = match shared {
        Some(root) => Some(inner.turns.take(root).await),
        None => None,
    };
    let (session, mut recorded) = inner
        .book
        .decide_all(caller, id, |session| {
            let (approvals, family) = {
                let world = inner.book.world();
                let approvals = world.approvals.of_session(id).to_vec();
                (approvals, budget::family(&world.sessions, session))
            };
            let state = State {
                session,
                family: family.as_ref(),
                approvals: &approvals,
                now: inner.clock.now(),
            };
            decide(&state, asked, &judgement, fresh, intent)
        })
        .await?;
    let intent = recorded
        .pop()
        .ok_or_else(|| CommandError::Internal("no intent was recorded".to_owned()))?;
    Ok(Admitted { session, intent })
}

/// Whether a line may run that belongs to an operation whose own event has it.
///
/// # Errors
///
/// `Refused` for what the rules do not let through by themselves.
pub(crate) async fn permits(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    line: &str,
) -> Result<(), CommandError> {
    let judgement = judge(inner, caller, id, line).await?;
    let reason = match judgement.verdict {
        Verdict::Run => return Ok(()),
        Verdict::Ask { matched, .. } => format!("`{matched}` needs an approval"),
        Verdict::Refuse { reason, .. } => reason,
    };
    Err(CommandError::Refused {
        code: "policy_refused",
        reason,
    })
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

/// What a decision is made on.
struct State<'a> {
    session: &'a Session,
    family: Option<&'a Session>,
    approvals: &'a [Approval],
    now: DateTime<Utc>,
}

/// Pure. The intent is the last of the entries.
fn decide(
    state: &State<'_>,
    asked: &Asked,
    judgement: &Judgement,
    fresh: ApprovalId,
    intent: &impl Fn(&Session, Grant) -> Result<Entry, CommandError>,
) -> Result<Decided, CommandError> {
    // What the session is in no state for is not worth a rule.
    let whole = Grant {
        timeout_ms: asked.timeout_ms,
    };
    intent(state.session, whole)?;
    if let Verdict::Refuse { matched, reason } = &judgement.verdict {
        return Ok(refuse(
            asked,
            "policy_refused",
            matched.clone(),
            reason.clone(),
        ));
    }
    let own = budget::grant(state.session, asked.kind, asked.timeout_ms, state.now);
    let granted = own.and_then(|own| match state.family {
        Some(family) => budget::grant(family, asked.kind, own.timeout_ms, state.now),
        None => Ok(own),
    });
    let grant = match granted {
        Ok(grant) => grant,
        Err(exceeded) => return Ok(refuse(asked, "budget_exceeded", None, exceeded.sentence())),
    };
    let mut entries = Vec::new();
    if let Verdict::Ask { matched, approvers } = &judgement.verdict {
        let wanted = hold::Wanted {
            matched,
            approvers: *approvers,
            judgement,
            fresh,
        };
        match hold::hold(state, asked, &wanted) {
            hold::Hold::Open(consumed) => entries.push(*consumed),
            hold::Hold::Closed(decided) => return Ok(decided),
        }
    }
    entries.push(intent(state.session, grant)?);
    Ok(Decided::done(entries))
}

fn refuse(asked: &Asked, code: &'static str, matched: Option<String>, reason: String) -> Decided {
    let refused = ExecRefused {
        command: asked.command.clone(),
        code: code.to_owned(),
        reason: reason.clone(),
        matched,
    };
    let event = match asked.kind {
        CommandKind::Exec => Event::ExecRefused(refused),
        CommandKind::Job => Event::JobRefused(refused),
    };
    Decided {
        entries: vec![Entry::new(event)],
        refused: Some(CommandError::Refused { code, reason }),
    }
}
