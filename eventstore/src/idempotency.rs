//! Which command wrote which events, so that a repeated command writes nothing.
//!
//! After a crash a writer cannot know whether its append became durable, so it has to be able to
//! send the same one again, at any later time. The map is therefore never pruned. It holds a keyed
//! 64-bit fingerprint and a sequence number for each append, 16 bytes and the map's slack: some 40
//! MB for a million appends. The full identifier is read from the event itself at a hit. A
//! fingerprint that two identifiers share, one chance in 2^64 for each pair and not to be aimed at
//! since the key is random, makes the older append forgotten and nothing worse.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::hash::BuildHasherDefault;
use std::hash::Hasher;
use std::hash::RandomState;

use fluxvm_verify::CommandId;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::RecordedEvent;

/// Bytes of the key of the fingerprints.
pub(crate) const KEY_BYTES: usize = blake3::KEY_LEN;

/// The first event of each append.
pub(crate) struct Commands {
    key: [u8; KEY_BYTES],
    first_seqs: HashMap<u64, GlobalSeq, BuildHasherDefault<Fingerprint>>,
    last: Option<CommandId>,
}

impl Default for Commands {
    /// No appends, and a key that nobody knows.
    fn default() -> Commands {
        let mut key = [0; KEY_BYTES];
        let (words, _) = key.as_chunks_mut::<8>();
        for (number, word) in words.iter_mut().enumerate() {
            *word = RandomState::new().hash_one(number).to_be_bytes();
        }
        Commands::restored(key, 0)
    }
}

impl Commands {
    /// A map with this key, for so many entries to be [put back][Commands::put_back] into it.
    pub(crate) fn restored(key: [u8; KEY_BYTES], entries: usize) -> Commands {
        Commands {
            key,
            first_seqs: HashMap::with_capacity_and_hasher(entries, Default::default()),
            last: None,
        }
    }

    /// Puts an entry back that [`Commands::entries`] gave.
    pub(crate) fn put_back(&mut self, fingerprint: u64, seq: GlobalSeq) {
        self.first_seqs.insert(fingerprint, seq);
    }

    /// The key of the fingerprints.
    pub(crate) fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }

    /// Every entry, in no order.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = (u64, GlobalSeq)> {
        let entries = self.first_seqs.iter();
        entries.map(|(fingerprint, seq)| (*fingerprint, *seq))
    }

    fn fingerprint(&self, command_id: CommandId) -> u64 {
        let hash = blake3::keyed_hash(&self.key, command_id.as_bytes());
        let first = hash.as_bytes().first_chunk().copied();
        u64::from_be_bytes(first.unwrap_or_default())
    }

    /// Takes note of events in their order.
    pub(crate) fn note(&mut self, event: &RecordedEvent) {
        let command_id = event.header.command_id;
        // The events of one append follow upon each other.
        if self.last != Some(command_id) {
            self.last = Some(command_id);
            let fingerprint = self.fingerprint(command_id);
            self.first_seqs.insert(fingerprint, event.seq());
        }
    }

    /// The event that would be the first of this command, if the command was seen before. Whether
    /// it really bears the command's identifier has to be looked up in the event.
    pub(crate) fn first_seq(&self, command_id: CommandId) -> Option<GlobalSeq> {
        self.first_seqs.get(&self.fingerprint(command_id)).copied()
    }
}

/// The keys are hashes already.
#[derive(Default)]
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
