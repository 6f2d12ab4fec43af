//! The walk over blobs: each is whole, is what its digest says, and belongs to an event.

use std::collections::BTreeMap;
use std::collections::HashSet;

use super::Walk;
use crate::EventHash;
use crate::GlobalSeq;
use crate::evidence::BLOB_CHUNK_BYTES;
use crate::evidence::ExportBlob;
use crate::verify::ContentCount;
use crate::verify::FaultCode;

/// What the walk knows of blobs so far.
#[derive(Default)]
pub(super) struct Blobs {
    /// What events refer to.
    pub(super) references: HashSet<EventHash>,
    /// What events name as stored content, with the first event that does.
    named: BTreeMap<EventHash, GlobalSeq>,
    /// What was read whole.
    whole: HashSet<EventHash>,
    /// The blob of which parts are still to come.
    open: Option<Open>,
}

struct Open {
    digest: EventHash,
    bytes: u64,
    taken: u64,
    hasher: blake3::Hasher,
}

impl Blobs {
    pub(super) fn name(&mut self, seq: GlobalSeq, named: Vec<EventHash>) {
        for digest in named {
            self.named.entry(digest).or_insert(seq);
        }
    }
}

impl Walk<'_> {
    pub(super) fn take_blob(&mut self, part: &ExportBlob) {
        if self.tree_head().is_none() {
            let detail = "a blob in an export of format 1";
            return self.fault(FaultCode::MalformedLine, detail);
        }
        if part.offset == 0 {
            self.miss_blob_end();
            if !self.blobs.references.contains(&part.digest) {
                let detail = format!("no event refers to blob {}", part.digest);
                self.fault(FaultCode::BlobForeign, detail);
            }
            if self.blobs.whole.contains(&part.digest) {
                let detail = format!("blob {} was there before", part.digest);
                self.fault(FaultCode::BlobRepeated, detail);
            }
            self.blobs.open = Some(Open {
                digest: part.digest,
                bytes: part.bytes,
                taken: 0,
                hasher: blake3::Hasher::new(),
            });
        }
        let length = u64::try_from(part.content.len()).unwrap_or(u64::MAX);
        let follows = |open: &Open| {
            open.digest == part.digest && open.bytes == part.bytes && open.taken == part.offset
        };
        let Some(open) = self.blobs.open.as_mut().filter(|open| follows(open)) else {
            return self.fault(
                FaultCode::BlobForm,
                "a part that does not follow the one before",
            );
        };
        open.hasher.update(&part.content);
        open.taken = open.taken.saturating_add(length);
        let is_last = open.taken >= open.bytes;
        let is_cut_right = is_last || part.content.len() == BLOB_CHUNK_BYTES;
        if open.taken > open.bytes || !is_cut_right {
            self.blobs.open = None;
            return self.fault(
                FaultCode::BlobForm,
                "a part of another length than it has to be",
            );
        }
        if is_last && let Some(open) = self.blobs.open.take() {
            self.report.blobs += 1;
            self.blobs.whole.insert(open.digest);
            if open.hasher.finalize().as_bytes() != open.digest.as_bytes() {
                let detail = format!("the content is not that of blob {}", open.digest);
                self.fault(FaultCode::BlobDigest, detail);
            }
        }
    }

    /// Counts what is there of what is named. All of it must be where the first line says so.
    pub(super) fn check_blobs(&mut self) {
        let named = std::mem::take(&mut self.blobs.named);
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let whole = std::mem::take(&mut self.blobs.whole);
        let present = named.keys().filter(|digest| whole.contains(digest));
        self.report.content = ContentCount {
            named: count(named.len()),
            present: count(present.count()),
        };
        if !self.header.as_ref().is_some_and(|it| it.with_content) {
            return;
        }
        for (digest, seq) in named {
            if !whole.contains(&digest) {
                let detail = format!("event {seq} names blob {digest}, and it is not here");
                self.fault(FaultCode::BlobMissing, detail);
            }
        }
    }

    /// Whatever comes now, the rest of a blob that should have come before it is not there.
    pub(super) fn miss_blob_end(&mut self) {
        if let Some(open) = self.blobs.open.take() {
            let detail = format!("blob {} ends early", open.digest);
            self.fault(FaultCode::BlobForm, detail);
        }
    }
}
