//! The tree in the store: its state when a ledger is opened, and proofs out of it.
//!
//! A ledger of an earlier release has events without nodes; they are written when it is opened.
//! What nodes there are is never trusted: at opening the root is computed from the events
//! themselves, and a proof is checked before it is handed out.

use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::InclusionProof;
use fluxvm_verify::Position;
use fluxvm_verify::ProofError;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;
use fluxvm_verify::merkle::Frontier;

use crate::OpenError;
use crate::ReadError;
use crate::keys;
use crate::record;
use crate::shared::Shared;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::Write;

/// How many nodes are written at a time when they are made up for.
const BACKFILL_NODES: usize = 4096;

fn store_failed(error: StoreError) -> OpenError {
    OpenError::Store {
        reason: error.to_string(),
    }
}

/// The newest checkpoint in the store.
pub(crate) fn latest_checkpoint(store: &dyn Store) -> Result<Option<SignedCheckpoint>, OpenError> {
    let damaged = || OpenError::CheckpointDamaged;
    let Some(size) = store.get(keys::LAST_CHECKPOINT).map_err(store_failed)? else {
        return Ok(None);
    };
    if size.is_empty() {
        return Ok(None);
    }
    let size = u64::from_be_bytes(size.as_ref().try_into().map_err(|_| damaged())?);
    let note = store.get(&keys::checkpoint(Position::new(size)));
    let note = note.map_err(store_failed)?.ok_or_else(damaged)?;
    let note = std::str::from_utf8(&note).map_err(|_| damaged())?;
    let signed: SignedCheckpoint = note.parse().map_err(|_| damaged())?;
    match signed.size().get() == size {
        true => Ok(Some(signed)),
        false => Err(damaged()),
    }
}

/// Makes the newest checkpoint one that is about no more than `head` events, for a ledger that was
/// made again out of a copy that lacks the end. What was signed for that end is still held by
/// others, who will see that it is gone.
pub(crate) fn forget_beyond(store: &dyn Store, head: Position) -> Result<(), StoreError> {
    let first = keys::checkpoint(Position::START);
    let end = keys::checkpoint(Position::new(head.get().saturating_add(1)));
    let newest = store.range(first.as_slice()..end.as_slice()).last();
    let size = newest.transpose()?.map(|(key, _)| key.slice(1..).to_vec());
    let size = size.unwrap_or_default();
    store.commit(&[(keys::LAST_CHECKPOINT.to_vec(), size)])
}

/// Makes the stored tree that of `frontier`, which was computed from the events: missing nodes are
/// written, other nodes are an error.
pub(crate) fn complete(store: &dyn Store, frontier: &Frontier) -> Result<(), OpenError> {
    let size = frontier.size();
    let stored = last_stored(store, size)?;
    if stored < size {
        backfill(store, stored, size)?;
    }
    let found = stored_frontier(store, size)?;
    match found == *frontier {
        true => Ok(()),
        false => Err(OpenError::TreeDamaged { size }),
    }
}

/// A node of the tree as it is stored. It is not to be trusted before a root was computed from it.
pub(crate) fn stored_node(store: &dyn Store, index: u64) -> Result<TreeHash, OpenError> {
    let node = store.get(&keys::node(index)).map_err(store_failed)?;
    node.and_then(|node| Some(TreeHash::from_bytes(node.as_ref().try_into().ok()?)))
        .ok_or_else(|| OpenError::Store {
            reason: format!("node {index} of the tree is missing"),
        })
}

/// The edge of the stored tree.
pub(crate) fn stored_frontier(store: &dyn Store, size: Position) -> Result<Frontier, OpenError> {
    let read = Frontier::read(size, |index| stored_node(store, index));
    read.map_err(|_: OpenError| OpenError::TreeDamaged { size })
}

/// The largest size up to `size` whose nodes are stored.
fn last_stored(store: &dyn Store, size: Position) -> Result<Position, OpenError> {
    let is_stored = |size: u64| match merkle::stored_count(Position::new(size)).checked_sub(1) {
        Some(last) => store.contains(&keys::node(last)).map_err(store_failed),
        None => Ok(true),
    };
    if is_stored(size.get())? {
        return Ok(size);
    }
    // Nodes are missing at the end only: whoever wrote none did so from some event on.
    let (mut low, mut high) = (0, size.get());
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        match is_stored(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(Position::new(low))
}

fn backfill(store: &dyn Store, from: Position, to: Position) -> Result<(), OpenError> {
    tracing::info!(%from, %to, "writing nodes of the tree that an earlier release did not");
    let mut frontier = stored_frontier(store, from)?;
    let mut writes: Vec<Write> = Vec::new();
    for entry in store.records(from) {
        let (seq, record) = entry.map_err(store_failed)?;
        let record = record::decode(&record).map_err(|e| OpenError::Damaged {
            seq,
            reason: e.to_string(),
        })?;
        frontier.push(&record.hash, |index, node| {
            writes.push((keys::node(index).to_vec(), node.as_bytes().to_vec()));
        });
        if writes.len() >= BACKFILL_NODES {
            store.commit(&writes).map_err(store_failed)?;
            writes.clear();
        }
    }
    match writes.is_empty() {
        true => Ok(()),
        false => store.commit(&writes).map_err(store_failed),
    }
}

impl Shared {
    fn node(&self, index: u64) -> Result<TreeHash, ReadError> {
        let failed = |reason: String| ReadError::Store {
            reason: reason.into(),
        };
        let store = self.store().ok_or(ReadError::Closed)?;
        let node = store.get(&keys::node(index));
        let node = node.map_err(|e| failed(e.to_string()))?;
        node.and_then(|node| Some(TreeHash::from_bytes(node.as_ref().try_into().ok()?)))
            .ok_or_else(|| failed(format!("node {index} of the tree is missing")))
    }

    fn check_durable(&self, size: Position) -> Result<(), ReadError> {
        let head = self.head().position;
        match size <= head {
            true => Ok(()),
            false => Err(ReadError::Proof(ProofError::Beyond {
                wanted: size.get(),
                size: head,
            })),
        }
    }

    pub(crate) fn root_at(&self, size: Position) -> Result<TreeHash, ReadError> {
        self.check_durable(size)?;
        merkle::root(size, |index| self.node(index))
    }

    /// The path from an event to a root that is known, checked.
    pub(crate) fn path(
        &self,
        event: (GlobalSeq, &EventHash),
        size: Position,
        root: &TreeHash,
    ) -> Result<Vec<TreeHash>, ReadError> {
        self.check_durable(size)?;
        let (seq, hash) = event;
        let path = merkle::inclusion_path(seq, size, |index| self.node(index))?;
        match merkle::verify_inclusion(hash, seq, size, &path, root) {
            Ok(()) => Ok(path),
            Err(_) => Err(ReadError::TreeDamaged { size }),
        }
    }

    pub(crate) fn inclusion_proof(
        &self,
        seq: GlobalSeq,
        checkpoint: &SignedCheckpoint,
    ) -> Result<InclusionProof, ReadError> {
        let size = checkpoint.size();
        if seq.position() > size {
            let wanted = seq.get();
            return Err(ReadError::Proof(ProofError::Beyond { wanted, size }));
        }
        self.check_durable(size)?;
        let event = self.read_one(seq)?;
        let path = self.path((seq, &event.hash), size, &checkpoint.root())?;
        Ok(InclusionProof {
            seq,
            path,
            checkpoint: checkpoint.clone(),
        })
    }

    pub(crate) fn consistency_proof(
        &self,
        from: Position,
        checkpoint: &SignedCheckpoint,
    ) -> Result<ConsistencyProof, ReadError> {
        let to = checkpoint.size();
        self.check_durable(to)?;
        let path = merkle::consistency_path(from, to, |index| self.node(index))?;
        let from_root = self.root_at(from)?;
        let proof = ConsistencyProof {
            from,
            path,
            checkpoint: checkpoint.clone(),
        };
        match proof.verify(&from_root) {
            Ok(()) => Ok(proof),
            Err(_) => Err(ReadError::TreeDamaged { size: to }),
        }
    }

    pub(crate) fn checkpoint_at(
        &self,
        size: Position,
    ) -> Result<Option<SignedCheckpoint>, ReadError> {
        let failed = |reason: String| ReadError::Store {
            reason: reason.into(),
        };
        let store = self.store().ok_or(ReadError::Closed)?;
        let note = store.get(&keys::checkpoint(size));
        let Some(note) = note.map_err(|e| failed(e.to_string()))? else {
            return Ok(None);
        };
        let note = std::str::from_utf8(&note).map_err(|e| failed(e.to_string()))?;
        note.parse().map(Some).map_err(|e| failed(format!("{e}")))
    }
}
