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

/// The first event of each append.
#[derive(Default)]
pub(crate) struct Commands {
    key: RandomState,
    first_seqs: HashMap<u64, GlobalSeq, BuildHasherDefault<Fingerprint>>,
    last: Option<CommandId>,
}

impl Commands {
    /// Takes note of events in their order.
    pub(crate) fn note(&mut self, event: &RecordedEvent) {
        let command_id = event.header.command_id;
        // The events of one append follow upon each other.
        if self.last != Some(command_id) {
            self.last = Some(command_id);
            self.first_seqs
                .insert(self.key.hash_one(command_id), event.seq());
        }
    }

    /// The event that would be the first of this command, if the command was seen before. Whether
    /// it really bears the command's identifier has to be looked up in the event.
    pub(crate) fn first_seq(&self, command_id: CommandId) -> Option<GlobalSeq> {
        self.first_seqs.get(&self.key.hash_one(command_id)).copied()
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
