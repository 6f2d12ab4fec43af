//! What can be wrong with an export. Each way has a code of its own, which never changes its
//! meaning.

use std::fmt;

use serde::Serialize;

use crate::EventKind;
use crate::GlobalSeq;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// What is wrong.
    pub code: FaultCode,
    /// The line on which it shows, from 1.
    pub line: u64,
    /// The event concerned, as its line names it.
    pub seq: Option<GlobalSeq>,
    /// The kind of that event.
    pub kind: Option<EventKind>,
    /// The facts, for a reader.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.code)?;
        if let Some(seq) = self.seq {
            write!(f, ", event {seq}")?;
        }
        if let Some(kind) = &self.kind {
            write!(f, " ({kind})")?;
        }
        write!(f, ": {}", self.detail)
    }
}

macro_rules! fault_codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// The ways in which an export can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum FaultCode {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)*
        }

        impl FaultCode {
            /// Every code there is.
            pub const ALL: &[FaultCode] = &[$(FaultCode::$variant,)*];

            /// The code as reports print it.
            pub const fn as_str(self) -> &'static str {
                match self { $(FaultCode::$variant => $code,)* }
            }
        }
    };
}

fault_codes! {
    /// The file could not be read on.
    Unreadable = "unreadable",
    /// A line is longer than any line of an export.
    LineTooLong = "line_too_long",
    /// A line is not a line of an export.
    MalformedLine = "malformed_line",
    /// A line is of a type that this verifier does not know.
    UnknownLine = "unknown_line",
    /// A line says something readable in another form than the writer's.
    LineForm = "line_form",
    /// The first line does not say which ledger this is.
    HeaderMissing = "header_missing",
    /// The header names a format that this verifier does not know.
    FormatUnknown = "format_unknown",
    /// The header's genesis hash is not that of the header's own fields.
    GenesisHash = "genesis_hash",
    /// The header is not that of the ledger which the caller asked about.
    LedgerUnexpected = "ledger_unexpected",
    /// A second header of the same ledger.
    HeaderRepeated = "header_repeated",
    /// A header of another ledger among the lines of this one.
    HeaderForeign = "header_foreign",
    /// The first event does not follow from the header's genesis: header and events are of two
    /// ledgers.
    GenesisLink = "genesis_link",
    /// The payload is not as long as the header of its event says.
    PayloadLength = "payload_length",
    /// The payload or its salt was changed.
    PayloadCommitment = "payload_commitment",
    /// The payload is not canonical JSON.
    PayloadForm = "payload_form",
    /// The header, the predecessor or the hash of an event was changed.
    EventHash = "event_hash",
    /// The same, of an event whose payload is redacted: the redaction does not leave the chain as
    /// it was.
    RedactedHash = "redacted_hash",
    /// The event does not follow from the one before it.
    LinkBroken = "link_broken",
    /// Events are missing before this one.
    SeqGap = "seq_gap",
    /// The event stands behind one that comes later in the ledger.
    SeqOrder = "seq_order",
    /// The event was there before.
    EventRepeated = "event_repeated",
    /// Events of the stream are missing before this one.
    VersionGap = "version_gap",
    /// The stream had reached this version before.
    VersionRepeated = "version_repeated",
    /// The event belongs to another stream than the export.
    StreamForeign = "stream_foreign",
    /// The event was recorded earlier than the one before it.
    TimeBackwards = "time_backwards",
    /// The export has no last line: it was cut off.
    Truncated = "truncated",
    /// Something follows the last line.
    AfterEnd = "after_end",
    /// The last line counts other events than there are.
    EndCount = "end_count",
    /// The last line names another last event than there is.
    EndHead = "end_head",
    /// The genesis names a key that is none.
    KeyForm = "key_form",
    /// The key that the caller named never spoke for this ledger.
    KeyUnexpected = "key_unexpected",
    /// An event lies beyond the checkpoint of its export: nobody signed for it.
    EventUnsigned = "event_unsigned",
    /// The events are not those of the tree that the first line names.
    TreeRoot = "tree_root",
    /// No proof follows an event that needs one.
    ProofMissing = "proof_missing",
    /// A proof that belongs to no event before it.
    ProofForeign = "proof_foreign",
    /// A proof does not have the hashes that the event's place in the tree asks for.
    ProofForm = "proof_form",
    /// The event is not in the tree that the first line names.
    ProofInvalid = "proof_invalid",
    /// The export bears no signature of the ledger's key, and the caller did not say that it needs none.
    Unsigned = "unsigned",
    /// The export bears no checkpoint where there must be one.
    CheckpointMissing = "checkpoint_missing",
    /// What should be a signed checkpoint is none.
    CheckpointForm = "checkpoint_form",
    /// The checkpoint is of another ledger.
    CheckpointOrigin = "checkpoint_origin",
    /// The checkpoint is of another size than the first line says.
    CheckpointSize = "checkpoint_size",
    /// The checkpoint names another root than the first line.
    CheckpointRoot = "checkpoint_root",
    /// The checkpoint is of more events than there are.
    CheckpointBeyond = "checkpoint_beyond",
    /// The key that may speak for the checkpoint did not sign it.
    CheckpointUnsigned = "checkpoint_unsigned",
    /// The signature is not the key's.
    CheckpointSignature = "checkpoint_signature",
    /// A key signed that did not speak for the ledger at that size.
    CheckpointKey = "checkpoint_key",
    /// The ledger's own keys signed two roots for one size.
    CheckpointFork = "checkpoint_fork",
    /// The ledger ends before a checkpoint that was kept elsewhere.
    TailMissing = "tail_missing",
    /// The events are not those that a checkpoint was signed over earlier.
    HistoryRewritten = "history_rewritten",
    /// Nothing shows an export of one stream to be consistent with a checkpoint kept elsewhere.
    AgainstUnproven = "against_unproven",
    /// The event that hands the key on cannot be read as one.
    RotationForm = "rotation_form",
    /// The event hands on a key that was not the ledger's.
    RotationKey = "rotation_key",
    /// The old key did not sign for the new one.
    RotationSignature = "rotation_signature",
    /// The event does not hold the old key's checkpoint over all events before it.
    RotationSeal = "rotation_seal",
    /// The parts of a blob do not make it whole.
    BlobForm = "blob_form",
    /// A blob is not what its digest says.
    BlobDigest = "blob_digest",
    /// No event refers to the blob.
    BlobForeign = "blob_foreign",
    /// The blob was there before.
    BlobRepeated = "blob_repeated",
    /// An event names the blob, the first line says that content came along, and it is not there.
    BlobMissing = "blob_missing",
    /// The payload is erased and no later event ordered that.
    RedactionUnordered = "redaction_unordered",
    /// An event that the caller noted down is not there.
    KnownMissing = "known_missing",
    /// An event that the caller noted down has another hash: the ledger was linked anew.
    KnownDiffers = "known_differs",
    /// A session was let have more than its budget.
    BudgetExceeded = "budget_exceeded",
    /// What an event says of a budget, or of what is counted against one, cannot be read.
    BudgetForm = "budget_form",
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
