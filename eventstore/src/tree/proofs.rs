//! Proofs out of the stored tree, and the checkpoints that they lead to.

use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::InclusionProof;
use fluxvm_verify::Position;
use fluxvm_verify::ProofError;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::merkle;

use super::blocks::BLOCK_LEVEL;
use super::blocks::Block;
use super::blocks::OpenBlock;
use super::blocks::stored_node;
use crate::ReadError;
use crate::keys;
use crate::shared::Shared;

impl Shared {
    /// Gives nodes of the tree, as it is in memory and in the store.
    fn nodes(&self) -> impl FnMut(u64) -> Result<TreeHash, ReadError> + '_ {
        // The open block is looked at before the store is, which then has every block that is no
        // longer open. What is durable does not change, so once is enough.
        let mut open = None;
        move |index| {
            let failed = |reason: String| ReadError::Store {
                reason: reason.into(),
            };
            if let Some(node) = self.latest_block().and_then(|block| block.node(index)) {
                return Ok(node);
            }
            let (number, leaves) = open.get_or_insert_with(|| {
                let memory = self.memory();
                let block = memory.end().get().saturating_sub(1) >> BLOCK_LEVEL;
                (block, memory.leaves().to_vec())
            });
            let open = OpenBlock {
                number: *number,
                leaves,
            };
            let store = self.store().ok_or(ReadError::Closed)?;
            let node = match Block::around(&*store, index, &open) {
                Ok(Some(block)) => {
                    let node = block.node(index);
                    self.keep_block(block);
                    Ok(node)
                }
                Ok(None) => stored_node(&*store, index, &open),
                Err(e) => Err(e),
            };
            let node = node.map_err(|e| failed(e.to_string()))?;
            node.ok_or_else(|| failed(format!("node {index} of the tree is missing")))
        }
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
        merkle::root(size, self.nodes())
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
        let path = merkle::inclusion_path(seq, size, self.nodes())?;
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
        let path = merkle::consistency_path(from, to, self.nodes())?;
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
