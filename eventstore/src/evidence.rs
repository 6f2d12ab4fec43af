//! Writing a ledger, or one stream of it, out as evidence that stands alone.
//!
//! Everything in it is as it was at one signed checkpoint: the events up to it, for one stream a
//! proof of each, the events that handed the key on, and on demand the blobs that events refer to.

use std::collections::HashSet;
use std::collections::VecDeque;
use std::sync::Arc;

use fluxvm_verify::EventHash;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::Scope;
use fluxvm_verify::SignedCheckpoint;
use fluxvm_verify::evidence::ExportProof;
use fluxvm_verify::evidence::Paths;
use fluxvm_verify::evidence::TreeHead;
use fluxvm_verify::evidence::blob_line;
use fluxvm_verify::evidence::blob_parts;
use fluxvm_verify::evidence::blob_references;
use fluxvm_verify::evidence::proof_line;
use fluxvm_verify::export::ExportEnd;
use fluxvm_verify::export::event_line;
use fluxvm_verify::export::evidence_header_line;
use fluxvm_verify::export::footer_line;

use crate::BlobDigest;
use crate::ExportScope;
use crate::ReadError;
use crate::shared::Shared;

/// How many events are read at a time.
const PAGE_EVENTS: usize = 256;

/// Whether blobs come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The events alone; their digests stand for the blobs.
    EventsOnly,
    /// Every blob of the ledger that one of the events refers to.
    WithBlobs,
}

/// What an export as evidence is to hold.
#[derive(Clone, Debug)]
pub struct EvidenceOptions {
    /// Whose events.
    pub scope: ExportScope,
    /// Whether blobs come along.
    pub content: Content,
    /// The blobs that an event stands for: one that comes along must have them. What else looks like
    /// a digest is sent where it is one of a blob.
    pub required: fn(&RecordedEvent) -> Vec<BlobDigest>,
}

/// For [`EvidenceOptions::required`]: no event needs any.
pub fn nothing_required(_: &RecordedEvent) -> Vec<BlobDigest> {
    Vec::new()
}

/// The lines of an export as evidence.
pub(crate) fn lines(
    shared: Arc<Shared>,
    options: EvidenceOptions,
    checkpoint: Arc<SignedCheckpoint>,
) -> Result<impl Iterator<Item = Result<String, ReadError>> + Send + use<>, ReadError> {
    let tree = TreeHead {
        size: checkpoint.size(),
        root: checkpoint.root(),
    };
    if shared.root_at(tree.size)? != tree.root {
        return Err(ReadError::TreeDamaged { size: tree.size });
    }
    let (scope, seqs) = match options.scope {
        ExportScope::WholeLedger => (Scope::WholeLedger, None),
        ExportScope::Stream(stream) => {
            let all = usize::MAX;
            let memory = shared.memory();
            let mut seqs = memory.stream_seqs_after_version(&stream, None, tree.size, all);
            drop(memory);
            if seqs.is_empty() {
                return Err(ReadError::NoStream { stream });
            }
            // Without them nobody could tell whose signature the checkpoint bears.
            let rotations = shared.chain();
            let rotations = rotations.keys().iter().skip(1).map(|(from, _)| *from);
            seqs.extend(
                rotations
                    .filter(|from| *from <= tree.size)
                    .filter_map(Position::last_seq),
            );
            seqs.sort_unstable();
            seqs.dedup();
            (Scope::OneStream(stream), Some(VecDeque::from(seqs)))
        }
    };
    let header = evidence_header_line(
        &shared.genesis,
        &scope,
        tree,
        options.content == Content::WithBlobs,
    );
    let head_hash = shared.genesis.hash();
    Ok(Evidence {
        lines: VecDeque::from([header]),
        end: ExportEnd {
            events: 0,
            head_seq: None,
            head_hash,
            checkpoint: Some(checkpoint.to_string()),
        },
        shared,
        tree,
        seqs,
        after: Position::START,
        paths: Paths::default(),
        content: options.content,
        required: options.required,
        needed: HashSet::new(),
        named: HashSet::new(),
        blobs: VecDeque::new(),
        stage: Stage::Events,
    })
}

enum Stage {
    Events,
    Blobs,
    Done,
}

struct Evidence {
    shared: Arc<Shared>,
    tree: TreeHead,
    /// The events still to come, where they are not all.
    seqs: Option<VecDeque<GlobalSeq>>,
    /// Up to where the events of a whole ledger are written.
    after: Position,
    paths: Paths,
    content: Content,
    required: fn(&RecordedEvent) -> Vec<BlobDigest>,
    /// Those of the blobs in `blobs` that must be there.
    needed: HashSet<BlobDigest>,
    /// What is in `blobs` or was.
    named: HashSet<EventHash>,
    /// Each with an event that refers to it.
    blobs: VecDeque<(GlobalSeq, EventHash)>,
    end: ExportEnd,
    /// Lines that are ready.
    lines: VecDeque<String>,
    stage: Stage,
}

impl Iterator for Evidence {
    type Item = Result<String, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.lines.is_empty() {
            let made = match self.stage {
                Stage::Events => self.make_events(),
                Stage::Blobs => self.make_blob(),
                Stage::Done => return None,
            };
            if let Err(e) = made {
                self.stage = Stage::Done;
                return Some(Err(e));
            }
        }
        self.lines.pop_front().map(Ok)
    }
}

impl Evidence {
    fn make_events(&mut self) -> Result<(), ReadError> {
        let page = self.next_page()?;
        if page.is_empty() {
            self.stage = Stage::Blobs;
        }
        page.iter().try_for_each(|event| self.write_event(event))
    }

    fn next_page(&mut self) -> Result<Vec<Arc<RecordedEvent>>, ReadError> {
        let Some(seqs) = &mut self.seqs else {
            let left = self.tree.size.get().saturating_sub(self.after.get());
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let page = self.shared.read(self.after, left.min(PAGE_EVENTS))?;
            self.after = page.last().map_or(self.after, |last| last.seq().position());
            return Ok(page);
        };
        let wanted: Vec<GlobalSeq> = seqs.iter().copied().take(PAGE_EVENTS).collect();
        // It may be fewer than were asked for, where they are large.
        let page = self.shared.read_seqs(&wanted)?;
        seqs.drain(..page.len());
        Ok(page)
    }

    fn write_event(&mut self, event: &RecordedEvent) -> Result<(), ReadError> {
        let seq = event.seq();
        self.end.events += 1;
        self.end.head_seq = Some(seq);
        self.end.head_hash = event.hash;
        self.lines.push_back(event_line(event));
        if self.seqs.is_some() {
            let TreeHead { size, root } = self.tree;
            let path = self.shared.path((seq, &event.hash), size, &root)?;
            let hashes = self.paths.shorten(path);
            self.lines
                .push_back(proof_line(&ExportProof { seq, hashes }));
        }
        if self.content == Content::WithBlobs {
            self.needed.extend((self.required)(event));
            let references = event.payload_bytes().map(blob_references);
            for digest in references.unwrap_or_default() {
                if self.named.insert(digest) {
                    self.blobs.push_back((seq, digest));
                }
            }
        }
        Ok(())
    }

    fn make_blob(&mut self) -> Result<(), ReadError> {
        let Some((seq, digest)) = self.blobs.pop_front() else {
            self.lines.push_back(footer_line(&self.end));
            self.stage = Stage::Done;
            return Ok(());
        };
        let name = BlobDigest::from_bytes(*digest.as_bytes());
        let found = self.shared.blob_of_event(seq, &name);
        let found = found.map_err(|e| ReadError::Store {
            reason: e.to_string().into(),
        })?;
        // A digest that names no blob is one of something else.
        match found {
            Some(content) => {
                let parts = blob_parts(digest, &content);
                self.lines.extend(parts.map(|part| blob_line(&part)));
                Ok(())
            }
            None if self.needed.contains(&name) => {
                Err(ReadError::BlobMissing { seq, digest: name })
            }
            None => Ok(()),
        }
    }
}
