//! What a handle gives to those who want proof: checkpoints, proofs, evidence and keys.

use std::sync::Arc;

use fluxvm_verify::ConsistencyProof;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::InclusionProof;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::TreeHash;
use fluxvm_verify::VerifierKey;
use tokio::sync::oneshot;
use tokio::sync::watch;

use super::Ledger;
use crate::EvidenceOptions;
use crate::KeyRotation;
use crate::ReadError;
use crate::SignError;
use crate::committer::Request;
use crate::evidence;

impl Ledger {
    /// The lines of an export as evidence: the events up to the checkpoint, proven to be in it.
    ///
    /// The checkpoint is one that this ledger signed, from [`Ledger::checkpoint`] for instance.
    /// Blocks while it is iterated. Stops at the first error.
    pub fn evidence(
        &self,
        options: EvidenceOptions,
        checkpoint: Arc<SignedCheckpoint>,
    ) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, ReadError> {
        evidence::lines(Arc::clone(&self.inner.shared), options, checkpoint)
    }

    /// The signed checkpoint of all that is durable now.
    pub async fn checkpoint(&self) -> Result<Arc<SignedCheckpoint>, SignError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Checkpoint(reply)).await?;
        answer.await.map_err(|_| self.gone_signing())?
    }

    /// Signs a checkpoint if there are events without one and enough time has gone by on the
    /// clock. The ledger does this by itself; this is for whoever moves the clock.
    pub async fn checkpoint_if_due(&self) -> Result<(), SignError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Tick(Some(reply))).await?;
        answer.await.map_err(|_| self.gone_signing())
    }

    /// The newest signed checkpoint, and each one after it. Some may be passed over by whoever is
    /// slower than they come; the newest says all that those before it said.
    pub fn checkpoints(&self) -> watch::Receiver<Option<Arc<SignedCheckpoint>>> {
        self.inner.checkpoints.clone()
    }

    /// The checkpoint that was signed at this size, if one was. Blocks.
    pub fn checkpoint_at(&self, size: Position) -> Result<Option<SignedCheckpoint>, ReadError> {
        self.inner.shared.checkpoint_at(size)
    }

    /// Hands the ledger's key on to a new one, and returns the event that says so.
    pub async fn rotate_key(&self, rotation: KeyRotation) -> Result<Arc<RecordedEvent>, SignError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Request::Rotate(Box::new(rotation), reply)).await?;
        answer.await.map_err(|_| self.gone_signing())?
    }

    /// The keys that spoke for the ledger, the oldest first, each with the size from which on it
    /// does.
    pub fn keys(&self) -> Vec<(Position, VerifierKey)> {
        self.inner.shared.chain().keys().to_vec()
    }

    /// The root of the tree over the first events. Blocks.
    pub fn root_at(&self, size: Position) -> Result<TreeHash, ReadError> {
        self.inner.shared.root_at(size)
    }

    /// That an event is in the state that the checkpoint is about. Blocks.
    pub fn inclusion_proof(
        &self,
        seq: GlobalSeq,
        checkpoint: &SignedCheckpoint,
    ) -> Result<InclusionProof, ReadError> {
        self.inner.shared.inclusion_proof(seq, checkpoint)
    }

    /// That the state that the checkpoint is about begins with the first `from` events. Blocks.
    pub fn consistency_proof(
        &self,
        from: Position,
        checkpoint: &SignedCheckpoint,
    ) -> Result<ConsistencyProof, ReadError> {
        self.inner.shared.consistency_proof(from, checkpoint)
    }

    async fn ask(&self, request: Request) -> Result<(), SignError> {
        let queue = self.inner.queue.as_ref().ok_or(SignError::Closed)?;
        queue.send(request).await.map_err(|_| self.gone_signing())
    }

    fn gone_signing(&self) -> SignError {
        match self.inner.shared.poisoned() {
            Some(reason) => SignError::Poisoned { reason },
            None => SignError::Closed,
        }
    }
}
