//! Run the recorded commands of one session again in another one.
//!
//! Every command goes through the target's own exec, so that a replay can do no more than the target may.
//! Each step says whether it ended as recorded and whether it wrote what was recorded.

mod plan;

use std::sync::Arc;

use fluxvm_projections::Event;
use fluxvm_projections::ReplayCompleted;
use fluxvm_projections::ReplayStarted;
use fluxvm_projections::SessionId;

use crate::answer::ReplayAnswer;
use crate::answer::ReplayError;
use crate::answer::ReplayResult;
use crate::answer::ReplayStep;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::gate;
use crate::queries;
use crate::request::EventsQuery;
use crate::request::Exec;
use crate::request::Replay;
use plan::Plan;
use plan::PlannedStep;

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
    let plan = plan::plan(&events, request.since, request.until)?;
    let mut answer = ReplayAnswer {
        source,
        target: request.target,
        dry_run: request.dry_run,
        seq: None,
        steps: plan.steps.iter().map(PlannedStep::unstarted).collect(),
        skipped: plan.skipped.clone(),
        stopped_at: None,
        stopped_because: None,
    };
    if let Some(target) = request.target {
        check_target(inner, caller, source, target).await?;
    }
    match request.target {
        _ if request.dry_run => Ok(answer),
        None => Err(CommandError::Invalid {
            field: "target",
            message: "is required, unless dry_run is true".to_owned(),
        }),
        Some(target) => {
            run(inner, caller, &request, target, &plan, &mut answer).await?;
            Ok(answer)
        }
    }
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
        let timeout_ms = Some(request.timeout_ms.unwrap_or(planned.outcome.timeout_ms));
        let command = Exec::new(step.command.clone(), timeout_ms);
        let because = run_step(inner, caller, target, command, planned, step).await;
        let because = because.filter(|why| request.stop_on_failure || why != STOPPED_EXIT_CODE);
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

/// Runs one command again. Answers why to stop after it, if there is a reason.
async fn run_step(
    inner: &Arc<Inner>,
    caller: &Caller,
    target: SessionId,
    command: Exec,
    planned: &PlannedStep,
    step: &mut ReplayStep,
) -> Option<String> {
    let answer = match exec::exec(inner, caller, target, command, None).await {
        Ok(answer) => answer,
        Err(error) => {
            let message = error.to_string();
            step.error = Some(ReplayError {
                code: error.code().to_owned(),
                message,
            });
            return Some(error.to_string());
        }
    };
    let (then, now) = (&planned.outcome, &answer.outcome);
    step.result = Some(ReplayResult {
        seq: answer.seq,
        exit_code: now.exit_code,
        same_exit_code: now.exit_code == then.exit_code,
        same_stdout: now.stdout.blake3 == then.stdout.blake3,
        same_stderr: now.stderr.blake3 == then.stderr.blake3,
        duration_ms: now.duration_ms,
    });
    (now.exit_code != 0).then(|| STOPPED_EXIT_CODE.to_owned())
}

fn completed(op: u64, answer: &ReplayAnswer) -> ReplayCompleted {
    let results = || answer.steps.iter().filter_map(|step| step.result);
    let count = |holds: fn(&ReplayResult) -> bool| results().filter(holds).count() as u64;
    ReplayCompleted {
        op,
        source: answer.source,
        ran: count(|_| true),
        same_exit_code: count(|result| result.same_exit_code),
        same_output: count(|result| result.same_stdout && result.same_stderr),
        stopped_at: answer.stopped_at,
        stopped_because: answer.stopped_because.clone(),
    }
}
