//! The offline verifier: reads an export once, from front to back, and lists every fault.
//!
//! It never stops at the first fault: what matters after an incident is how far the damage goes. It
//! needs no more memory than a few lines for each core, one number per stream, one range per gap,
//! a few numbers per session with a budget and per erased event that waits for its order, the names of blobs where there are any, and the faults
//! themselves.

mod budget;
mod check;
mod erasure;
mod fault;
mod lines;
mod walk;

use std::io::BufRead;

pub use budget::BudgetUse;
pub use erasure::Redaction;
pub use fault::Fault;
pub use fault::FaultCode;

use crate::Checkpoint;
use crate::ConsistencyProof;
use crate::EventHash;
use crate::Genesis;
use crate::GlobalSeq;
use crate::LedgerId;
use crate::Position;
use crate::StreamName;
use crate::VerifierKey;
use crate::export::LINE_BYTES_MAX;

/// How many faults a report lists; beyond them it only counts. A damaged file must not exhaust
/// memory.
pub const FAULTS_LISTED_MAX: usize = 1_000_000;

/// What an export covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every event of the ledger from the first on.
    WholeLedger,
    /// The events of one stream. What lies between them can be left out by whoever made the export.
    OneStream(StreamName),
}

/// What to hold an export against, beside itself.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The longest line that is read, in bytes.
    pub line_bytes_max: usize,
    /// The ledger that the export must be of, where the caller knows.
    pub ledger_id: Option<LedgerId>,
    /// Events that were noted down earlier outside the ledger. Each must still be there with the
    /// same hash. This is what catches a cut tail and a ledger that was linked anew.
    pub known: Vec<(GlobalSeq, EventHash)>,
    /// A key that the ledger must have had at some time. Without it the export is believed who
    /// speaks for it.
    pub key: Option<VerifierKey>,
    /// Take an export of format 1, which bears no signature: whoever has it could have written it
    /// anew. Without this it is refused, and with a `key` it is in any case.
    pub allow_unsigned: bool,
    /// Checkpoints, as notes, that were kept elsewhere. Each must be the ledger's own and the
    /// export must be of a ledger that goes through it. This too catches a cut tail and a ledger
    /// that was linked anew.
    pub against: Vec<String>,
    /// What shows the checkpoint of a stream's export to be consistent with those kept elsewhere.
    /// The export of a whole ledger needs no such proof.
    pub consistency: Vec<ConsistencyProof>,
}

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            line_bytes_max: LINE_BYTES_MAX,
            ledger_id: None,
            known: Vec::new(),
            key: None,
            allow_unsigned: false,
            against: Vec::new(),
            consistency: Vec::new(),
        }
    }
}

/// The stored content that events name as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentCount {
    /// How many blobs are named.
    pub named: u64,
    /// How many of them are in the export.
    pub present: u64,
}

/// What the verifier found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The faults in the order of the lines; behind them what only the whole of the file shows.
    pub faults: Vec<Fault>,
    /// How many faults there are, also where not all of them are listed.
    pub faults_total: u64,
    /// How many event lines were read.
    pub events: u64,
    /// How many streams they belong to.
    pub streams: u64,
    /// How many of the events had been redacted.
    pub redacted: u64,
    /// Which ones, as far as they are listed, each with the event that ordered it.
    pub redactions: Vec<Redaction>,
    /// How many proofs of single events were read.
    pub proofs: u64,
    /// How many blobs were read whole.
    pub blobs: u64,
    /// How much of the stored content that the events name is here.
    pub content: ContentCount,
    /// The checkpoint of the export, where the right key signed it and the events give it.
    pub checkpoint: Option<Checkpoint>,
    /// Up to where a checkpoint or a noted event that was held against the export of a whole ledger
    /// binds its events.
    pub held: Option<Position>,
    /// The keys that spoke for the ledger, each with the size from which on it did.
    pub keys: Vec<(Position, VerifierKey)>,
    /// The last event and its hash.
    pub head: Option<(GlobalSeq, EventHash)>,
    /// The budgets of the sessions, and how much of each limit was given out. Empty where no session has one.
    pub budgets: Vec<BudgetUse>,
    /// What the export says of the ledger.
    pub genesis: Option<Genesis>,
    /// What the export says it covers.
    pub scope: Option<Scope>,
}

impl Report {
    /// Whether not a single fault was found.
    pub fn is_clean(&self) -> bool {
        self.faults_total == 0
    }

    /// Whether the ledger's key signed for what the export holds. Of one without any fault that is
    /// not so only where [`VerifyOptions::allow_unsigned`] took it all the same.
    pub fn is_signed(&self) -> bool {
        self.checkpoint.is_some()
    }

    fn add(&mut self, fault: Fault) {
        self.faults_total += 1;
        if self.faults.len() < FAULTS_LISTED_MAX {
            self.faults.push(fault);
        }
    }
}

/// Checks an export against itself and against what the options name.
///
/// A failure to read is a fault of its own ([`FaultCode::Unreadable`]) and ends the walk.
pub fn verify_export(reader: impl BufRead, options: &VerifyOptions) -> Report {
    walk::walk(reader, options)
}
