//! Of several writers who expect the same version exactly one wins, and the losers have written
//! nothing.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use fluxvm_eventstore::*;
use support::*;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_racing_appends_at_one_version_exactly_one_wins() {
    let (_dir, ledger) = new_ledger();
    for round in 0..50 {
        let mut racers = JoinSet::new();
        for n in 0..8 {
            let ledger = ledger.clone();
            let expected = ExpectedVersion::at(StreamVersion::new(round));
            racers.spawn(async move {
                ledger
                    .append(append(vec![to("session/a", expected, vec![event(n)])]))
                    .await
            });
        }
        let results = racers.join_all().await;
        let won = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(won, 1, "round {round}");
        let lost = results.iter().filter_map(|result| result.as_ref().err());
        for error in lost {
            assert!(matches!(error, AppendError::Conflict { .. }), "{error}");
        }
    }
    assert_eq!(ledger.head().position, Position::new(50));
    assert!(verify(&export(&ledger, ExportScope::WholeLedger)).is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_appends_give_one_gapless_chain() {
    let (_dir, ledger) = new_ledger();
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        let ledger = ledger.clone();
        writers.spawn(async move { fill(&ledger, &format!("session/{writer}"), 50).await });
    }
    writers.join_all().await;
    let report = verify(&export(&ledger, ExportScope::WholeLedger));
    assert!(report.is_clean());
    assert_eq!((report.events, report.streams), (800, 16));
}
