//! How opening and reading can fail.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use fluxvm_verify::GenesisError;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::ProofError;
use fluxvm_verify::StreamName;

use crate::BlobDigest;
use crate::store::StoreError;

/// What the operating system says when a disk is full. The store passes on its words alone.
const NO_SPACE: &str = "No space left on device";

/// Why a ledger does not open. A ledger that opens holds every event that it ever answered for; one
/// that does not is left as it was.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refused something.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder concerned.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process, or another handle of this one, has the ledger open.
    #[error("the ledger in {dir} is in use by another process")]
    Locked {
        /// The ledger's folder.
        dir: PathBuf,
    },
    /// The ledger was written by a newer version of this program.
    #[error("the ledger has format {found}, this program reads up to {supported}")]
    UnsupportedFormat {
        /// The format that the ledger names.
        found: u16,
        /// The newest format that this program reads.
        supported: u16,
    },
    /// The store below the ledger does not open or cannot be read.
    #[error("the store is damaged: {reason}")]
    Store {
        /// What the store said.
        reason: String,
    },
    /// There is no room on the disk for what an opening writes. The ledger is what it was.
    #[error("the disk is full, and opening the ledger takes some room: {reason}")]
    DiskFull {
        /// What the store said.
        reason: String,
    },
    /// The facts that the ledger began with cannot be read.
    #[error("the ledger's genesis is damaged: {reason}")]
    GenesisDamaged {
        /// What is wrong with it.
        reason: String,
    },
    /// A record is torn, altered, missing or does not follow from the one before it.
    #[error("event {seq} is damaged: {reason}")]
    Damaged {
        /// The first event that does not hold.
        seq: GlobalSeq,
        /// What is wrong with it.
        reason: String,
    },
    /// The ledger ends before the last event that it answered for.
    #[error("the ledger ends at {found}, but it was durable up to {recorded}")]
    TailMissing {
        /// Up to where the ledger was known to be durable.
        recorded: Position,
        /// Where it ends now.
        found: Position,
    },
    /// The event that the ledger was known to be durable up to is another one now.
    #[error("event {seq} is not the one that the ledger was durable up to")]
    HeadDiffers {
        /// The event.
        seq: GlobalSeq,
    },
    /// The file that says up to where the ledger is durable cannot be read.
    #[error("the head file {path} is damaged")]
    HeadFileDamaged {
        /// The file.
        path: PathBuf,
    },
    /// The stored nodes are not those of the tree over the events.
    #[error("the stored tree of {size} events is damaged")]
    TreeDamaged {
        /// How many events the tree has.
        size: Position,
    },
    /// The newest signed checkpoint cannot be read.
    #[error("the newest signed checkpoint is damaged")]
    CheckpointDamaged,
    /// The newest signed checkpoint is not of these events, or not of this ledger's key.
    #[error("the checkpoint of {size} events that was signed is not one of this ledger")]
    CheckpointDiffers {
        /// How many events it is about.
        size: Position,
    },
    /// An event that hands the key on does not follow from the key before.
    #[error("event {seq} hands on a key that is not the ledger's: {reason}")]
    KeyChain {
        /// The event.
        seq: GlobalSeq,
        /// Why it is not to be followed.
        reason: String,
    },
    /// Reading was ended before it was done, because the ledger closes.
    #[error("reading the ledger was stopped")]
    Stopped,
    /// The origin or the key could not stand in a signed note.
    #[error(transparent)]
    Genesis(#[from] GenesisError),
    /// The signing key's file is not what it has to be.
    #[error("the signing key {path}: {reason}")]
    SigningKey {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There is a signing key and no ledger that it could be of: a ledger was lost, or its folder is
    /// not where it was.
    #[error(
        "there is no ledger in {dir}, but its signing key {key} is there: put the ledger's folder \
         back, rebuild it from its archive (`fluxctl ledger rebuild --from ARCHIVE`), or move the key \
         away to begin a new ledger"
    )]
    LedgerMissing {
        /// The folder that should be the ledger's.
        dir: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The ledger was being rebuilt out of its archive, and that was cut off.
    #[error(
        "the ledger in {dir} was being rebuilt, and that was cut off: run `fluxctl ledger rebuild` \
         again, which clears what is there and begins anew"
    )]
    RebuildUnfinished {
        /// The folder that should be the ledger's.
        dir: PathBuf,
    },
    /// A stream is sealed, and its key cannot be had. Nothing says that it was destroyed.
    #[error("the key {path} that stream {stream} is sealed with: {reason}")]
    SealKey {
        /// The stream.
        stream: StreamName,
        /// Where the key should be.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Opening was refused, and the store's files could not be put back as they were before. The
    /// next opening tries again.
    #[error("{refused}; the store's files as they were are kept in {kept}: {source}")]
    NotPutBack {
        /// Why opening was refused.
        refused: Box<OpenError>,
        /// The folder with the copy.
        kept: PathBuf,
        /// Why it could not be put back.
        source: io::Error,
    },
    /// The signing key is not the one that the ledger was created with.
    #[error("the signing key {path} is not the ledger's: the ledger names {expected}, not {found}")]
    SigningKeyDiffers {
        /// The file.
        path: PathBuf,
        /// The verifier key in the ledger's genesis.
        expected: String,
        /// The verifier key of the file.
        found: String,
    },
}

impl From<StoreError> for OpenError {
    fn from(StoreError(reason): StoreError) -> OpenError {
        match reason.contains(NO_SPACE) {
            true => OpenError::DiskFull { reason },
            false => OpenError::Store { reason },
        }
    }
}

impl From<ProofError> for OpenError {
    /// Reading the stored tree fails in this way only where its size is no size of a tree.
    fn from(_: ProofError) -> OpenError {
        OpenError::CheckpointDamaged
    }
}

impl OpenError {
    /// Whether the ledger's files are not what they were: then it can be made again of its archive,
    /// where there is one.
    pub fn is_damage(&self) -> bool {
        match self {
            OpenError::Store { .. }
            | OpenError::GenesisDamaged { .. }
            | OpenError::Damaged { .. }
            | OpenError::TailMissing { .. }
            | OpenError::HeadDiffers { .. }
            | OpenError::HeadFileDamaged { .. }
            | OpenError::TreeDamaged { .. }
            | OpenError::CheckpointDamaged
            | OpenError::CheckpointDiffers { .. }
            | OpenError::LedgerMissing { .. }
            | OpenError::KeyChain { .. } => true,
            OpenError::NotPutBack { refused, .. } => refused.is_damage(),
            _ => false,
        }
    }

    /// For `map_err`: the error of an operation on `path`.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> OpenError {
        let path = path.into();
        move |source| OpenError::Io { path, source }
    }
}

/// Why events cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The store below the ledger failed.
    #[error("the store cannot be read: {reason}")]
    Store {
        /// What the store said.
        reason: Arc<str>,
    },
    /// A record is not what it was when the ledger was opened.
    #[error("event {seq} is damaged: {reason}")]
    Damaged {
        /// The event.
        seq: GlobalSeq,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// Content that an event stands for is not there.
    #[error("content {digest} of event {seq} is missing from the blobs folder")]
    BlobMissing {
        /// The event.
        seq: GlobalSeq,
        /// The content.
        digest: BlobDigest,
    },
    /// The stored nodes of the tree do not give the root that was signed.
    #[error("the stored tree of {size} events is damaged")]
    TreeDamaged {
        /// How many events the tree has.
        size: Position,
    },
    /// It is not something that can be proven.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// There is no such stream.
    #[error("there is no stream {stream}")]
    NoStream {
        /// The stream.
        stream: StreamName,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_not_called_damage() {
        let said = "IO error: No space left on device (os error 28)".to_owned();
        let error = OpenError::from(StoreError(said));
        assert!(matches!(error, OpenError::DiskFull { .. }) && !error.is_damage());
        assert!(error.to_string().contains("the disk is full"));
        assert!(OpenError::from(StoreError("torn".to_owned())).is_damage());
    }
}
