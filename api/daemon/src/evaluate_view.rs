//! Evaluations as answers.

use fluxvm_api_types::CandidateView;
use fluxvm_api_types::EvaluateView;
use fluxvm_commands::EvaluateAnswer;

/// What came of candidates.
pub(crate) fn evaluated(answer: &EvaluateAnswer) -> EvaluateView {
    let outcome = &answer.outcome;
    let items = outcome.results.iter().enumerate().map(|(index, result)| {
        let tails = answer.tails.get(index);
        CandidateView {
            child: result.child.0,
            command: result.command.clone(),
            exit_code: result.exit_code,
            test_exit_code: result.test_exit_code,
            score: result.score,
            duration_ms: result.duration_ms,
            error: result.error.clone(),
            kept: result.kept,
            output_tail: tails.map(|tails| tails.command.clone()),
            test_output_tail: tails
                .filter(|_| result.test_exit_code.is_some())
                .map(|tails| tails.test.clone()),
        }
    });
    EvaluateView {
        seq: answer.seq,
        items: items.collect(),
        winner: outcome.winner.map(|winner| winner.0),
        elapsed_ms: outcome.duration_ms,
    }
}
