//! Beginning with a snapshot.

use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_verify::Genesis;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::RecordedEvent;

use super::Snapshots;
use super::codec;
use crate::Follower;
use crate::Head;
use crate::blobs::BlobStore;
use crate::keys;
use crate::memory::Memory;
use crate::rebuild::Expected;
use crate::rebuild::is_signed_for;
use crate::redact;
use crate::shared::event_of_record;
use crate::state::State;
use crate::store::Store;
use crate::tree::StoredTree;

/// What a snapshot has to agree with.
pub(crate) struct Ground<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) blobs: &'a BlobStore,
    pub(crate) genesis: &'a Genesis,
    pub(crate) expected: Expected<'a>,
}

impl Snapshots {
    /// The newest state that agrees with the store, the follower with it, and the files that are of
    /// no use. Nothing where there is no such state: the follower has then seen nothing.
    pub(crate) fn restore(
        &self,
        ground: &Ground<'_>,
        follower: &mut dyn Follower,
    ) -> (Option<State>, Vec<PathBuf>) {
        let mut unusable = Vec::new();
        if follower.version().is_none() {
            return (None, unusable);
        }
        for path in self.files().unwrap_or_default() {
            match self.try_restore(&path, ground, follower) {
                Ok(state) => return (Some(state), unusable),
                Err(reason) => {
                    let shown = path.display();
                    tracing::warn!(path = %shown, reason, "a snapshot is left out");
                    unusable.push(path);
                }
            }
        }
        (None, unusable)
    }

    fn try_restore(
        &self,
        path: &PathBuf,
        ground: &Ground<'_>,
        follower: &mut dyn Follower,
    ) -> Result<State, String> {
        let read = self.read(path)?;
        if read.genesis != self.genesis {
            return Err("it is of another ledger".to_owned());
        }
        if follower.version() != Some(read.version) {
            return Err("it is of another version of the fold".to_owned());
        }
        let redactions = redact::epoch(ground.store).map_err(|e| e.to_string())?;
        if read.redactions != redactions {
            return Err("something was erased since".to_owned());
        }
        let decoded = codec::decode(read.state());
        let decoded = decoded.ok_or("the ledger's part of it cannot be read")?;
        let mut state = State::at_genesis(ground.genesis).map_err(|e| e.to_string())?;
        ground.check_event(read.head)?;
        for seq in decoded.rotations {
            let event = ground.event(seq)?;
            let followed = state.chain.follow(&event);
            followed.map_err(|e| e.to_string())?;
        }
        let tree = StoredTree::at(ground.store, read.head.position).map_err(|e| e.to_string())?;
        state.frontier = tree.frontier().map_err(|e| e.to_string())?;
        if state.frontier.root() != decoded.root {
            return Err("the stored tree is another one".to_owned());
        }
        state.commands = decoded.commands;
        state.last_recorded_at = decoded.last_recorded_at;
        state.head = read.head;
        ground.check_known(&state, &tree)?;
        state.memory = Memory::restored(decoded.streams, read.head.position, tree.into_leaves());
        match follower.restore(read.follower()) {
            true => Ok(state),
            false => Err("the follower's part of it cannot be read".to_owned()),
        }
    }
}

impl Ground<'_> {
    /// The event with this number, checked by itself.
    fn event(&self, seq: GlobalSeq) -> Result<Arc<RecordedEvent>, String> {
        let record = self.store.get(&keys::event(seq));
        let record = record.map_err(|e| e.to_string())?;
        let record = record.ok_or_else(|| format!("event {seq} is not there"))?;
        let event = event_of_record(&record, self.blobs)?;
        match event.seq() == seq {
            true => Ok(Arc::new(event)),
            false => Err(format!("another event lies in the place of event {seq}")),
        }
    }

    /// The store must have this event with this hash.
    fn check_event(&self, head: Head) -> Result<(), String> {
        let seq = head.position.last_seq().ok_or("it is of no event")?;
        match self.event(seq)?.hash == head.hash {
            true => Ok(()),
            false => Err(format!("event {seq} is another one")),
        }
    }

    /// What is known of the ledger up to here holds. What lies behind is met on the way there.
    fn check_known(&self, state: &State, tree: &StoredTree<'_>) -> Result<(), String> {
        let here = state.head.position;
        let noted = self.expected.noted;
        let passed = noted.filter(|noted| noted.position <= here && noted.position.get() > 0);
        if let Some(noted) = passed {
            self.check_event(noted)?;
        }
        let signed = self.expected.signed.filter(|it| it.size() <= here);
        let Some(signed) = signed else { return Ok(()) };
        let root = tree.root_at(signed.size()).map_err(|e| e.to_string())?;
        match is_signed_for(signed, &root, &state.chain) {
            true => Ok(()),
            false => Err("what was signed before it is not in the stored tree".to_owned()),
        }
    }
}
