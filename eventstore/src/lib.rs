//! The ledger: an append-only, hash-chained log of events, and everything else follows from it.
//!
//! One thread, the committer, owns the chain. Writers queue; it checks where each stream has to be,
//! links the events, writes one batch, syncs it and only then answers. What is answered for is
//! durable: after a crash, a power loss or `kill -9` it is there, and opening proves it by checking
//! every link.
//!
//! Three words are used strictly. An event is *appended* when a writer handed it in, *committed*
//! when it has its place in the chain, and *durable* when the disk has confirmed it. Readers and
//! subscribers see durable events only, up to the watermark ([`Ledger::head`]).
//!
//! What this crate refuses: to go on after a failed sync (the ledger is then
//! [poisoned][Ledger::poisoned] for good and the process has to start anew), to open a ledger in
//! which a single byte under a hash has changed, and to know what any event means.

mod append;
mod archive;
mod blobs;
mod checkpointer;
mod committer;
mod environment;
mod error;
mod evidence;
mod export;
mod files;
mod follower;
mod group;
mod head_file;
mod idempotency;
mod keys;
mod ledger;
mod memory;
mod open;
mod prepare;
mod pruning;
mod rebuild;
mod record;
mod redact;
mod rotate;
mod seal;
mod shared;
mod shred;
mod signing_key;
mod sinks;
mod snapshot;
mod state;
mod store;
mod subscribe;
mod sync_times;
mod tree;

pub use append::APPEND_BYTES_MAX;
pub use append::APPEND_EVENTS_MAX;
pub use append::ATTACHMENT_BYTES_MAX;
pub use append::Append;
pub use append::AppendError;
pub use append::Appended;
pub use append::ExpectedVersion;
pub use append::NewEvent;
pub use append::PayloadError;
pub use append::StreamAppend;
pub use archive::ArchiveFailure;
pub use archive::ArchiveOptions;
pub use archive::ArchiveStatus;
pub use archive::RebuildError;
pub use archive::RebuiltLedger;
pub use archive::rebuild_from_archive;
pub use blobs::BLOB_BYTES_MAX;
pub use blobs::BlobDigest;
pub use blobs::BlobError;
pub use checkpointer::CHECKPOINT_INTERVAL;
pub use checkpointer::SignError;
pub use environment::Clock;
pub use environment::Disk;
pub use environment::Entropy;
pub use environment::Environment;
pub use environment::StoreKind;
pub use error::OpenError;
pub use error::ReadError;
pub use evidence::Content;
pub use evidence::EvidenceOptions;
pub use evidence::nothing_required;
pub use export::ExportScope;
pub use follower::Follower;
pub use ledger::ArchiveInfo;
pub use ledger::Head;
pub use ledger::Ledger;
pub use ledger::LedgerInfo;
pub use ledger::LedgerOptions;
pub use ledger::Observer;
pub use prepare::KeptBlob;
pub use pruning::CHECKPOINTS_KEPT_MAX;
pub use redact::REDACTION_BLOBS_MAX;
pub use redact::REDACTION_EVENTS_MAX;
pub use redact::RedactError;
pub use redact::Redaction;
pub use rotate::KeyRotation;
pub use seal::NewStreams;
pub use seal::SealOptions;
pub use shred::Shred;
pub use shred::ShredError;
pub use sinks::CheckpointSink;
pub use sinks::FolderSink;
pub use sinks::push_checkpoints;
pub use snapshot::SNAPSHOT_EVENTS;
pub use snapshot::SnapshotOptions;
pub use store::file_system::FileSystem;
pub use store::file_system::StoreFile;
pub use subscribe::Filter;
pub use subscribe::Subscription;

pub use fluxvm_verify::Actor;
pub use fluxvm_verify::CommandId;
pub use fluxvm_verify::ConsistencyProof;
pub use fluxvm_verify::CorrelationId;
pub use fluxvm_verify::EventHash;
pub use fluxvm_verify::EventId;
pub use fluxvm_verify::EventKind;
pub use fluxvm_verify::Genesis;
pub use fluxvm_verify::GlobalSeq;
pub use fluxvm_verify::Header;
pub use fluxvm_verify::InclusionProof;
pub use fluxvm_verify::LedgerId;
pub use fluxvm_verify::NameError;
pub use fluxvm_verify::PAYLOAD_BYTES_MAX;
pub use fluxvm_verify::Payload;
pub use fluxvm_verify::Position;
pub use fluxvm_verify::RecordedAt;
pub use fluxvm_verify::RecordedEvent;
pub use fluxvm_verify::SignedCheckpoint;
pub use fluxvm_verify::StreamName;
pub use fluxvm_verify::StreamVersion;
pub use fluxvm_verify::TreeHash;
pub use fluxvm_verify::VerifierKey;
pub use fluxvm_verify::evidence::blob_references;
