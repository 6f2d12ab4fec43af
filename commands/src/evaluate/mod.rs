//! Candidates that are tried side by side, each in a child of its own: a fork, the commands, their scores,
//! and the children that are of no use removed again.
//!
//! The intent names the children before they exist. A daemon that ends before the outcome is recorded
//! leaves them to the next one, which removes what is there of them: nothing was promised of them yet.

mod run;
mod score;

use std::sync::Arc;
use std::time::Instant;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_projections::CandidateResult;
use fluxvm_projections::EvaluateFailed;
use fluxvm_projections::EvaluateStarted;
use fluxvm_projections::Evaluated;
use fluxvm_projections::Event;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use uuid::Uuid;

use crate::book::Entry;
use crate::book::Op;
use crate::caller::Caller;
use crate::checkpoint::millis;
use crate::crash;
use crate::delete;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::fork;
use crate::gate;
use crate::limits::COMMAND_BYTES_MAX;
use crate::limits::EVALUATE_BYTES_MAX;
use crate::limits::EXEC_TIMEOUT_MAX_MS;
use crate::limits::FORK_CHILDREN_MAX;
use crate::request::Fork;
use crate::request::ForkFrom;
use run::Tried;

/// Which children stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All of them.
    All,
    /// The best that passed.
    Winner,
    /// None.
    None,
}

/// Candidates to be tried.
#[derive(Clone, Debug)]
pub struct Evaluate {
    /// The commands, one for each child.
    pub candidates: Vec<String>,
    /// What runs after each that ended with 0.
    pub test: Option<String>,
    /// Which children stay. It is a rollout, which has no winner, where none is asked for.
    pub keep: Keep,
    /// The commands are one and the same, tried several times over: nothing is compared.
    pub rollout: bool,
    /// The time limit of each command, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The revision that the caller saw.
    pub if_match: Option<u64>,
}

/// What came of them.
#[derive(Clone, Debug)]
pub struct EvaluateAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: Evaluated,
    /// The ends of what each wrote, in the order of the results; empty where it is told once more.
    pub tails: Vec<Tails>,
}

/// The end of what a candidate wrote, standard output and standard error.
#[derive(Clone, Debug, Default)]
pub struct Tails {
    /// The candidate.
    pub command: String,
    /// Its test.
    pub test: String,
}

impl Engine {
    /// Tries candidates, each in a child of its own, and scores them.
    ///
    /// # Errors
    ///
    /// `Invalid` and what a fork is refused with before anything happened, `Refused` where a command may
    /// not run; what a fork fails with, with no child left. A command that fails is a score, not an error.
    pub async fn evaluate(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Evaluate,
    ) -> Result<EvaluateAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            evaluate(&inner, &caller, id, request).await
        })
        .await
    }
}

async fn evaluate(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Evaluate,
) -> Result<EvaluateAnswer, CommandError> {
    check(&request)?;
    inner.check_room()?;
    inner.expire_if_due(caller, id).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let drawn = request.candidates.iter().map(|_| SessionId(Uuid::new_v4()));
    let started = EvaluateStarted {
        candidates: request.candidates.clone(),
        test: request.test.clone(),
        children: drawn.collect(),
    };
    let turn = inner.turns.take(id).await;
    let (_, intent) = inner
        .book
        .decide(caller, id, |session| {
            decide(session, &request, &started, now)
        })
        .await?;
    drop(turn);
    crash::point("evaluate.intent");
    let work = Work {
        op: Op::of(id, &intent),
        started,
        request,
        started_at,
    };
    // Requests of their own: to a retry of this one, a child is not yet what was asked for.
    let own = Caller {
        request: CorrelationId::new(Uuid::now_v7()),
        ..caller.clone()
    };
    match work.carry_out(inner, &own).await {
        Ok((results, tails)) => work.record(inner, caller, results, tails).await,
        Err(error) => {
            remove(inner, &own, &work.started.children).await;
            let failed = EvaluateFailed {
                op: work.op.seq,
                code: error.code().to_owned(),
                reason: error.to_string(),
            };
            let event = match work.request.rollout {
                true => Event::RolloutFailed(failed),
                false => Event::EvaluateFailed(failed),
            };
            let entry = Entry::new(event);
            let recorded = inner.book.conclude(caller, id, work.op.intent, entry).await;
            recorded.and(Err(error))
        }
    }
}

/// Checks what can be checked without a session.
fn check(request: &Evaluate) -> Result<(), CommandError> {
    let field = match request.rollout {
        true => "count",
        false => "candidates",
    };
    let count = request.candidates.len();
    if count == 0 || count > FORK_CHILDREN_MAX as usize {
        let message = format!("must be 1 to {FORK_CHILDREN_MAX}");
        return Err(CommandError::Invalid { field, message });
    }
    let field = match request.rollout {
        true => "command",
        false => "candidates",
    };
    let commands = request.candidates.iter().map(|command| (field, command));
    let tests = request.test.iter().map(|test| ("test", test));
    for (field, command) in commands.chain(tests) {
        if command.trim().is_empty() || command.contains('\0') || command.len() > COMMAND_BYTES_MAX
        {
            let message = format!("must be commands of 1 to {COMMAND_BYTES_MAX} bytes without NUL");
            return Err(CommandError::Invalid { field, message });
        }
    }
    if request.candidates.iter().map(String::len).sum::<usize>() > EVALUATE_BYTES_MAX {
        let message = format!("must be at most {EVALUATE_BYTES_MAX} bytes together");
        return Err(CommandError::Invalid { field, message });
    }
    if let Some(limit) = request.timeout_ms
        && !(1..=EXEC_TIMEOUT_MAX_MS).contains(&limit)
    {
        return Err(CommandError::Invalid {
            field: "timeout_seconds",
            message: "must be more than 0 and at most a day".to_owned(),
        });
    }
    Ok(())
}

/// Decides to begin. Whether the session may be forked is decided where it is.
fn decide(
    session: &Session,
    request: &Evaluate,
    started: &EvaluateStarted,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::revision(session, request.if_match)?;
    gate::running(session, now)?;
    gate::no_lifecycle(session)?;
    gate::no_commands(session)?;
    let started = started.clone();
    Ok(Entry::new(match request.rollout {
        true => Event::RolloutStarted(started),
        false => Event::EvaluateStarted(started),
    }))
}

/// An evaluation on its way from intent to outcome.
struct Work {
    op: Op,
    started: EvaluateStarted,
    request: Evaluate,
    started_at: Instant,
}

impl Work {
    async fn carry_out(
        &self,
        inner: &Arc<Inner>,
        caller: &Caller,
    ) -> Result<(Vec<CandidateResult>, Vec<Tails>), CommandError> {
        let children = &self.started.children;
        let fork = Fork {
            count: u32::try_from(children.len()).unwrap_or(u32::MAX),
            identity: IdentityMode::BestEffort,
            memory: None,
            from: ForkFrom::Now,
            if_match: None,
        };
        fork::fork_named(inner, caller, self.op.session, fork, children).await?;
        crash::point("evaluate.forked");
        let tried = run::all(inner, caller, children, &self.request).await?;
        let (mut results, tails): (Vec<_>, Vec<_>) =
            tried.into_iter().map(Tried::into_parts).unzip();
        let winner = score::winner(&results);
        for result in &mut results {
            result.kept = match self.request.keep {
                Keep::All => true,
                Keep::Winner => Some(result.child) == winner,
                Keep::None => false,
            };
        }
        let losers = results.iter().filter(|result| !result.kept);
        let losers: Vec<SessionId> = losers.map(|result| result.child).collect();
        remove(inner, caller, &losers).await;
        crash::point("evaluate.judged");
        Ok((results, tails))
    }

    async fn record(
        &self,
        inner: &Arc<Inner>,
        caller: &Caller,
        results: Vec<CandidateResult>,
        tails: Vec<Tails>,
    ) -> Result<EvaluateAnswer, CommandError> {
        let winner = match self.request.rollout {
            true => None,
            false => score::winner(&results),
        };
        let outcome = Evaluated {
            op: self.op.seq,
            results,
            winner,
            duration_ms: millis(self.started_at),
        };
        let event = match self.request.rollout {
            true => Event::RolledOut(outcome.clone()),
            false => Event::Evaluated(outcome.clone()),
        };
        let (id, intent) = (self.op.session, self.op.intent);
        let recorded = inner
            .book
            .conclude(caller, id, intent, Entry::new(event))
            .await?;
        crash::point("evaluate.outcome");
        Ok(EvaluateAnswer {
            seq: recorded.header.seq.get(),
            outcome,
            tails,
        })
    }
}

/// The answer, out of the outcome.
pub(crate) fn recorded(effect: &RecordedEvent, outcome: Evaluated) -> EvaluateAnswer {
    EvaluateAnswer {
        seq: effect.header.seq.get(),
        outcome,
        tails: Vec::new(),
    }
}

/// Removes children, those that are there. What cannot be removed stays a session like any other.
pub(crate) async fn remove(inner: &Arc<Inner>, caller: &Caller, children: &[SessionId]) {
    for child in children {
        match delete::delete(inner, caller, *child, None).await {
            Ok(()) | Err(CommandError::NotFound(_)) => {}
            Err(error) => {
                tracing::warn!(session = %child, %error, "a candidate's child was not removed");
            }
        }
    }
}
