//! The walk's side of the tree: each event is in the tree that the first line names, and the key
//! that speaks for it is followed from event to event.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Walk;
use crate::EventHash;
use crate::EventKind;
use crate::GlobalSeq;
use crate::KeyChain;
use crate::Position;
use crate::RecordedEvent;
use crate::RotationError;
use crate::Scope;
use crate::TreeHash;
use crate::evidence::ExportProof;
use crate::evidence::Paths;
use crate::is_rotation;
use crate::merkle::Frontier;
use crate::merkle::root_of_inclusion;
use crate::verify::FaultCode;

/// What the walk knows of the tree so far.
#[derive(Default)]
pub(super) struct Tree {
    /// The keys, once the first line named the first of them.
    pub(super) chain: Option<KeyChain>,
    /// The tree over the events so far, as long as none was missing.
    pub(super) frontier: Frontier,
    /// Whether an event was missing, so that the tree cannot be built on.
    pub(super) is_broken: bool,
    /// The sizes whose roots are asked for at the end.
    pub(super) wanted: BTreeSet<Position>,
    /// The roots at these sizes.
    pub(super) roots: BTreeMap<Position, TreeHash>,
    /// What checkpoints of the ledger's own keys say, wherever they stand.
    pub(super) signed: BTreeMap<Position, TreeHash>,
    /// The event that a proof must follow.
    pending: Option<(GlobalSeq, EventKind, EventHash, u64)>,
    paths: Paths,
}

impl Walk<'_> {
    /// Whether the export is one stream with proofs.
    pub(super) fn proves_events(&self) -> bool {
        let scope = self.report.scope.as_ref();
        self.tree_head().is_some() && scope.is_some_and(|scope| *scope != Scope::WholeLedger)
    }

    /// Takes an event that stands in its order.
    pub(super) fn take_leaf(&mut self, event: &RecordedEvent) {
        let beyond = |size: Position| event.seq().position() > size;
        let is_unsigned = self.tree_head().is_some_and(|tree| beyond(tree.size));
        if is_unsigned {
            let detail = "it lies beyond the checkpoint of the export";
            self.fault(FaultCode::EventUnsigned, detail);
        } else if self.proves_events() {
            let (seq, kind) = (event.seq(), event.header.kind.clone());
            self.tree.pending = Some((seq, kind, event.hash, self.line));
        }
        if self.tree.frontier.size().next_seq() != event.seq() {
            self.tree.is_broken = true;
        }
        if is_rotation(event) {
            self.take_rotation(event);
        }
        if !self.tree.is_broken {
            let tree = &mut self.tree;
            tree.frontier.push(&event.hash, |_, _| {});
            let size = tree.frontier.size();
            if tree.wanted.contains(&size) {
                tree.roots.insert(size, tree.frontier.root());
            }
        }
    }

    fn take_rotation(&mut self, event: &RecordedEvent) {
        let Some(chain) = &mut self.tree.chain else {
            return;
        };
        let seal = match chain.follow(event) {
            Ok(seal) => seal,
            Err(e) => {
                let code = match &e {
                    RotationError::Payload | RotationError::NewKey(_) => FaultCode::RotationForm,
                    RotationError::OldKey { .. } => FaultCode::RotationKey,
                    RotationError::Signature => FaultCode::RotationSignature,
                    RotationError::Seal => FaultCode::RotationSeal,
                };
                return self.fault(code, e.to_string());
            }
        };
        if self.signs_a_fork(seal.size(), seal.root()) {
            return;
        }
        let tree = &self.tree;
        if !tree.is_broken && tree.frontier.root() != seal.root() {
            let detail = "the key that was handed on had signed other events before it";
            self.fault(FaultCode::HistoryRewritten, detail);
        }
    }

    /// Notes what a good checkpoint says, and whether another good one says otherwise.
    pub(super) fn signs_a_fork(&mut self, size: Position, root: TreeHash) -> bool {
        let first = *self.tree.signed.entry(size).or_insert(root);
        if first != root {
            let detail = format!("two roots were signed for {size} events: {first} and {root}");
            self.fault(FaultCode::CheckpointFork, detail);
        }
        first != root
    }

    pub(super) fn take_proof(&mut self, proof: &ExportProof) {
        let pending = self.tree.pending.take();
        let tree = self.tree_head();
        let (Some((seq, kind, hash, _)), Some(tree)) = (pending, tree) else {
            return self.fault(FaultCode::ProofForeign, "it proves no event before it");
        };
        self.current = Some((seq, kind));
        if proof.seq != seq {
            let detail = format!("it is a proof of event {}", proof.seq);
            self.fault(FaultCode::ProofForeign, detail);
        } else {
            self.report.proofs += 1;
            let path = self.tree.paths.complete(seq, tree.size, &proof.hashes);
            let root = path.and_then(|path| root_of_inclusion(&hash, seq, tree.size, path));
            match root {
                Ok(root) if root == tree.root => {}
                Ok(_) => {
                    let detail = "the event is not in the tree that the first line names";
                    self.fault(FaultCode::ProofInvalid, detail);
                }
                Err(e) => self.fault(FaultCode::ProofForm, e.to_string()),
            }
        }
        self.current = None;
    }

    /// Whatever comes now, the proof that should have come before it is not there.
    pub(super) fn miss_proof(&mut self) {
        if let Some((seq, kind, _, line)) = self.tree.pending.take() {
            let current = self.current.replace((seq, kind));
            let here = std::mem::replace(&mut self.line, line);
            self.fault(FaultCode::ProofMissing, "no proof follows it");
            self.line = here;
            self.current = current;
        }
    }
}
