//! That a session was never let have more than its budget is worked out of an export alone.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_verify::FaultCode::*;
use fluxvm_verify::*;
use support::*;

const PARENT: &str = "session/00000000-0000-4000-8000-00000000000a";
const CHILD: &str = "session/00000000-0000-4000-8000-00000000000b";

/// What happened, in a ledger that holds together.
struct Story(Forge);

impl Story {
    fn of(budget: &str) -> Story {
        let mut story = Story(Forge::of_ledger(1, 0));
        let asked = format!(r#"{{"agent":"a","budget":{budget}}}"#);
        story.say(PARENT, "session.create.started", None, &asked);
        story
    }

    /// Says that something happened because of an earlier event, and gives its place.
    fn say(&mut self, stream: &str, kind: &str, cause: Option<usize>, payload: &str) -> usize {
        let at = self.0.events.len();
        let payload: serde_json::Value = serde_json::from_str(payload).unwrap();
        let payload = serde_json_canonicalizer::to_string(&payload).unwrap();
        self.0.append_kind(stream, kind, &payload);
        let cause = cause.map(|cause| self.0.events[cause].header.event_id);
        self.0.events[at].header.causation_id = cause;
        self.0.rechain(at);
        at
    }

    fn start(&mut self, stream: &str, timeout_ms: u64) -> usize {
        let payload = format!(r#"{{"timeout_ms":{timeout_ms}}}"#);
        self.say(stream, "exec.started", None, &payload)
    }

    fn end(&mut self, stream: &str, start: usize, duration_ms: u64) {
        let payload = format!(r#"{{"duration_ms":{duration_ms}}}"#);
        self.say(stream, "exec", Some(start), &payload);
    }

    fn fork(&mut self, budget: &str) {
        let id = PARENT.trim_start_matches("session/");
        let payload = format!(
            r#"{{"forked":{{"asked":{{"budget":{budget}}},"origin":{{"parent":"{id}"}}}}}}"#
        );
        self.say(CHILD, "session.create", None, &payload);
        self.say(PARENT, "fork", None, r#"{"count":1}"#);
    }

    fn found(&self) -> Vec<(FaultCode, Option<u64>)> {
        codes(&self.0.verify())
    }
}

#[test]
fn a_budget_that_was_kept_is_named_with_the_most_that_was_given_out() {
    let mut story = Story::of(r#"{"max_execs":2,"max_exec_seconds":10,"max_jobs":3}"#);
    let first = story.start(PARENT, 8_000);
    story.end(PARENT, first, 1_500);
    let second = story.start(PARENT, 8_500);
    story.end(PARENT, second, 20);
    let report = story.0.verify();
    assert!(report.is_clean(), "{:#?}", report.faults);
    let uses = report.budgets.iter().map(|it| (it.name, it.limit, it.most));
    assert_eq!(
        uses.collect::<Vec<_>>(),
        [
            ("max_exec_seconds", 10_000, 10_000),
            ("max_execs", 2, 2),
            ("max_jobs", 3, 0)
        ]
    );
}

#[test]
fn a_command_more_than_there_may_be_is_named() {
    let mut story = Story::of(r#"{"max_execs":1}"#);
    story.start(PARENT, 1);
    assert_eq!(story.found(), []);
    story.start(PARENT, 1);
    assert_eq!(story.found(), [(BudgetExceeded, Some(3))]);
}

#[test]
fn time_that_is_reserved_twice_is_named_and_time_that_was_given_back_is_not() {
    let budget = r#"{"max_exec_seconds":10}"#;
    let mut story = Story::of(budget);
    story.start(PARENT, 6_000);
    story.start(PARENT, 6_000);
    assert_eq!(story.found(), [(BudgetExceeded, Some(3))]);
    let mut story = Story::of(budget);
    let first = story.start(PARENT, 6_000);
    // It took longer to end than it had been let have, which is not what was given out.
    story.end(PARENT, first, 6_400);
    story.start(PARENT, 4_000);
    assert_eq!(story.found(), []);
}

#[test]
fn a_command_that_never_ran_gives_its_time_back() {
    for kind in ["exec.failed", "lifecycle.interrupted"] {
        let mut story = Story::of(r#"{"max_exec_seconds":10}"#);
        let first = story.start(PARENT, 10_000);
        story.say(PARENT, kind, Some(first), r#"{"op":2}"#);
        story.start(PARENT, 10_000);
        assert_eq!(story.found(), [], "{kind}");
    }
}

#[test]
fn jobs_count_by_number_at_once_and_by_time() {
    let mut story = Story::of(r#"{"max_jobs":3,"max_concurrent_jobs":1,"max_compute_seconds":10}"#);
    let job = |story: &mut Story, timeout_ms| {
        let payload = format!(r#"{{"timeout_ms":{timeout_ms}}}"#);
        story.say(PARENT, "job.start", None, &payload)
    };
    let first = job(&mut story, 9_000);
    story.say(PARENT, "job.exit", Some(first), r#"{"duration_ms":1000}"#);
    job(&mut story, 9_000);
    assert_eq!(story.found(), []);
    job(&mut story, 0);
    assert_eq!(story.found(), [(BudgetExceeded, Some(5))]);
}

#[test]
fn children_share_what_is_left_and_can_never_multiply_it() {
    let mut story = Story::of(r#"{"max_execs":3,"max_children":1}"#);
    story.start(PARENT, 1);
    story.fork(r#"{"max_execs":2,"max_children":1}"#);
    story.start(CHILD, 1);
    story.start(PARENT, 1);
    assert_eq!(story.found(), []);
    story.start(CHILD, 1);
    // Neither has passed its own limit.
    assert_eq!(story.found(), [(BudgetExceeded, Some(7))]);
    story.fork(r#"{"max_execs":0}"#);
    assert_eq!(story.found().last(), Some(&(BudgetExceeded, Some(9))));
}

#[test]
fn what_is_reported_refuses_the_next_command_and_not_the_report() {
    let mut story = Story::of(r#"{"max_output_tokens":100}"#);
    let used = r#"{"input_tokens":1,"output_tokens":400,"cost_microusd":0}"#;
    story.say(PARENT, "usage.report", None, used);
    assert_eq!(story.found(), []);
    story.start(PARENT, 1);
    assert_eq!(story.found(), [(BudgetExceeded, Some(3))]);
}

#[test]
fn time_that_only_refuses_the_next_may_be_passed_by_what_runs() {
    let mut story = Story::of(r#"{"max_exec_seconds":10,"on_exhaust":"refuse-next"}"#);
    let first = story.start(PARENT, 60_000);
    let second = story.start(PARENT, 60_000);
    story.end(PARENT, first, 9_999);
    story.end(PARENT, second, 1);
    assert_eq!(story.found(), []);
    story.start(PARENT, 1);
    assert_eq!(story.found(), [(BudgetExceeded, Some(6))]);
}

#[test]
fn what_cannot_be_read_is_said() {
    let story = Story::of(r#"{"max_execs":"many"}"#);
    assert_eq!(story.found(), [(BudgetForm, Some(1))]);
    let mut story = Story::of("{}");
    story.say(PARENT, "exec.started", None, r#"{"timeout_ms":"long"}"#);
    assert_eq!(story.found(), [(BudgetForm, Some(2))]);
}

#[test]
fn an_erased_command_still_counts() {
    let mut story = Story::of(r#"{"max_execs":1}"#);
    for _ in 0..2 {
        let at = story.start(PARENT, 1);
        story.0.events[at].payload = Payload::Redacted;
    }
    story.say(LEDGER_STREAM, "ledger.redacted", None, r#"{"seqs":[2,3]}"#);
    assert_eq!(story.found(), [(BudgetExceeded, Some(3))]);
}
