//! The ledger's own part of a snapshot.
//!
//! ```text
//! last_recorded_at  u64
//! root              32   of the tree over the events; its nodes are in the store
//! rotations         u64 n, then n times: seq u64     the events that handed the key on
//! commands          key 32 ‖ u64 n, then n times: fingerprint u64 ‖ seq u64
//! streams           u64 n, then n times: name u16 length and bytes ‖ u64 m ‖ m times: seq u64
//! ```
//!
//! Integers are big-endian. What does not have this form is no snapshot.

use std::collections::HashMap;

use fluxvm_verify::GlobalSeq;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::StreamName;
use fluxvm_verify::TreeHash;

use crate::idempotency::Commands;
use crate::idempotency::KEY_BYTES;
use crate::state::View;

/// A state as it is read back, before it is held against the store.
pub(super) struct Decoded {
    pub(super) last_recorded_at: RecordedAt,
    pub(super) root: TreeHash,
    pub(super) rotations: Vec<GlobalSeq>,
    pub(super) commands: Commands,
    pub(super) streams: HashMap<StreamName, Vec<GlobalSeq>>,
}

pub(super) fn encode(state: &View<'_>) -> Vec<u8> {
    let commands = state.commands.entries();
    let streams = state.memory.streams();
    let events = usize::try_from(state.head.position.get()).unwrap_or(usize::MAX);
    let mut out = Vec::with_capacity(
        commands
            .len()
            .saturating_mul(16)
            .saturating_add(events.saturating_mul(8)),
    );
    put(&mut out, state.last_recorded_at.unix_ns());
    out.extend_from_slice(state.frontier.root().as_bytes());
    // The first key is in the genesis, every other one was named by an event.
    let rotations = state.chain.keys().get(1..).unwrap_or_default();
    put_count(&mut out, rotations.len());
    for (position, _) in rotations {
        put(&mut out, position.get());
    }
    out.extend_from_slice(state.commands.key());
    put_count(&mut out, commands.len());
    for (fingerprint, seq) in commands {
        put(&mut out, fingerprint);
        put(&mut out, seq.get());
    }
    put_count(&mut out, streams.len());
    for (stream, seqs) in streams {
        let name_bytes = u16::try_from(stream.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&name_bytes.to_be_bytes());
        out.extend_from_slice(stream.as_bytes());
        put_count(&mut out, seqs.len());
        for seq in seqs {
            put(&mut out, seq.get());
        }
    }
    out
}

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    put(out, u64::try_from(count).unwrap_or(u64::MAX));
}

/// Reads what [`encode`] wrote.
pub(super) fn decode(bytes: &[u8]) -> Option<Decoded> {
    let mut reader = Reader(bytes);
    let last_recorded_at = RecordedAt::from_unix_ns(reader.number()?);
    let root = TreeHash::from_bytes(reader.array()?);
    let rotations = reader.count(8)?;
    let rotations = (0..rotations).map(|_| reader.seq());
    let rotations = rotations.collect::<Option<Vec<_>>>()?;
    let key = reader.array::<KEY_BYTES>()?;
    let entries = reader.count(16)?;
    let mut commands = Commands::restored(key, entries);
    for _ in 0..entries {
        let fingerprint = reader.number()?;
        commands.put_back(fingerprint, reader.seq()?);
    }
    let count = reader.count(2 + 8)?;
    let mut streams = HashMap::with_capacity(count);
    for _ in 0..count {
        let name_bytes = usize::from(u16::from_be_bytes(reader.array()?));
        let name = std::str::from_utf8(reader.take(name_bytes)?).ok()?;
        let name = StreamName::parse(name).ok()?;
        streams.insert(name, reader.seqs()?);
    }
    reader.0.is_empty().then_some(Decoded {
        last_recorded_at,
        root,
        rotations,
        commands,
        streams,
    })
}

/// Takes fields off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn seq(&mut self) -> Option<GlobalSeq> {
        GlobalSeq::new(self.number()?)
    }

    /// A count of things of at least so many bytes each, which must be there.
    fn count(&mut self, bytes_each: usize) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count.checked_mul(bytes_each)? <= self.0.len()).then_some(count)
    }

    fn seqs(&mut self) -> Option<Vec<GlobalSeq>> {
        let count = self.count(8)?;
        let (seqs, _) = self.take(count * 8)?.as_chunks::<8>();
        let seqs = seqs.iter();
        seqs.map(|seq| GlobalSeq::new(u64::from_be_bytes(*seq)))
            .collect()
    }
}
