//! Proofs as files that can be mailed and checked by programs that know nothing of this ledger.
//!
//! That one event is in the ledger, in the form of C2SP's `tlog-proof`:
//!
//! ```text
//! c2sp.org/tlog-proof@v1
//! index <seq - 1>
//! <base64 of a hash>          the path from the event's leaf to the root, the lowest first
//!
//! <signed checkpoint>
//! ```
//!
//! That one state of the ledger is the beginning of a later one, in the form in which a witness
//! after C2SP's `tlog-witness` takes a new checkpoint:
//!
//! ```text
//! old <size of the older state>
//! <base64 of a hash>
//!
//! <signed checkpoint of the later state>
//! ```
//!
//! Each has one form; a reader that took another would let two files be the same proof.

use std::fmt;
use std::str::FromStr;

use crate::EventHash;
use crate::GlobalSeq;
use crate::Position;
use crate::SignedCheckpoint;
use crate::TreeHash;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::parse_decimal;
use crate::merkle;
use crate::merkle::PROOF_HASHES_MAX;
use crate::merkle::ProofError;

const INCLUSION_FIRST_LINE: &str = "c2sp.org/tlog-proof@v1";

/// Why a file is not a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofFileError {
    /// It does not begin as such a proof does.
    #[error("it does not begin as a proof of this kind")]
    Kind,
    /// A hash is not base64 of 32 bytes, there are too many of them, or no checkpoint follows.
    #[error("it is not at most {PROOF_HASHES_MAX} hashes, an empty line and a checkpoint")]
    Layout,
    /// What follows the hashes is not a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// That an event is in a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InclusionProof {
    /// The event's place.
    pub seq: GlobalSeq,
    /// The hashes from the event to the root, the lowest first.
    pub path: Vec<TreeHash>,
    /// The state of the ledger that the event is in.
    pub checkpoint: SignedCheckpoint,
}

impl InclusionProof {
    /// Checks that the event with this hash is in the ledger that the checkpoint is about. Whether
    /// the right key signed the checkpoint is asked of its note.
    pub fn verify(&self, event: &EventHash) -> Result<(), ProofError> {
        let (size, root) = (self.checkpoint.size(), self.checkpoint.root());
        merkle::verify_inclusion(event, self.seq, size, &self.path, &root)
    }
}

impl fmt::Display for InclusionProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{INCLUSION_FIRST_LINE}\nindex {}", self.seq.get() - 1)?;
        write_hashes(f, &self.path)?;
        write!(f, "\n{}", self.checkpoint)
    }
}

impl FromStr for InclusionProof {
    type Err = ProofFileError;

    fn from_str(text: &str) -> Result<InclusionProof, ProofFileError> {
        let (first, rest) = text.split_once('\n').ok_or(ProofFileError::Kind)?;
        let (index, rest) = rest.split_once('\n').ok_or(ProofFileError::Kind)?;
        let index = index.strip_prefix("index ").and_then(parse_decimal);
        let seq = index.and_then(|index| GlobalSeq::new(index.checked_add(1)?));
        let seq = seq
            .filter(|_| first == INCLUSION_FIRST_LINE)
            .ok_or(ProofFileError::Kind)?;
        let (path, checkpoint) = read_rest(rest)?;
        Ok(InclusionProof {
            seq,
            path,
            checkpoint,
        })
    }
}

/// That a later state of a ledger begins with an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsistencyProof {
    /// The size of the earlier state.
    pub from: Position,
    /// The hashes between the two roots.
    pub path: Vec<TreeHash>,
    /// The later state.
    pub checkpoint: SignedCheckpoint,
}

impl ConsistencyProof {
    /// Checks that the later state begins with the earlier one, whose root is `from_root`.
    pub fn verify(&self, from_root: &TreeHash) -> Result<(), ProofError> {
        let root = self.checkpoint.root();
        let to = (self.checkpoint.size(), &root);
        merkle::verify_consistency((self.from, from_root), to, &self.path)
    }
}

impl fmt::Display for ConsistencyProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "old {}", self.from)?;
        write_hashes(f, &self.path)?;
        write!(f, "\n{}", self.checkpoint)
    }
}

impl FromStr for ConsistencyProof {
    type Err = ProofFileError;

    fn from_str(text: &str) -> Result<ConsistencyProof, ProofFileError> {
        let (first, rest) = text.split_once('\n').ok_or(ProofFileError::Kind)?;
        let from = first.strip_prefix("old ").and_then(parse_decimal);
        let from = Position::new(from.ok_or(ProofFileError::Kind)?);
        let (path, checkpoint) = read_rest(rest)?;
        Ok(ConsistencyProof {
            from,
            path,
            checkpoint,
        })
    }
}

fn write_hashes(f: &mut fmt::Formatter<'_>, hashes: &[TreeHash]) -> fmt::Result {
    hashes
        .iter()
        .try_for_each(|hash| writeln!(f, "{}", hash.to_base64()))
}

fn read_rest(mut rest: &str) -> Result<(Vec<TreeHash>, SignedCheckpoint), ProofFileError> {
    let mut hashes = Vec::new();
    loop {
        let (line, behind) = rest.split_once('\n').ok_or(ProofFileError::Layout)?;
        rest = behind;
        if line.is_empty() {
            return Ok((hashes, rest.parse()?));
        }
        if hashes.len() == PROOF_HASHES_MAX {
            return Err(ProofFileError::Layout);
        }
        hashes.push(TreeHash::parse_base64(line).ok_or(ProofFileError::Layout)?);
    }
}
