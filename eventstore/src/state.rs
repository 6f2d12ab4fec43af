//! What the events up to a point come to: all that the ledger has to know to take the next one.
//!
//! It is a fold like any other. It begins at the genesis, or at a snapshot of itself, and takes
//! events one after another, each held against those before it.

use std::sync::Arc;

use fluxvm_verify::Genesis;
use fluxvm_verify::KeyChain;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::is_rotation;
use fluxvm_verify::merkle::Frontier;

use crate::Head;
use crate::OpenError;
use crate::idempotency::Commands;
use crate::memory::Memory;

/// The state of the ledger itself at one of its events.
pub(crate) struct State {
    pub(crate) memory: Memory,
    pub(crate) commands: Commands,
    pub(crate) head: Head,
    pub(crate) last_recorded_at: RecordedAt,
    /// The tree over the events.
    pub(crate) frontier: Frontier,
    /// The keys that spoke for the ledger.
    pub(crate) chain: KeyChain,
}

/// The same, in the hands of whoever works with it.
pub(crate) struct View<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) commands: &'a Commands,
    pub(crate) head: Head,
    pub(crate) last_recorded_at: RecordedAt,
    pub(crate) frontier: &'a Frontier,
    pub(crate) chain: &'a KeyChain,
}

impl State {
    pub(crate) fn view(&self) -> View<'_> {
        View {
            memory: &self.memory,
            commands: &self.commands,
            head: self.head,
            last_recorded_at: self.last_recorded_at,
            frontier: &self.frontier,
            chain: &self.chain,
        }
    }

    /// The state before the first event.
    pub(crate) fn at_genesis(genesis: &Genesis) -> Result<State, OpenError> {
        let chain = KeyChain::new(genesis).map_err(|e| OpenError::GenesisDamaged {
            reason: e.to_string(),
        })?;
        Ok(State {
            memory: Memory::default(),
            commands: Commands::default(),
            head: Head {
                position: Position::START,
                hash: genesis.hash(),
            },
            last_recorded_at: RecordedAt::default(),
            frontier: Frontier::default(),
            chain,
        })
    }

    /// Takes the next event, which was checked by itself. An error is one that does not follow from
    /// those before it.
    pub(crate) fn take(&mut self, event: &Arc<RecordedEvent>) -> Result<(), OpenError> {
        let expected = self.head.position.next_seq();
        let damaged = |reason: String| OpenError::Damaged {
            seq: expected,
            reason,
        };
        let header = &event.header;
        if header.seq != expected {
            return Err(damaged("its record is missing".to_owned()));
        }
        if event.prev != self.head.hash {
            let reason = "it does not follow from the event before it";
            return Err(damaged(reason.to_owned()));
        }
        let version = StreamVersion::after(self.memory.latest_version(&header.stream));
        if header.version != version {
            return Err(damaged(format!("its stream is at version {version}")));
        }
        if header.recorded_at < self.last_recorded_at {
            let reason = "it was recorded before the event before it";
            return Err(damaged(reason.to_owned()));
        }
        if is_rotation(event) {
            let followed = self.chain.follow(event);
            followed.map_err(|e| OpenError::KeyChain {
                seq: header.seq,
                reason: e.to_string(),
            })?;
        }
        self.head = Head {
            position: header.seq.position(),
            hash: event.hash,
        };
        self.last_recorded_at = header.recorded_at;
        let mut leaf = None;
        self.frontier.push(&event.hash, |_, node| {
            leaf.get_or_insert(node);
        });
        if let Some(leaf) = leaf {
            self.memory.push_leaf(leaf);
        }
        self.memory.push(event);
        self.commands.note(event);
        Ok(())
    }
}
