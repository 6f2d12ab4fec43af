//! Do again in one session what was recorded of another one: commands, files, uploads, removals, git.
//!
//! Every step goes through the target's own command, so that a replay can do no more than the target may.
//! Each says what came of it beside what was recorded; the first that differs is named.

mod plan;
mod redo;
mod upload;

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::ReplayCompleted;
use fluxvm_projections::ReplayStarted;
use fluxvm_projections::SessionId;

use crate::answer::ReplayAnswer;
use crate::answer::ReplayError;
use crate::answer::ReplayExec;
use crate::answer::ReplayStep;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::fork;
use crate::gate;
use crate::queries;
use crate::request::EventsQuery;
use crate::request::Fork;
use crate::request::ForkFrom;
use crate::request::Replay;
use plan::Plan;
use plan::PlannedStep;
use plan::Span;

/// Why a replay stopped before its end.
const STOPPED_EXIT_CODE: &str = "a command ended with an exit code other than 0";

/// Replays a session.
pub(crate) async fn replay(
    inner: &Arc<Inner>,
    caller: &Caller,
    source: SessionId,
    request: Replay,
) -> Result<ReplayAnswer, CommandError> {
    inner.book.session(caller, source)?;
    let events = queries::events(inner, caller, source, EventsQuery::default())?;
    let events = events.all().await?;
    let plan = plan::plan(&events, span(&request), request.checkpoint.as_deref())?;
    let mut answer = ReplayAnswer {
        source,
        target: request.target,
        dry_run: request.dry_run,
        seq: None,
        steps: plan.steps.iter().map(PlannedStep::unstarted).collect(),
        skipped: plan.skipped.clone(),
        stopped_at: None,
        stopped_because: None,
        diverged_at: None,
    };
    if let Some(target) = request.target {
        check_target(inner, caller, source, target).await?;
    }
    match target(inner, caller, source, &request).await? {
        _ if request.dry_run => Ok(answer),
        None => Err(CommandError::Invalid {
            field: "target",
            message: "is required, unless dry_run is true".to_owned(),
        }),
        Some(target) => {
            answer.target = Some(target);
            run(inner, caller, &request, target, &plan, &mut answer).await?;
            Ok(answer)
        }
    }
}

/// Where the steps are done again: where the caller says, or in a child that starts from the checkpoint.
async fn target(
    inner: &Arc<Inner>,
    caller: &Caller,
    source: SessionId,
    request: &Replay,
) -> Result<Option<SessionId>, CommandError> {
    let (None, false, Some(tag)) = (request.target, request.dry_run, &request.checkpoint) else {
        return Ok(request.target);
    };
    inner.check_room()?;
    let session = inner.book.session(caller, source)?;
    let fork = Fork {
        count: 1,
        identity: IdentityMode::BestEffort,
        memory: None,
        from: match session.checkpoints.get(tag) {
            Some(_) => ForkFrom::Checkpoint(tag.clone()),
            None => ForkFrom::Point(tag.clone()),
        },
        if_match: None,
    };
    let forked = fork::fork(inner, caller, source, fork).await?;
    Ok(forked.children.first().map(|child| child.id))
}

async fn check_target(
    inner: &Arc<Inner>,
    caller: &Caller,
    source: SessionId,
    target: SessionId,
) -> Result<(), CommandError> {
    if source == target {
        let message = "must be another session than the one that is replayed".to_owned();
        return Err(CommandError::Invalid {
            field: "target",
            message,
        });
    }
    inner.expire_if_due(caller, target).await
}

/// Runs the plan and records what came of it, whatever that is.
async fn run(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: &Replay,
    target: SessionId,
    plan: &Plan,
    answer: &mut ReplayAnswer,
) -> Result<(), CommandError> {
    let now = inner.clock.now();
    let source = answer.source;
    let steps = plan.steps.len() as u64;
    let turn = inner.turns.take(target).await;
    let (_, intent) = inner
        .book
        .decide(caller, target, |session| {
            gate::running(session, now)?;
            gate::no_lifecycle(session)?;
            Ok(Entry::new(Event::ReplayStarted(ReplayStarted {
                source,
                steps,
            })))
        })
        .await?;
    drop(turn);
    for (planned, step) in plan.steps.iter().zip(&mut answer.steps) {
        let because = run_step(inner, caller, request, (source, target), planned, step).await;
        if answer.diverged_at.is_none() && diverged(step) {
            answer.diverged_at = Some(step.seq);
        }
        if because.is_some() {
            answer.stopped_at = Some(step.seq);
            answer.stopped_because = because;
            break;
        }
    }
    let completed = completed(intent.header.seq.get(), answer);
    let entry = Entry::new(Event::ReplayCompleted(completed));
    let recorded = inner
        .book
        .conclude(caller, target, intent.header.event_id, entry)
        .await?;
    answer.seq = Some(recorded.header.seq.get());
    Ok(())
}

/// Redoes one step. Answers why to stop after it, if there is a reason.
async fn run_step(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: &Replay,
    sessions: (SessionId, SessionId),
    planned: &PlannedStep,
    step: &mut ReplayStep,
) -> Option<String> {
    let redone = planned
        .redo
        .run(inner, caller, sessions, request.timeout_ms)
        .await;
    match redone {
        Ok(result) => {
            let failed = result.exec.is_some_and(|exec| exec.exit_code != 0);
            step.result = Some(result);
            (failed && request.stop_on_failure).then(|| STOPPED_EXIT_CODE.to_owned())
        }
        Err(error) => {
            let message = error.to_string();
            // What is there or not is a difference between the two sessions, as an exit code is.
            let differs = matches!(error, CommandError::File { .. } | CommandError::Git { .. });
            step.error = Some(ReplayError {
                code: error.code().to_owned(),
                message: message.clone(),
            });
            (!differs || request.stop_on_failure).then_some(message)
        }
    }
}

/// A step came to something else than what was recorded.
fn diverged(step: &ReplayStep) -> bool {
    step.error.is_some() || step.result.as_ref().is_some_and(|result| !result.same)
}

fn span(request: &Replay) -> Span {
    Span {
        since: request.since,
        until: request.until,
        from: request.from,
        to: request.to,
    }
}

fn completed(op: u64, answer: &ReplayAnswer) -> ReplayCompleted {
    let results = || answer.steps.iter().filter_map(|step| step.result.as_ref());
    let execs = || results().filter_map(|result| result.exec);
    let exec_count = |holds: fn(&ReplayExec) -> bool| execs().filter(holds).count() as u64;
    ReplayCompleted {
        op,
        source: answer.source,
        ran: results().count() as u64,
        same_exit_code: exec_count(|exec| exec.same_exit_code),
        same_output: exec_count(|exec| exec.same_stdout && exec.same_stderr),
        same: results().filter(|result| result.same).count() as u64,
        diverged_at: answer.diverged_at,
        stopped_at: answer.stopped_at,
        stopped_because: answer.stopped_because.clone(),
    }
}
