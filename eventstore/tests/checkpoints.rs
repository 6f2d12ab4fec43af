//! The tree is kept with the events, and what is signed is signed once and for good.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

mod support;

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use fluxvm_eventstore::*;
use fluxvm_verify::NoteVerdict;
use fluxvm_verify::ProofError;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;
use support::*;
use uuid::Uuid;

/// A clock that goes on when a test says so.
#[derive(Default)]
struct Hand(Mutex<Duration>);

impl Hand {
    fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for Hand {
    fn now(&self) -> RecordedAt {
        RecordedAt::from_unix_ns(1_796_119_200_000_000_000)
    }

    fn elapsed(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

fn open_by_hand(dir: &std::path::Path) -> (Ledger, Arc<Hand>) {
    let clock = Arc::new(Hand::default());
    let environment = Environment {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..Environment::default()
    };
    let ledger = Ledger::open_in(options(dir), Box::new(|_| {}), environment).unwrap();
    (ledger, clock)
}

fn latest_size(ledger: &Ledger) -> Option<u64> {
    let latest = ledger.checkpoints();
    let latest = latest.borrow();
    latest.as_ref().map(|latest| latest.size().get())
}

fn rotation(n: u128) -> KeyRotation {
    KeyRotation {
        command_id: CommandId::new(Uuid::from_u128(n)),
        correlation_id: CorrelationId::new(Uuid::from_u128(n)),
        actor: Actor::parse("admin:ops").unwrap(),
    }
}

/// Lets a test at the store below a closed ledger.
fn with_store(dir: &std::path::Path, change: impl FnOnce(&sled::Db)) {
    let config = sled::Config::new().path(dir.join("ledger"));
    let db = config.segment_size(8 * 1024 * 1024).open().unwrap();
    change(&db);
    db.flush().unwrap();
    drop(db);
}

fn remove(db: &sled::Db, prefix: &str) {
    let keys: Vec<_> = db.scan_prefix(prefix).keys().map(Result::unwrap).collect();
    assert!(!keys.is_empty());
    keys.iter().for_each(|key| drop(db.remove(key).unwrap()));
}

#[tokio::test]
async fn the_root_is_that_of_the_events_at_every_size_and_after_opening_again() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 37).await;
    let events = all(&ledger);
    let mut frontier = Frontier::default();
    for event in &events {
        assert_eq!(ledger.root_at(frontier.size()).unwrap(), frontier.root());
        frontier.push(&event.hash, |_, _| {});
    }
    let refused = ledger.root_at(Position::new(38));
    let beyond = |e| matches!(e, ReadError::Proof(ProofError::Beyond { wanted: 38, .. }));
    assert!(refused.is_err_and(beyond));
    ledger.close().await;
    drop(ledger);
    let again = open(dir.path());
    assert_eq!(again.root_at(frontier.size()).unwrap(), frontier.root());
}

#[tokio::test]
async fn every_event_and_every_earlier_state_is_proven_against_a_signed_checkpoint() {
    let (_dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 23).await;
    let checkpoint = ledger.checkpoint().await.unwrap();
    assert_eq!(checkpoint.size().get(), 23);
    let key = &ledger.keys()[0].1;
    assert_eq!(checkpoint.note().verdict(key), NoteVerdict::Signed);
    for event in all(&ledger) {
        let proof = ledger.inclusion_proof(event.seq(), &checkpoint).unwrap();
        proof.verify(&event.hash).unwrap();
        let text = proof.to_string();
        assert_eq!(text.parse::<InclusionProof>().unwrap(), proof);
        let from = event.seq().position();
        let proof = ledger.consistency_proof(from, &checkpoint).unwrap();
        proof.verify(&ledger.root_at(from).unwrap()).unwrap();
    }
    let beyond = ledger.inclusion_proof(GlobalSeq::new(24).unwrap(), &checkpoint);
    assert!(matches!(beyond, Err(ReadError::Proof(_))));
}

#[tokio::test]
async fn a_second_after_the_last_checkpoint_new_events_are_signed_for() {
    let dir = tempfile::tempdir().unwrap();
    let (ledger, clock) = open_by_hand(dir.path());
    fill(&ledger, "session/a", 3).await;
    ledger.checkpoint_if_due().await.unwrap();
    assert_eq!(latest_size(&ledger), None, "it was not time yet");

    clock.advance(CHECKPOINT_INTERVAL);
    ledger.checkpoint_if_due().await.unwrap();
    assert_eq!(latest_size(&ledger), Some(3));

    // Under load it comes with the events themselves.
    clock.advance(CHECKPOINT_INTERVAL);
    fill(&ledger, "session/a", 1).await;
    assert_eq!(latest_size(&ledger), Some(4));

    clock.advance(CHECKPOINT_INTERVAL * 9);
    ledger.checkpoint_if_due().await.unwrap();
    assert_eq!(latest_size(&ledger), Some(4), "nothing new was signed for");
    assert!(ledger.checkpoint_at(Position::new(3)).unwrap().is_some());
    assert!(ledger.checkpoint_at(Position::new(2)).unwrap().is_none());
}

#[tokio::test]
async fn the_ledger_signs_by_itself() {
    let (_dir, ledger) = new_ledger();
    let mut checkpoints = ledger.checkpoints();
    fill(&ledger, "session/a", 2).await;
    let signed = checkpoints.wait_for(|latest| {
        latest
            .as_ref()
            .is_some_and(|latest| latest.size().get() == 2)
    });
    signed.await.unwrap();
}

#[tokio::test]
async fn closing_signs_for_the_last_events() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 2).await;
    ledger.close().await;
    assert_eq!(latest_size(&ledger), Some(2));
    drop(ledger);
    assert_eq!(latest_size(&open(dir.path())), Some(2));
}

#[tokio::test]
async fn one_size_has_one_checkpoint_even_after_opening_again() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 2).await;
    let first = ledger.checkpoint().await.unwrap();
    assert_eq!(ledger.checkpoint().await.unwrap(), first);
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    assert_eq!(ledger.checkpoint().await.unwrap(), first);
}

#[tokio::test]
async fn an_empty_ledger_can_be_signed_for() {
    let (_dir, ledger) = new_ledger();
    let signed = ledger.checkpoint().await.unwrap();
    assert_eq!(signed.size(), Position::START);
    assert_eq!(signed.root(), TreeHash::of_nothing());
}

#[tokio::test]
async fn nodes_that_an_earlier_release_did_not_write_are_made_up_for() {
    let (dir, ledger) = new_ledger();
    fill_blocks(&ledger).await;
    let size = Position::new(BLOCKS_EVENTS);
    let root = ledger.root_at(size).unwrap();
    let mut nodes = Vec::new();
    let mut frontier = merkle::Frontier::default();
    for event in all(&ledger) {
        frontier.push(&event.hash, |index, node| nodes.push((index, node)));
    }
    ledger.close().await;
    drop(ledger);
    for case in ["no nodes", "none of the last block", "each node by itself"] {
        with_store(dir.path(), |db| {
            let last = [b"h".as_slice(), &511_u64.to_be_bytes()].concat();
            let first = if case == "none of the last block" {
                last
            } else {
                b"h".to_vec()
            };
            let upper: Vec<_> = db
                .range(first..b"i".to_vec())
                .keys()
                .map(Result::unwrap)
                .collect();
            assert!(!upper.is_empty());
            let tiles: Vec<_> = db.scan_prefix(b"t").keys().map(Result::unwrap).collect();
            assert_eq!(tiles.len(), 2);
            let kept = usize::from(case == "none of the last block");
            let gone = upper.iter().chain(tiles.iter().skip(kept));
            gone.for_each(|key| drop(db.remove(key).unwrap()));
            if case == "no nodes" {
                remove(db, "k");
                remove(db, "mcheckpoint");
            }
            if case == "each node by itself" {
                for (index, node) in &nodes {
                    let key = [b"h".as_slice(), &index.to_be_bytes()].concat();
                    db.insert(key, node.as_bytes()).unwrap();
                }
            }
        });
        let ledger = open(dir.path());
        assert_eq!(ledger.root_at(size).unwrap(), root, "{case}");
        let checkpoint = ledger.checkpoint().await.unwrap();
        for event in all(&ledger).iter().step_by(7) {
            ledger.inclusion_proof(event.seq(), &checkpoint).unwrap();
        }
        for from in [1, 255, 256, 257, 511, 512, 513, 600] {
            ledger
                .consistency_proof(Position::new(from), &checkpoint)
                .unwrap();
        }
        ledger.close().await;
        drop(ledger);
        // What was made up for is as it would have been written; what was there is left alone.
        with_store(dir.path(), |db| {
            let tiles = db.scan_prefix(b"t").count();
            assert_eq!(tiles, if case == "each node by itself" { 0 } else { 2 });
        });
    }
    // Whoever goes on with nodes by themselves writes blocks from here on.
    let ledger = open(dir.path());
    fill_blocks(&ledger).await;
    let checkpoint = ledger.checkpoint().await.unwrap();
    for event in all(&ledger).iter().step_by(11) {
        ledger.inclusion_proof(event.seq(), &checkpoint).unwrap();
    }
    ledger.close().await;
    drop(ledger);
    with_store(dir.path(), |db| assert_eq!(db.scan_prefix(b"t").count(), 2));
}

/// Two whole blocks of the tree and a part of one.
const BLOCKS_EVENTS: u64 = 600;

async fn fill_blocks(ledger: &Ledger) {
    for _ in 0..2 {
        let many = (0..BLOCKS_EVENTS / 2).map(event).collect();
        let many = append(vec![to("session/a", ExpectedVersion::Any, many)]);
        ledger.append(many).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_that_was_altered_gives_no_proof() {
    let (dir, ledger) = new_ledger();
    fill_blocks(&ledger).await;
    ledger.close().await;
    drop(ledger);
    let set = |kind: &str, number: u64, value: &[u8]| {
        with_store(dir.path(), |db| {
            let key = [kind.as_bytes(), &number.to_be_bytes()].concat();
            assert!(db.insert(key, value).unwrap().is_some());
        });
    };
    // The leaves of the first block.
    set("t", 0, &[7; 32 * 256]);
    let ledger = open(dir.path());
    let checkpoint = ledger.checkpoint().await.unwrap();
    let refused = ledger.inclusion_proof(GlobalSeq::new(2).unwrap(), &checkpoint);
    assert!(matches!(refused, Err(ReadError::TreeDamaged { .. })));
    ledger.close().await;
    drop(ledger);
    // The node above the first two blocks.
    set("h", merkle::stored_index(9, 0), &[7; 32]);
    let refused = try_open(dir.path());
    assert!(matches!(refused, Err(OpenError::TreeDamaged { .. })));
}

#[tokio::test]
async fn a_ledger_that_ends_before_its_checkpoint_does_not_open() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 4).await;
    ledger.close().await;
    drop(ledger);
    with_store(dir.path(), |db| {
        let key = [b"e".as_slice(), &4_u64.to_be_bytes()].concat();
        db.remove(key).unwrap().unwrap();
    });
    std::fs::remove_file(dir.path().join("ledger/head")).unwrap();
    let refused = try_open(dir.path());
    assert!(matches!(refused, Err(OpenError::TailMissing { .. })));
}

#[tokio::test]
async fn a_ledger_whose_checkpoint_is_of_other_events_does_not_open() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 4).await;
    ledger.close().await;
    drop(ledger);
    let swap = |value: &[u8]| {
        with_store(dir.path(), |db| {
            let key = [b"k".as_slice(), &4_u64.to_be_bytes()].concat();
            db.insert(key, value).unwrap();
        });
    };
    swap(b"no checkpoint");
    let refused = try_open(dir.path());
    assert!(matches!(refused, Err(OpenError::CheckpointDamaged)));
    let root = TreeHash::of_nothing().to_base64();
    swap(format!("flux.example/ledger\n4\n{root}\n\n").as_bytes());
    let refused = try_open(dir.path());
    assert!(matches!(refused, Err(OpenError::CheckpointDiffers { .. })));
}

#[tokio::test]
async fn a_key_is_handed_on_once_and_the_new_one_speaks_from_then_on() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 3).await;
    let event = ledger.rotate_key(rotation(1)).await.unwrap();
    assert_eq!(
        (&*event.header.stream, &*event.header.kind),
        ("ledger", "ledger.key_rotated")
    );
    let again = ledger.rotate_key(rotation(1)).await.unwrap();
    assert_eq!(again.seq(), event.seq());
    fill(&ledger, "session/a", 2).await;
    ledger.rotate_key(rotation(2)).await.unwrap();

    let check = |ledger: &Ledger| {
        let keys = ledger.keys();
        let from: Vec<u64> = keys.iter().map(|(from, _)| from.get()).collect();
        assert_eq!(from, [0, 4, 7]);
        assert_eq!(ledger.info().vkey, keys[2].1.to_string());
        for (size, key) in [(3, 0), (4, 1), (6, 1), (7, 2)] {
            let signed = ledger.checkpoint_at(Position::new(size)).unwrap().unwrap();
            assert_eq!(signed.note().verdict(&keys[key].1), NoteVerdict::Signed);
        }
    };
    check(&ledger);
    ledger.close().await;
    drop(ledger);
    let ledger = open(dir.path());
    check(&ledger);
    let lines = evidence(&ledger, ExportScope::WholeLedger, Content::EventsOnly).await;
    assert!(verify(&lines).is_clean(), "{:?}", verify(&lines).faults);
    let lines = evidence(
        &ledger,
        ExportScope::Stream(stream("session/a")),
        Content::EventsOnly,
    );
    let report = verify(&lines.await);
    assert!(report.is_clean(), "{:?}", report.faults);
    assert_eq!((report.events, report.proofs, report.keys.len()), (7, 7, 3));
}

#[tokio::test]
async fn a_rotation_that_was_cut_off_is_finished_or_undone_at_the_next_opening() {
    let (dir, ledger) = new_ledger();
    let key = options(dir.path()).signing_key_file;
    let next = key.with_extension("next");
    let old = std::fs::read(&key).unwrap();
    ledger.rotate_key(rotation(1)).await.unwrap();
    ledger.close().await;
    drop(ledger);
    let new = std::fs::read(&key).unwrap();
    assert!(old != new && !next.exists());

    // The event is there and the new key not yet in its place.
    let copy = |from: &[u8], to: &std::path::Path| {
        std::fs::copy(&key, to).unwrap();
        std::fs::write(to, from).unwrap();
    };
    copy(&new, &next);
    copy(&old, &key);
    drop(open(dir.path()));
    assert_eq!(std::fs::read(&key).unwrap(), new);

    // The new key is there and the event is not.
    copy(&old, &next);
    drop(open(dir.path()));
    assert_eq!(std::fs::read(&key).unwrap(), new);
    assert!(!next.exists());
}

#[tokio::test]
async fn nobody_else_can_write_the_event_that_hands_the_key_on() {
    let (_dir, ledger) = new_ledger();
    let kind = EventKind::parse("ledger.key_rotated").unwrap();
    let event = NewEvent::new(kind, 1, &serde_json::json!({})).unwrap();
    let refused = ledger.append(append(vec![to(
        "ledger",
        ExpectedVersion::Any,
        vec![event],
    )]));
    assert!(matches!(
        refused.await,
        Err(AppendError::KindReserved { .. })
    ));
}

#[tokio::test]
async fn a_folder_keeps_each_checkpoint_and_replaces_none() {
    let (dir, ledger) = new_ledger();
    let kept = dir.path().join("kept");
    let sink = FolderSink::new(kept.clone());
    fill(&ledger, "session/a", 2).await;
    let signed = ledger.checkpoint().await.unwrap();
    sink.push(&signed).unwrap();
    sink.push(&signed).unwrap();
    let file = kept.join("00000000000000000002.checkpoint");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), signed.to_string());
    std::fs::write(&file, "something else").unwrap();
    assert!(sink.push(&signed).is_err());
}

#[tokio::test]
async fn checkpoints_are_pushed_until_the_ledger_closes() {
    let (dir, ledger) = new_ledger();
    let sink: Arc<dyn CheckpointSink> = Arc::new(FolderSink::new(dir.path().join("kept")));
    let pushing = tokio::spawn(push_checkpoints(ledger.checkpoints(), sink, |e| {
        panic!("{e}")
    }));
    fill(&ledger, "session/a", 3).await;
    ledger.close().await;
    drop(ledger);
    pushing.await.unwrap();
    assert!(
        dir.path()
            .join("kept/00000000000000000003.checkpoint")
            .exists()
    );
}

#[tokio::test]
async fn the_event_that_hands_the_key_on_cannot_be_erased() {
    let (dir, ledger) = new_ledger();
    let event = ledger.rotate_key(rotation(1)).await.unwrap();
    let redaction = Redaction {
        seqs: vec![event.seq()],
        looked_until: event.seq().position(),
        blobs: vec![],
        append: one("ledger", 1),
    };
    let refused = ledger.redact(redaction).await;
    assert!(matches!(
        refused,
        Err(RedactError::Append(AppendError::KindReserved { .. }))
    ));
    ledger.close().await;
    drop(ledger);
    assert_eq!(open(dir.path()).keys().len(), 2);
}
