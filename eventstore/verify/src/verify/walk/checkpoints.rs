//! The walk's end: the checkpoint in the export, and those that the caller held elsewhere.

use super::Walk;
use crate::ConsistencyProof;
use crate::NoteVerdict;
use crate::Position;
use crate::Scope;
use crate::SignedCheckpoint;
use crate::TreeHash;
use crate::merkle::verify_consistency;
use crate::verify::FaultCode;

impl Walk<'_> {
    /// Checks the checkpoint in the last line.
    pub(super) fn check_checkpoint(&mut self, note: Option<&str>) {
        let tree = self.tree_head();
        let Some(note) = note else {
            self.miss_checkpoint();
            return;
        };
        let Some(tree) = tree else {
            let detail = "a checkpoint in an export that names no state of the tree";
            return self.fault(FaultCode::MalformedLine, detail);
        };
        let Some(signed) = self.read_checkpoint(note) else {
            return;
        };
        let mut holds = true;
        if signed.size() != tree.size {
            let detail = format!(
                "{} events, the first line says {}",
                signed.size(),
                tree.size
            );
            self.fault(FaultCode::CheckpointSize, detail);
            holds = false;
        } else if signed.root() != tree.root {
            let detail = "it names another root than the first line";
            self.fault(FaultCode::CheckpointRoot, detail);
            holds = false;
        }
        holds &= self.check_tree_head(tree.size, tree.root);
        let is_signed = self.judge(&signed);
        if is_signed && !self.signs_a_fork(signed.size(), signed.root()) && holds {
            self.report.checkpoint = Some(signed.checkpoint().clone());
        }
    }

    fn miss_checkpoint(&mut self) {
        let Some(header) = &self.header else {
            // Nothing can be said of an export without knowing whose it is.
            return;
        };
        if header.tree.is_some() || self.options.key.is_some() {
            let detail = "the export bears no checkpoint, so that nobody signs for it";
            self.fault(FaultCode::CheckpointMissing, detail);
        } else if !self.options.allow_unsigned {
            let detail =
                "an export of format 1 bears no signature: whoever has it can have written it anew";
            self.fault(FaultCode::Unsigned, detail);
        }
    }

    /// Whether the events of a whole ledger give the root in the first line.
    fn check_tree_head(&mut self, size: Position, root: TreeHash) -> bool {
        if self.proves_events() || self.tree.is_broken {
            return true;
        }
        match self.tree.roots.get(&size) {
            Some(found) if *found == root => return true,
            Some(found) => {
                let detail = format!("the events give the root {found}");
                self.fault(FaultCode::TreeRoot, detail);
            }
            None => {
                let events = self.tree.frontier.size();
                let detail = format!("it is about {size} events, there are {events}");
                self.fault(FaultCode::CheckpointBeyond, detail);
            }
        }
        false
    }

    fn read_checkpoint(&mut self, note: &str) -> Option<SignedCheckpoint> {
        let signed: SignedCheckpoint = match note.parse() {
            Ok(signed) => signed,
            Err(e) => {
                self.fault(FaultCode::CheckpointForm, format!("{e}"));
                return None;
            }
        };
        let origin = &signed.checkpoint().origin;
        let genesis = self.report.genesis.as_ref();
        if genesis.is_some_and(|genesis| genesis.origin != *origin) {
            let detail = format!("it is of {origin:?}");
            self.fault(FaultCode::CheckpointOrigin, detail);
            return None;
        }
        Some(signed)
    }

    /// Whether the one key that may speak for this state signed the checkpoint.
    fn judge(&mut self, signed: &SignedCheckpoint) -> bool {
        let Some(chain) = &self.tree.chain else {
            return false;
        };
        let verdict = |key| signed.note().verdict(key);
        let own = chain.key_at(signed.size()).map(verdict);
        let is_of_another = chain
            .keys()
            .iter()
            .any(|(_, key)| verdict(key) == NoteVerdict::Signed);
        let size = signed.size();
        let (code, detail) = match own {
            Some(NoteVerdict::Signed) => return true,
            Some(NoteVerdict::Forged) => (
                FaultCode::CheckpointSignature,
                format!("the signature over the checkpoint of {size} events is not the key's"),
            ),
            _ if is_of_another => (
                FaultCode::CheckpointKey,
                format!("a key signed for {size} events at whose time another one spoke"),
            ),
            _ => (
                FaultCode::CheckpointUnsigned,
                format!("the checkpoint of {size} events is not signed by the ledger's key"),
            ),
        };
        self.fault(code, detail);
        false
    }

    /// Holds the export against what the caller noted down outside.
    pub(super) fn check_held(&mut self) {
        let options = self.options;
        for note in &options.against {
            if let Some(held) = self.read_checkpoint(note)
                && self.judge(&held)
                && !self.signs_a_fork(held.size(), held.root())
            {
                match &self.report.scope {
                    Some(Scope::OneStream(_)) => self.hold_against_stream(&held),
                    _ => self.hold_against_ledger(&held),
                }
            }
        }
        if let Some(key) = &options.key {
            let keys = self.tree.chain.as_ref().map(|chain| chain.keys());
            let is_known = keys.is_some_and(|keys| keys.iter().any(|(_, known)| known == key));
            if !is_known {
                let detail = format!("no key of this ledger is {key}");
                self.fault(FaultCode::KeyUnexpected, detail);
            }
        }
    }

    fn hold_against_ledger(&mut self, held: &SignedCheckpoint) {
        let size = held.size();
        match self.tree.roots.get(&size).copied() {
            Some(root) if root == held.root() => {
                self.report.held = self.report.held.max(Some(size));
            }
            Some(_) => {
                let detail = format!("the first {size} events are not those that were signed");
                self.fault(FaultCode::HistoryRewritten, detail);
            }
            // Which events are missing was said where they are.
            None if self.tree.is_broken && self.last_position() >= size => {}
            None => {
                let events = self.last_position();
                let detail = format!("{size} events were signed, there are {events}");
                self.fault(FaultCode::TailMissing, detail);
            }
        }
    }

    fn last_position(&self) -> Position {
        self.last
            .as_ref()
            .map_or(Position::START, |last| last.seq.position())
    }

    /// A stream does not give the root of other states: that takes a proof.
    fn hold_against_stream(&mut self, held: &SignedCheckpoint) {
        let Some(tree) = self.tree_head() else {
            let detail = "events of one stream without proofs give no root";
            return self.fault(FaultCode::AgainstUnproven, detail);
        };
        if held.size() == tree.size {
            // Two signatures for one size were compared; without a good one in the export, this is
            // the comparison that counts.
            if held.root() != tree.root {
                let detail = "the export names another root than the checkpoint held";
                self.fault(FaultCode::HistoryRewritten, detail);
            }
            return;
        }
        let held_end = (held.size(), held.root());
        let tree_end = (tree.size, tree.root);
        let (from, to) = match held.size() < tree.size {
            true => (held_end, tree_end),
            false => (tree_end, held_end),
        };
        let fits =
            |proof: &&ConsistencyProof| proof.from == from.0 && proof.checkpoint.size() == to.0;
        let proof = self.options.consistency.iter().find(fits);
        let Some(proof) = proof else {
            let (from, to) = (from.0, to.0);
            let detail = format!(
                "it takes a proof of consistency from {from} to {to} events, which \
                 `fluxctl ledger prove-consistency {from} {to}` fetches"
            );
            return self.fault(FaultCode::AgainstUnproven, detail);
        };
        if let Err(e) = verify_consistency((from.0, &from.1), (to.0, &to.1), &proof.path) {
            self.fault(FaultCode::HistoryRewritten, e.to_string());
        }
    }
}
