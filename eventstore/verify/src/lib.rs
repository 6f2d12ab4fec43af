//! The ledger's format and the offline verifier.
//!
//! This crate is the whole of what an auditor has to read to trust a verdict: how an event is
//! encoded ([`Header`]), how it is hashed and linked ([`event_hash`], [`payload_commitment`],
//! [`Genesis`]), how a ledger is written out as JSON lines ([`export`]) and how such an export is
//! checked ([`verify_export`]). It holds no store, no network and no async runtime, and it writes
//! nothing.
//!
//! What a clean report promises: the events of the export are the bytes that were hashed, in the
//! order in which they were linked, with none missing between the first and the last. What it
//! cannot promise without something noted down outside: that the tail was not cut off, and that
//! nobody who held the whole ledger linked all of it anew. [`VerifyOptions::known`] is where such a
//! note goes in.
//!
//! The bytes are laid down in `docs/LEDGER.md`, and a test refuses a change here that is not there.

mod canonical;
mod checkpoint;
mod event;
pub mod evidence;
pub mod export;
mod genesis;
mod hash;
mod header;
mod ids;
pub mod merkle;
mod names;
mod note;
mod rotation;
mod time;
mod tlog_proof;
mod verify;

pub use canonical::INTEGER_MAGNITUDE_MAX;
pub use canonical::JSON_DEPTH_MAX;
pub use canonical::NotCanonical;
pub use canonical::check_canonical;
pub use checkpoint::Checkpoint;
pub use checkpoint::CheckpointError;
pub use checkpoint::SignedCheckpoint;
pub use event::Payload;
pub use event::RecordedEvent;
pub use genesis::Genesis;
pub use genesis::GenesisError;
pub use hash::EventHash;
pub use hash::HashParseError;
pub use hash::event_hash;
pub use hash::event_hash_of_encoded;
pub use hash::payload_commitment;
pub use header::FORMAT_VERSION;
pub use header::HEADER_BYTES_MAX;
pub use header::Header;
pub use header::HeaderError;
pub use ids::CommandId;
pub use ids::CorrelationId;
pub use ids::EventId;
pub use ids::GlobalSeq;
pub use ids::LedgerId;
pub use ids::Position;
pub use ids::StreamVersion;
pub use merkle::ProofError;
pub use merkle::TreeHash;
pub use names::ACTOR_BYTES_MAX;
pub use names::Actor;
pub use names::EVENT_KIND_BYTES_MAX;
pub use names::EventKind;
pub use names::NameError;
pub use names::STREAM_NAME_BYTES_MAX;
pub use names::StreamName;
pub use note::KeyError;
pub use note::NOTE_BYTES_MAX;
pub use note::NOTE_SIGNATURES_MAX;
pub use note::NoteError;
pub use note::NoteSignature;
pub use note::NoteVerdict;
pub use note::SignedNote;
pub use note::VerifierKey;
pub use rotation::KEY_ROTATED_KIND;
pub use rotation::KEY_ROTATED_SCHEMA;
pub use rotation::KeyChain;
pub use rotation::KeyRotated;
pub use rotation::LEDGER_STREAM;
pub use rotation::RotationError;
pub use rotation::is_rotation;
pub use rotation::rotation_message;
pub use time::RecordedAt;
pub use time::TimeParseError;
pub use tlog_proof::ConsistencyProof;
pub use tlog_proof::InclusionProof;
pub use tlog_proof::ProofFileError;
pub use verify::BudgetUse;
pub use verify::ContentCount;
pub use verify::FAULTS_LISTED_MAX;
pub use verify::Fault;
pub use verify::FaultCode;
pub use verify::Redaction;
pub use verify::Report;
pub use verify::Scope;
pub use verify::VerifyOptions;
pub use verify::verify_export;

/// The largest payload that an event may carry, in bytes: output above it belongs in a blob.
pub const PAYLOAD_BYTES_MAX: u32 = 4 * 1024 * 1024;
