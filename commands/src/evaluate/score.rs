//! How well candidates did. Pure.

use fluxvm_projections::CandidateResult;
use fluxvm_projections::SessionId;

/// The test passed, or without a test the candidate did.
pub(super) const PASSED: u8 = 100;
/// The candidate ended well and its test did not.
const RAN: u8 = 10;
/// The candidate failed or never ran.
const FAILED: u8 = 0;

/// How well one did.
pub(super) fn score(tests: bool, exit_code: Option<i32>, test_exit_code: Option<i32>) -> u8 {
    match (exit_code, test_exit_code) {
        (Some(0), Some(0)) => PASSED,
        (Some(0), None) if !tests => PASSED,
        (Some(0), _) => RAN,
        _ => FAILED,
    }
}

/// The best of those that passed: the quickest, of equals the first. What failed is never a winner.
pub(super) fn winner(results: &[CandidateResult]) -> Option<SessionId> {
    let passed = results.iter().filter(|result| result.score == PASSED);
    let best = passed.min_by_key(|result| result.duration_ms);
    best.map(|result| result.child)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_candidate_passes_by_its_test_or_without_one_by_itself() {
        for (tests, exit_code, test_exit_code, expected) in [
            (true, Some(0), Some(0), 100),
            (false, Some(0), None, 100),
            (true, Some(0), Some(1), 10),
            (true, Some(0), None, 10),
            (true, Some(3), None, 0),
            (false, Some(3), None, 0),
            (true, None, None, 0),
        ] {
            let scored = score(tests, exit_code, test_exit_code);
            assert_eq!(scored, expected, "{exit_code:?} {test_exit_code:?}");
        }
    }

    #[test]
    fn the_quickest_that_passed_wins_and_of_equals_the_first() {
        let won = |line: &str| {
            let results: Vec<_> = line
                .split_whitespace()
                .zip(1..)
                .map(|(word, number)| {
                    let (score, ms) = word.split_once(':').expect("score:ms");
                    CandidateResult {
                        child: SessionId(Uuid::from_u128(number)),
                        command: String::new(),
                        exit_code: None,
                        test_exit_code: None,
                        score: score.parse().expect("a score"),
                        duration_ms: ms.parse().expect("milliseconds"),
                        error: None,
                        kept: false,
                    }
                })
                .collect();
            winner(&results).map(|child| child.0.as_u128())
        };
        assert_eq!(won("100:9 100:7 100:7 10:1"), Some(2));
        assert_eq!(won("10:1 0:1"), None);
        assert_eq!(won(""), None);
    }
}
