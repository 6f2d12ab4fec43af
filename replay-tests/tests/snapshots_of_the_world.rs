//! Folding on from a snapshot is the same as folding from the start: at every event of every golden
//! ledger, and in any order that events could come in.

use std::collections::BTreeMap;

use fluxvm_projections::World;
use fluxvm_replay_tests::digests;
use fluxvm_replay_tests::events_of;
use fluxvm_verify::EventId;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Payload;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamVersion;
use proptest::prelude::*;
use uuid::Uuid;

/// Every golden ledger, with the digest of the state after each of its events.
const GOLDEN: [(&[u8], &str); 1] = [(
    include_bytes!("golden/ledger-1.jsonl"),
    include_str!("golden/ledger-1.digests"),
)];

/// The world after a trip through bytes. It must be the same one in every respect.
fn through_a_snapshot(world: &World) -> World {
    let bytes = world.to_snapshot().expect("a state is JSON");
    let restored = World::from_snapshot(&bytes).expect("its own bytes");
    assert_eq!(&restored, world);
    let digest = |world: &World| world.digest().expect("a digest");
    assert_eq!(digest(&restored), digest(world));
    restored
}

/// From a snapshot at every event on: the digests of all that follow, which must be `expected`.
fn check_every_start(events: &[RecordedEvent], expected: &str) {
    let lines: Vec<&str> = expected.lines().collect();
    let mut live = World::default();
    for start in 0..=events.len() {
        let mut world = through_a_snapshot(&live);
        for (event, line) in events.iter().zip(&lines).skip(start) {
            world.apply(event).expect("known");
            let digest = world.digest().expect("a digest");
            assert_eq!(
                format!("{} {digest}", event.header.seq),
                *line,
                "from {start}"
            );
        }
        if let Some(event) = events.get(start) {
            live.apply(event).expect("known");
        }
    }
}

#[test]
fn from_a_snapshot_at_any_event_a_golden_ledger_means_what_it_meant() {
    for (ledger, expected) in GOLDEN {
        check_every_start(&events_of(ledger), expected);
    }
}

#[test]
fn what_is_no_snapshot_is_refused() {
    for bytes in [&b""[..], b"{}", b"[]", b"{\"position\":1", b"\xff"] {
        assert!(World::from_snapshot(bytes).is_err());
    }
}

/// One step of a made-up history: which golden event it is made of, whose stream it goes to, what it
/// names as its intent, and whether its payload was erased.
type Step = (usize, usize, Option<usize>, bool);

/// Golden events in an order that no daemon would write them in. A fold has to bear all of it.
fn made_up(golden: &[RecordedEvent], steps: &[Step]) -> Vec<RecordedEvent> {
    let mut versions: BTreeMap<String, u64> = BTreeMap::new();
    let mut events: Vec<RecordedEvent> = Vec::new();
    for (index, (of, stream_of, cause, erased)) in steps.iter().enumerate() {
        let mut event = golden[of % golden.len()].clone();
        let number = index as u64 + 1;
        let kept = stream_of % 4 != 0;
        if !kept {
            event.header.stream = golden[stream_of % golden.len()].header.stream.clone();
        }
        let version = versions.entry(event.header.stream.to_string()).or_default();
        *version += 1;
        event.header.seq = GlobalSeq::new(number).expect("from one on");
        event.header.version = StreamVersion::new(*version).expect("from one on");
        event.header.event_id = EventId::new(Uuid::from_u128(u128::from(number)));
        let named = cause.filter(|_| index > 0).map(|cause| cause % index);
        event.header.causation_id = named.map(|named| events[named].header.event_id);
        if *erased {
            event.payload = Payload::Redacted;
        }
        events.push(event);
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn from_a_snapshot_anywhere_any_history_comes_to_the_same(
        steps in prop::collection::vec(
            (any::<usize>(), any::<usize>(), any::<Option<usize>>(), prop::bool::weighted(0.1)),
            1..40,
        ),
    ) {
        let golden = events_of(GOLDEN[0].0);
        let events = made_up(&golden, &steps);
        check_every_start(&events, &digests(&events));
    }
}
