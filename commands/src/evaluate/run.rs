//! Runs the candidates, all at once, each through the command that any caller would use.

use std::sync::Arc;

use fluxvm_projections::CandidateResult;
use fluxvm_projections::SessionId;
use tokio::task::JoinSet;

use super::Evaluate;
use super::Tails;
use super::score;
use crate::answer::ExecAnswer;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::request::Exec;

/// Bytes of the end of each output that are shown with a score: enough for a test's last words.
const TAIL_BYTES_MAX: usize = 2_048;

/// A candidate that was tried.
pub(super) struct Tried {
    result: CandidateResult,
    tails: Tails,
}

impl Tried {
    pub(super) fn into_parts(self) -> (CandidateResult, Tails) {
        (self.result, self.tails)
    }
}

/// Tries every candidate in its child.
pub(super) async fn all(
    inner: &Arc<Inner>,
    caller: &Caller,
    children: &[SessionId],
    request: &Evaluate,
) -> Result<Vec<Tried>, CommandError> {
    let mut trying = JoinSet::new();
    for (index, (child, command)) in children.iter().zip(&request.candidates).enumerate() {
        let (inner, caller, child) = (Arc::clone(inner), caller.clone(), *child);
        let (command, test) = (command.clone(), request.test.clone());
        let timeout_ms = request.timeout_ms;
        trying.spawn(async move {
            let run = async |line: &str| {
                let request = Exec::new(line.to_owned(), timeout_ms);
                exec::exec(&inner, &caller, child, request, None).await
            };
            let ran = run(&command).await;
            let ended_well = matches!(&ran, Ok(ran) if ran.outcome.exit_code == 0);
            let tested = match &test {
                Some(test) if ended_well => Some(run(test).await),
                _ => None,
            };
            (index, tried(child, command, test.is_some(), (ran, tested)))
        });
    }
    let mut tried = Vec::with_capacity(children.len());
    while let Some(done) = trying.join_next().await {
        tried.push(done.map_err(|error| CommandError::Internal(error.to_string()))?);
    }
    tried.sort_by_key(|(index, _)| *index);
    Ok(tried.into_iter().map(|(_, tried)| tried).collect())
}

type Ended = Result<ExecAnswer, CommandError>;

fn tried(
    child: SessionId,
    command: String,
    tests: bool,
    (ran, tested): (Ended, Option<Ended>),
) -> Tried {
    let exit_code = |ended: &Ended| ended.as_ref().ok().map(|it| it.outcome.exit_code);
    let took_ms = |ended: &Ended| ended.as_ref().map_or(0, |it| it.outcome.duration_ms);
    let failed = |ended: &Ended| ended.as_ref().err().map(|error| error.code().to_owned());
    let exit_codes = (exit_code(&ran), tested.as_ref().and_then(exit_code));
    let result = CandidateResult {
        child,
        command,
        exit_code: exit_codes.0,
        test_exit_code: exit_codes.1,
        score: score::score(tests, exit_codes.0, exit_codes.1),
        duration_ms: took_ms(&ran) + tested.as_ref().map_or(0, took_ms),
        error: failed(&ran).or_else(|| tested.as_ref().and_then(failed)),
        kept: false,
    };
    let tails = Tails {
        command: tail(&ran),
        test: tested.as_ref().map(tail).unwrap_or_default(),
    };
    Tried { result, tails }
}

/// The end of what a command wrote: its output and then its errors.
fn tail(ended: &Ended) -> String {
    let Ok(answer) = ended else {
        return String::new();
    };
    let end = |bytes: &[u8]| {
        let from = bytes.len().saturating_sub(TAIL_BYTES_MAX);
        let end = bytes.get(from..).unwrap_or_default();
        String::from_utf8_lossy(end).into_owned()
    };
    end(&answer.stdout) + &end(&answer.stderr)
}
