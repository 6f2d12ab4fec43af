//! Which signed checkpoints are kept.
//!
//! One is signed every second in which there are new events. Of the newest all are kept, so that
//! whoever holds one from lately finds it here; of those before them one for each hour in which
//! events were recorded, and each one next to an event that handed the key on. Nothing depends on
//! the others: a proof is made for any checkpoint that is kept, from any size, and whoever holds
//! one that is not can still have it proven to be the beginning of a newer one.
//!
//! What was pruned is removed without a sync: if that is lost it is done again.

use std::collections::VecDeque;
use std::time::Duration;

use fluxvm_verify::KeyChain;
use fluxvm_verify::Position;

use crate::OpenError;
use crate::keys;
use crate::record;
use crate::store::Store;
use crate::store::StoreError;

/// How many of the newest checkpoints are all kept: those of three hours of uninterrupted work,
/// some 300 bytes each.
pub const CHECKPOINTS_KEPT_MAX: usize = 10_000;
/// How many more there may be before some are removed, so that it is worth a look.
const SLACK: usize = 256;
/// Of older ones one is kept for each span of this length.
const SPAN: Duration = Duration::from_secs(3600);

/// The checkpoints that are there.
pub(crate) struct Kept {
    newest_max: usize,
    newest: VecDeque<Position>,
    /// The span of the last one that was kept before them.
    last_span: Option<u64>,
}

impl Kept {
    /// Looks at what the store has. All of it is taken for new: what is old is pruned at the next
    /// turn, and what was kept before is then kept again.
    pub(crate) fn load(store: &dyn Store, newest_max: usize) -> Result<Kept, StoreError> {
        let first = keys::checkpoint(Position::START);
        let end = keys::checkpoint(Position::new(u64::MAX));
        let mut newest = VecDeque::new();
        for entry in store.range(first.as_slice()..end.as_slice()) {
            let (key, note) = entry?;
            newest.extend(keys::checkpoint_size(&key).filter(|_| !note.is_empty()));
        }
        Ok(Kept {
            newest_max,
            newest,
            last_span: None,
        })
    }

    /// Takes note of one that was signed.
    pub(crate) fn note(&mut self, size: Position) {
        if self.newest.back().is_none_or(|last| *last < size) {
            self.newest.push_back(size);
        }
    }

    /// Removes those that are too many.
    pub(crate) fn prune(&mut self, store: &dyn Store, chain: &KeyChain) -> Result<(), OpenError> {
        match self.newest.len() < self.newest_max + SLACK {
            true => Ok(()),
            false => self.thin_out(store, chain),
        }
    }

    fn thin_out(&mut self, store: &dyn Store, chain: &KeyChain) -> Result<(), OpenError> {
        let mut gone = Vec::new();
        while self.newest.len() > self.newest_max {
            let Some(size) = self.newest.pop_front() else {
                break;
            };
            let span = span_of(store, size)?;
            if is_beside_a_rotation(chain, size) {
                continue;
            }
            match span.is_some() && span == self.last_span {
                true => gone.push(keys::checkpoint(size).to_vec()),
                false => self.last_span = span,
            }
        }
        Ok(store.remove(&gone)?)
    }
}

/// Which span the last event of a checkpoint was recorded in.
fn span_of(store: &dyn Store, size: Position) -> Result<Option<u64>, OpenError> {
    let Some(seq) = size.last_seq() else {
        return Ok(None);
    };
    let Some(record) = store.get(&keys::event(seq))? else {
        return Ok(None);
    };
    let record = record::decode(&record).map_err(|e| OpenError::Damaged {
        seq,
        reason: e.to_string(),
    })?;
    let seconds = Duration::from_nanos(record.header.recorded_at.unix_ns()).as_secs();
    Ok(Some(seconds / SPAN.as_secs()))
}

/// Whether the key changed just behind this checkpoint or with its last event: the old key's last
/// word and the new key's first.
fn is_beside_a_rotation(chain: &KeyChain, size: Position) -> bool {
    let changes = chain.keys().iter().skip(1).map(|(from, _)| from.get());
    changes
        .into_iter()
        .any(|from| size.get() == from || size.get() + 1 == from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;
    use crate::record::Body;
    use crate::store;
    use crate::store::Write;
    use fluxvm_verify::*;

    /// An event's record whose time is all that is looked at.
    fn recorded(seq: u64, seconds: u64) -> Write {
        let header = Header {
            seq: GlobalSeq::new(seq).unwrap(),
            stream: StreamName::parse("host").unwrap(),
            version: StreamVersion::new(seq).unwrap(),
            event_id: EventId::from_bytes([1; 16]),
            kind: EventKind::parse("test").unwrap(),
            schema: 1,
            recorded_at: RecordedAt::from_unix_ns(seconds * 1_000_000_000),
            actor: Actor::parse("test").unwrap(),
            command_id: CommandId::from_bytes([2; 16]),
            causation_id: None,
            correlation_id: CorrelationId::from_bytes([5; 16]),
            payload_bytes: 0,
            payload_commitment: [0; 32],
        };
        let prev = EventHash::from_bytes([8; 32]);
        let hash = event_hash(prev, &header);
        let event = RecordedEvent {
            header,
            payload: Payload::Redacted,
            prev,
            hash,
        };
        let record = record::encode(&event, &Body::Redacted);
        (keys::event(event.seq()).to_vec(), record)
    }

    #[test]
    fn all_of_the_newest_are_kept_and_one_for_each_hour_before() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::open(dir.path(), 8 << 20, &Environment::default()).unwrap();
        let signing = |size: u64| {
            let key = keys::checkpoint(Position::new(size)).to_vec();
            // An event, and a checkpoint behind it, every ten minutes.
            [recorded(size, size * 600), (key, b"a note".to_vec())]
        };
        let genesis = Genesis {
            ledger_id: LedgerId::from_bytes([7; 16]),
            origin: "flux.example".to_owned(),
            created_at: RecordedAt::default(),
            vkey: VerifierKey::new("flux.example", &[9; 32])
                .unwrap()
                .to_string(),
        };
        let chain = KeyChain::new(&genesis).unwrap();
        let count = 600;
        let mut kept = Kept::load(&*store, 12).unwrap();
        for size in 1..=count {
            store.commit(&signing(size)).unwrap();
            kept.note(Position::new(size));
            kept.prune(&*store, &chain).unwrap();
        }
        let all_from = kept.newest.front().unwrap().get();
        assert!(all_from > 250 && kept.newest.len() >= 12);
        let hour = |size: u64| size * 600 / 3600;
        let is_first = |size: &u64| *size == 1 || hour(*size) != hour(size - 1);
        let expected: Vec<u64> = (1..=count)
            .filter(|size| *size >= all_from || is_first(size))
            .collect();
        let stored = || Kept::load(&*store, 0).unwrap().newest;
        let sizes = |stored: &VecDeque<Position>| -> Vec<u64> {
            stored.iter().map(|it| it.get()).collect()
        };
        assert_eq!(expected, sizes(&stored()));
        // What a start finds is taken for new, and what was kept before is kept again.
        let mut again = Kept::load(&*store, 0).unwrap();
        again.thin_out(&*store, &chain).unwrap();
        let firsts: Vec<u64> = (1..=count).filter(is_first).collect();
        assert_eq!(firsts, sizes(&stored()));
    }
}
