//! What a handle says of how its ledger is: for operators, and for whoever watches.

use std::path::PathBuf;
use std::sync::PoisonError;

use fluxvm_verify::LedgerId;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::StreamName;
use tokio::sync::watch;

use super::Head;
use super::Ledger;
use crate::ArchiveStatus;
use crate::files;
use crate::keys;
use crate::redact;

/// Facts about a ledger, for an operator.
#[derive(Clone, Debug)]
pub struct LedgerInfo {
    /// The ledger's name for ever.
    pub ledger_id: LedgerId,
    /// The name that it was founded under.
    pub origin: String,
    /// When it was founded.
    pub created_at: RecordedAt,
    /// The key that speaks for it.
    pub vkey: String,
    /// Its durable end.
    pub head: Head,
    /// Something was erased whose bytes are still in the store's files: they go when the ledger is
    /// next opened.
    pub erasure_pending_in_store: bool,
    /// The streams whose keys the opening found to be destroyed, without an event that ordered it. What
    /// was sealed with them is erased all the same.
    pub keys_found_destroyed: Vec<StreamName>,
    /// The second copy, if there is one.
    pub archive: Option<ArchiveInfo>,
    /// The size of the store's files, blobs not counted.
    pub bytes_on_disk: u64,
    /// The median of how long the latest commits took, in microseconds.
    pub sync_micros_p50: u64,
    /// What 99 of 100 of them stayed below.
    pub sync_micros_p99: u64,
}

impl LedgerInfo {
    /// Whether bytes that were erased are, or may be, in any file that is the ledger's to write.
    pub fn erasure_pending(&self) -> bool {
        let in_archive = self.archive.as_ref().is_some_and(|it| it.erasure_pending);
        self.erasure_pending_in_store || in_archive
    }
}

/// Facts about the archive of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveInfo {
    /// Its folder.
    pub dir: PathBuf,
    /// How many events are durable in it.
    pub archived: Position,
    /// Why nothing more is archived.
    pub failed: Option<String>,
    /// It holds, or may hold, bytes that were erased in the ledger: it has not been written anew since.
    /// One that has failed stays so until the ledger is opened with an archive that works.
    pub erasure_pending: bool,
}

impl Ledger {
    /// Facts for an operator.
    pub fn info(&self) -> LedgerInfo {
        let shared = &self.inner.shared;
        let genesis = shared.genesis.clone();
        let times = shared
            .sync_times
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        LedgerInfo {
            ledger_id: genesis.ledger_id,
            origin: genesis.origin,
            created_at: genesis.created_at,
            vkey: match shared.chain().current() {
                Some(key) => key.to_string(),
                None => genesis.vkey,
            },
            head: shared.head(),
            erasure_pending_in_store: shared
                .store()
                .is_some_and(|store| redact::is_pending(&*store).unwrap_or_default()),
            keys_found_destroyed: shared
                .blobs
                .seals()
                .map_or_else(Vec::new, |seals| seals.found_destroyed().to_vec()),
            archive: self.archive_info(),
            bytes_on_disk: shared.store().map_or_else(
                || files::bytes_under(&self.inner.dir),
                |store| store.bytes_on_disk(),
            ),
            sync_micros_p50: times.percentile(50),
            sync_micros_p99: times.percentile(99),
        }
    }

    /// How the archive is doing, if there is one. It may be behind the head, and says when it fails.
    pub fn archive(&self) -> Option<watch::Receiver<ArchiveStatus>> {
        let archive = self.inner.shared.archive();
        archive.map(|archive| archive.sender.status())
    }

    fn archive_info(&self) -> Option<ArchiveInfo> {
        let shared = &self.inner.shared;
        let archive = shared.archive()?;
        let status = archive.look();
        let redactions = shared
            .store()
            .map(|store| redact::count(&*store, keys::REDACTIONS).unwrap_or(u64::MAX));
        // Of an archive that nobody could read nobody knows that it has been rid of anything.
        let done = status.redactions_done.unwrap_or_default();
        Some(ArchiveInfo {
            dir: archive.dir.clone(),
            archived: status.archived,
            failed: status.failed,
            erasure_pending: redactions.is_some_and(|redactions| redactions > done),
        })
    }
}
