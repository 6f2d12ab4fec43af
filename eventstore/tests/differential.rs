//! Two stores that share no line of code give the same ledger: the same answers and, byte for byte,
//! the same export, whatever is asked of them in whatever order.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::path::Path;

use bytes::Bytes;
use fluxvm_eventstore::*;
use proptest::prelude::*;
use serde_json::json;
use support::*;
use uuid::Uuid;

const STREAMS: [&str; 3] = ["host", "session/a", "session/b"];

/// One thing that is done to both.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Part>, Attachments),
    /// Sends the append of an earlier step once more.
    Repeat(prop::sample::Index),
    PutBlob(usize),
    Reopen,
}

#[derive(Clone, Debug)]
struct Part {
    stream: usize,
    /// The version that is expected, so often wrong; none for `Any`.
    expected: Option<u64>,
    /// How long the payload of each event is.
    payloads: Vec<usize>,
}

/// How long each is, and a seed: the same attachment comes often.
type Attachments = Vec<(usize, u8)>;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![8 => 0..300_usize, 1 => 60_000..70_000_usize];
    let expected = prop_oneof![2 => Just(None), 1 => (0..6_u64).prop_map(Some)];
    let part = (
        0..STREAMS.len(),
        expected,
        prop::collection::vec(bytes, 1..4),
    );
    let part = part.prop_map(|(stream, expected, payloads)| Part {
        stream,
        expected,
        payloads,
    });
    let attachments = prop::collection::vec((0..3000_usize, 0..3_u8), 0..3);
    let step = prop_oneof![
        8 => (prop::collection::vec(part, 1..3), attachments)
            .prop_map(|(parts, attachments)| Step::Append(parts, attachments)),
        2 => any::<prop::sample::Index>().prop_map(Step::Repeat),
        1 => (0..200_000_usize).prop_map(Step::PutBlob),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

fn append_of(n: usize, parts: &[Part], attachments: &Attachments) -> Append {
    let streams = parts.iter().map(|part| {
        let expected = match part.expected {
            None => ExpectedVersion::Any,
            Some(version) => ExpectedVersion::at(StreamVersion::new(version)),
        };
        let payload = |bytes: &usize| {
            let kind = EventKind::parse("test.done").unwrap();
            NewEvent::new(kind, 1, &json!("x".repeat(*bytes))).unwrap()
        };
        to(
            STREAMS[part.stream],
            expected,
            part.payloads.iter().map(payload).collect(),
        )
    });
    let mut append = append(streams.collect());
    append.command_id = CommandId::new(Uuid::from_u128(1 + n as u128));
    append.correlation_id = CorrelationId::new(Uuid::from_u128(77));
    append.streams[0].attachments = attachments
        .iter()
        .map(|(n, seed)| bytes(*n, *seed))
        .collect();
    append
}

/// Plays the steps on one store and tells everything that it answered.
async fn play(steps: &[Step], dir: &Path, store: StoreKind) -> Vec<String> {
    let environment = repeatable(store);
    let open = || Ledger::open_in(options(dir), Box::new(|_| {}), environment.clone()).unwrap();
    let mut ledger = open();
    let mut told = Vec::new();
    let mut appends: Vec<Append> = Vec::new();
    let mut blobs: Vec<Bytes> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Append(parts, attachments) => {
                appends.push(append_of(n, parts, attachments));
                blobs.extend(
                    appends[appends.len() - 1].streams[0]
                        .attachments
                        .iter()
                        .cloned(),
                );
                told.push(format!(
                    "{:?}",
                    ledger.append(appends[appends.len() - 1].clone()).await
                ));
            }
            Step::Repeat(which) if !appends.is_empty() => {
                let append = appends[which.index(appends.len())].clone();
                told.push(format!("{:?}", ledger.append(append).await));
            }
            Step::Repeat(_) => {}
            Step::PutBlob(length) => {
                blobs.push(bytes(*length, 9));
                told.push(format!("{:?}", ledger.put_blob(bytes(*length, 9)).await));
            }
            Step::Reopen => {
                drop(ledger);
                ledger = open();
            }
        }
        told.push(format!("{:?}", ledger.head()));
    }
    for blob in &blobs {
        let found = ledger.blob(&BlobDigest::of(blob)).unwrap();
        assert!(found.as_ref().is_none_or(|found| found == blob));
        told.push(format!("blob {}", found.is_some()));
    }
    for name in STREAMS {
        told.push(format!("{:?}", ledger.read_stream(&stream(name), None, 5)));
    }
    told.push(format!("{:?}", ledger.read(Position::START, 7)));
    told.push(export(&ledger, ExportScope::WholeLedger));
    told
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn both_stores_give_the_same_answers_and_the_same_export(steps in steps()) {
        let sled = tempfile::tempdir().unwrap();
        let plain = tempfile::tempdir().unwrap();
        let files = Environment::real_files();
        let on_sled = runtime().block_on(play(&steps, sled.path(), StoreKind::Sled));
        let on_plain = runtime().block_on(play(&steps, plain.path(), StoreKind::Plain(files)));
        // The export is the last thing that each tells.
        prop_assert!(verify(on_sled.last().unwrap()).is_clean());
        prop_assert_eq!(on_sled, on_plain);
    }
}
