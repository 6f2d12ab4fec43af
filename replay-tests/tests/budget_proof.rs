//! "Never exceeded" can be shown to somebody who was not there: out of the export of a real daemon whose
//! sessions were asked for more than they had, from all sides at once.

use std::sync::Barrier;

use fluxvm_replay_tests::Daemon;
use fluxvm_replay_tests::SESSIONS;
use fluxvm_replay_tests::State;
use fluxvm_verify::Report;
use fluxvm_verify::VerifyOptions;
use fluxvm_verify::verify_export;
use serde_json::json;

/// Callers of each session, at once.
const CALLERS: usize = 12;

#[test]
fn a_budget_that_a_family_of_sessions_shared_was_never_exceeded() {
    let state = State::new();
    let daemon = Daemon::start(&state);
    let api = daemon.api();
    let budget = json!({"max_execs": 20, "max_exec_seconds": 30, "max_children": 3});
    let parent = api.create_with(&json!({"agent": "a", "budget": budget}));
    let first = json!({"command": "true", "timeout_seconds": 1});
    assert_eq!(api.try_exec(&parent, &first).status, 200);
    let mut family = api.fork(&parent, 3);
    family.push(parent.clone());

    let start = Barrier::new(family.len() * CALLERS);
    let asked = json!({"command": "true", "timeout_seconds": 4});
    std::thread::scope(|scope| {
        for id in family
            .iter()
            .flat_map(|id| std::iter::repeat_n(id, CALLERS))
        {
            scope.spawn(|| {
                start.wait();
                let status = api.try_exec(id, &asked).status;
                assert!([200, 403, 409, 429].contains(&status), "{status}");
            });
        }
    });
    let report = check(&api.export_ledger());
    let stream = format!("session/{parent}");
    let of_parent = report
        .budgets
        .iter()
        .filter(|it| it.stream.as_str() == stream);
    let most: Vec<_> = of_parent.map(|it| (it.name, it.limit, it.most)).collect();
    let [
        ("max_children", 3, 3),
        ("max_exec_seconds", 30_000, time),
        ("max_execs", 20, execs),
    ] = most[..]
    else {
        panic!("{most:?}");
    };
    assert!(time <= 30_000, "{time} ms");
    assert!((2..=20).contains(&execs), "{execs} commands");

    // One session's own export shows that session's part.
    let own = api.get(&format!("{SESSIONS}/{parent}/export"));
    assert_eq!(check(&own.body).budgets.len(), 3);
}

fn check(export: &[u8]) -> Report {
    let report = verify_export(export, &VerifyOptions::default());
    assert!(report.is_clean(), "{:#?}", report.faults);
    report
}
