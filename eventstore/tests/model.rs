//! Whatever is asked of it in whatever order, the ledger does what a model of thirty lines does.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeMap;

use fluxvm_eventstore::*;
use proptest::prelude::*;
use support::*;

const STREAMS: [&str; 3] = ["host", "session/a", "session/b"];

/// One thing that a writer, or the operator, does.
#[derive(Clone, Debug)]
enum Step {
    /// Appends to some streams: which, expecting what, how many events.
    Append(Vec<(usize, Expectation, usize)>),
    /// Sends the append of an earlier step once more.
    Repeat(prop::sample::Index),
    /// Closes the ledger and opens it again.
    Reopen,
}

/// What a writer expects, told by the true version so that both outcomes are common.
#[derive(Clone, Copy, Debug)]
enum Expectation {
    NoStream,
    Exists,
    Any,
    True,
    OffBy(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expectation = prop_oneof![
        1 => Just(Expectation::NoStream),
        1 => Just(Expectation::Exists),
        1 => Just(Expectation::Any),
        4 => Just(Expectation::True),
        1 => (1..3_u64).prop_map(Expectation::OffBy),
    ];
    let parts = prop::collection::vec((0..STREAMS.len(), expectation, 1..4_usize), 1..3);
    let step = prop_oneof![
        8 => parts.prop_map(Step::Append),
        2 => any::<prop::sample::Index>().prop_map(Step::Repeat),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

/// What the ledger ought to be: how far each stream is, and each append with its first result.
#[derive(Default)]
struct Model {
    versions: BTreeMap<usize, u64>,
    events: u64,
    done: Vec<(Append, Option<Appended>)>,
}

impl Model {
    fn append_for(&self, parts: &[(usize, Expectation, usize)]) -> (Append, bool) {
        let mut allowed = true;
        let streams = parts.iter().map(|(stream, expectation, events)| {
            let version = self.versions.get(stream).copied().unwrap_or_default();
            let exact = |version| ExpectedVersion::at(StreamVersion::new(version));
            let (expected, allows) = match expectation {
                Expectation::NoStream => (ExpectedVersion::NoStream, version == 0),
                Expectation::Exists => (ExpectedVersion::Exists, version > 0),
                Expectation::Any => (ExpectedVersion::Any, true),
                Expectation::True => (exact(version), true),
                Expectation::OffBy(by) => (exact(version + by), false),
            };
            allowed &= allows;
            to(
                STREAMS[*stream],
                expected,
                (0..*events as u64).map(event).collect(),
            )
        });
        (append(streams.collect()), allowed)
    }
}

async fn run(steps: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let mut ledger = open(dir.path());
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Append(mut parts) => {
                parts.sort_by_key(|(stream, ..)| *stream);
                parts.dedup_by_key(|(stream, ..)| *stream);
                let (append, allowed) = model.append_for(&parts);
                let result = ledger.append(append.clone()).await;
                assert_eq!(result.is_ok(), allowed, "{append:?}: {result:?}");
                if allowed {
                    for (stream, _, events) in parts {
                        *model.versions.entry(stream).or_default() += events as u64;
                        model.events += events as u64;
                    }
                }
                model.done.push((append, result.ok()));
            }
            Step::Repeat(which) => {
                if let Some((append, Some(first))) =
                    model.done.get(which.index(model.done.len().max(1)))
                {
                    assert_eq!(ledger.append(append.clone()).await.unwrap(), *first);
                }
            }
            Step::Reopen => {
                drop(ledger);
                ledger = open(dir.path());
            }
        }
        assert_eq!(ledger.head().position, Position::new(model.events));
        for (at, name) in STREAMS.iter().enumerate() {
            let version = model
                .versions
                .get(&at)
                .copied()
                .and_then(StreamVersion::new);
            assert_eq!(ledger.stream_version(&stream(name)), version);
        }
    }
    assert!(verify(&export(&ledger, ExportScope::WholeLedger)).is_clean());
    let appended = model
        .done
        .into_iter()
        .filter_map(|(_, result)| result)
        .flatten();
    assert_eq!(all(&ledger), appended.collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn the_ledger_does_what_the_model_does(steps in steps()) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(steps));
    }
}
