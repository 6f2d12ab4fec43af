//! Beginning with a snapshot.

use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_verify::Genesis;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;

use super::Snapshots;
use super::codec;
use crate::Follower;
use crate::Head;
use crate::OpenError;
use crate::blobs::BlobStore;
use crate::keys;
use crate::rebuild::Expected;
use crate::rebuild::is_signed_for;
use crate::redact;
use crate::shared::event_of_record;
use crate::state::State;
use crate::store::Store;
use crate::tree;

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
        let decoded = codec::decode(read.state(), read.head.position);
        let decoded = decoded.ok_or("the ledger's part of it cannot be read")?;
        let mut state = State::at_genesis(ground.genesis).map_err(|e| e.to_string())?;
        ground.check_event(read.head)?;
        for seq in decoded.rotations {
            let event = ground.event(seq)?;
            let followed = state.chain.follow(&event);
            followed.map_err(|e| e.to_string())?;
        }
        state.frontier = ground.frontier(read.head.position, decoded.root)?;
        state.memory = decoded.memory;
        state.commands = decoded.commands;
        state.last_recorded_at = decoded.last_recorded_at;
        state.head = read.head;
        ground.check_known(&state)?;
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

    /// The edge of the stored tree, which must have this root.
    fn frontier(&self, size: Position, root: TreeHash) -> Result<Frontier, String> {
        let frontier = tree::stored_frontier(self.store, size).map_err(|e| e.to_string())?;
        match frontier.root() == root {
            true => Ok(frontier),
            false => Err("the stored tree is another one".to_owned()),
        }
    }

    /// What is known of the ledger up to here holds. What lies behind is met on the way there.
    fn check_known(&self, state: &State) -> Result<(), String> {
        let here = state.head.position;
        let noted = self.expected.noted;
        let passed = noted.filter(|noted| noted.position <= here && noted.position.get() > 0);
        if let Some(noted) = passed {
            self.check_event(noted)?;
        }
        let signed = self.expected.signed.filter(|it| it.size() <= here);
        let Some(signed) = signed else { return Ok(()) };
        let root = merkle::root(signed.size(), |index| tree::stored_node(self.store, index));
        let root = root.map_err(|e: OpenError| e.to_string())?;
        match is_signed_for(signed, &root, &state.chain) {
            true => Ok(()),
            false => Err("what was signed before it is not in the stored tree".to_owned()),
        }
    }
}
