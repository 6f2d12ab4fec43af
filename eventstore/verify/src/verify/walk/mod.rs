//! The walk over the lines: what each must hold by itself, and what it must hold beside its
//! neighbours.

mod blobs;
mod checkpoints;
mod order;
mod tree;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::BufRead;

use blobs::Blobs;
use tree::Tree;

use super::Fault;
use super::FaultCode;
use super::Report;
use super::VerifyOptions;
use super::budget::Budgets;
use super::check::Checked;
use super::check::Item;
use super::check::check_all;
use super::erasure::Erasures;
use super::lines::Lines;
use crate::EventHash;
use crate::FORMAT_VERSION;
use crate::GlobalSeq;
use crate::KeyChain;
use crate::Payload;
use crate::Position;
use crate::RecordedAt;
use crate::RecordedEvent;
use crate::Scope;
use crate::SignedCheckpoint;
use crate::StreamName;
use crate::StreamVersion;
use crate::TreeHash;
use crate::evidence::TreeHead;
use crate::export::ExportEnd;
use crate::export::ExportHeader;
use crate::export::ExportLine;
use crate::export::FORMAT_EVIDENCE;
use crate::export::LineError;

pub(super) fn walk(reader: impl BufRead, options: &VerifyOptions) -> Report {
    let mut walk = Walk::new(options);
    let lines = Lines::new(reader, options.line_bytes_max);
    let outcome = check_all(lines, |item| {
        walk.line += 1;
        match item {
            Item::Line(checked) => walk.take_line(*checked),
            Item::Unended(checked) => {
                walk.take_line(*checked);
                walk.fault(FaultCode::Truncated, "the file ends within a line");
            }
            Item::TooLong => {
                let detail = format!("the line has more than {} bytes", options.line_bytes_max);
                walk.fault(FaultCode::LineTooLong, detail);
            }
        }
    });
    walk.line += 1;
    if let Err(e) = outcome {
        walk.fault(FaultCode::Unreadable, e.to_string());
    }
    walk.finish()
}

/// The last event in the order of the ledger, against which the next one is held.
struct Last {
    seq: GlobalSeq,
    hash: EventHash,
    recorded_at: RecordedAt,
}

struct Walk<'a> {
    options: &'a VerifyOptions,
    report: Report,
    line: u64,
    /// The event that the current line holds, for the faults that are found in it.
    current: Option<(GlobalSeq, crate::EventKind)>,
    header: Option<ExportHeader>,
    last: Option<Last>,
    /// Sequence numbers that were passed over: first to last of each gap. Tells late from repeated.
    skipped: BTreeMap<u64, u64>,
    versions: HashMap<StreamName, StreamVersion>,
    known: BTreeMap<GlobalSeq, EventHash>,
    end_seen: bool,
    tree: Tree,
    blobs: Blobs,
    budgets: Budgets,
    erasures: Erasures,
}

impl<'a> Walk<'a> {
    fn new(options: &'a VerifyOptions) -> Walk<'a> {
        let mut tree = Tree::default();
        // What cannot be read is said at the end, with all else about it.
        let held = options.against.iter().filter_map(|note| note.parse().ok());
        tree.wanted
            .extend(held.map(|held: SignedCheckpoint| held.size()));
        if tree.wanted.contains(&Position::START) {
            tree.roots.insert(Position::START, TreeHash::of_nothing());
        }
        Walk {
            options,
            report: Report::default(),
            line: 0,
            current: None,
            header: None,
            last: None,
            skipped: BTreeMap::new(),
            versions: HashMap::new(),
            known: options.known.iter().copied().collect(),
            end_seen: false,
            tree,
            blobs: Blobs::default(),
            budgets: Budgets::default(),
            erasures: Erasures::default(),
        }
    }

    /// The state of the ledger that the first line names.
    fn tree_head(&self) -> Option<TreeHead> {
        self.header.as_ref().and_then(|header| header.tree)
    }

    fn fault(&mut self, code: FaultCode, detail: impl Into<String>) {
        let (seq, kind) = self.current.clone().unzip();
        self.report.add(Fault {
            code,
            line: self.line,
            seq,
            kind,
            detail: detail.into(),
        });
    }

    fn take_line(&mut self, checked: Checked) {
        if self.end_seen {
            self.fault(FaultCode::AfterEnd, "a line behind the last one");
        }
        let Checked {
            parsed,
            faults,
            references,
            named,
        } = checked;
        if self.line == 1 && !matches!(parsed, Ok(ExportLine::Header(_))) {
            self.fault(
                FaultCode::HeaderMissing,
                "the first line does not name a ledger",
            );
        }
        if !matches!(parsed, Ok(ExportLine::Proof(_))) {
            self.miss_proof();
        }
        if !matches!(parsed, Ok(ExportLine::Blob(_))) {
            self.miss_blob_end();
        }
        match parsed {
            Ok(ExportLine::Header(header)) => self.take_header(header),
            Ok(ExportLine::Event(event)) => {
                if self.tree_head().is_some() {
                    self.blobs.references.extend(references);
                    self.blobs.name(event.header.seq, named);
                }
                self.take_event(&event, faults);
            }
            Ok(ExportLine::Proof(proof)) => self.take_proof(&proof),
            Ok(ExportLine::Blob(part)) => self.take_blob(&part),
            Ok(ExportLine::End(end)) => self.take_end(&end),
            Err(e @ LineError::UnknownType) => self.fault(FaultCode::UnknownLine, e.to_string()),
            Err(LineError::Malformed(detail)) => self.fault(FaultCode::MalformedLine, detail),
            Err(e @ LineError::OtherForm) => self.fault(FaultCode::LineForm, e.to_string()),
        }
    }

    fn take_header(&mut self, header: ExportHeader) {
        let id = header.genesis.ledger_id;
        if !(FORMAT_VERSION..=FORMAT_EVIDENCE).contains(&header.format) {
            let detail = format!(
                "format {}, this verifier reads up to {FORMAT_EVIDENCE}",
                header.format
            );
            self.fault(FaultCode::FormatUnknown, detail);
        }
        if header.genesis.hash() != header.genesis_hash {
            self.fault(
                FaultCode::GenesisHash,
                "the genesis hash is not that of the header's fields",
            );
        }
        if let Some(expected) = self.options.ledger_id.filter(|expected| *expected != id) {
            self.fault(
                FaultCode::LedgerUnexpected,
                format!("ledger {id}, not {expected}"),
            );
        }
        match &self.header {
            None if self.line == 1 => {
                self.report.genesis = Some(header.genesis.clone());
                self.report.scope = Some(header.scope.clone());
                self.take_tree_head(&header);
                self.header = Some(header);
            }
            Some(first) if first.genesis != header.genesis => {
                self.fault(FaultCode::HeaderForeign, format!("a header of ledger {id}"));
            }
            _ => self.fault(
                FaultCode::HeaderRepeated,
                "a header that is not the first line",
            ),
        }
    }

    /// What the first line says of the tree and of the first key.
    fn take_tree_head(&mut self, header: &ExportHeader) {
        match KeyChain::new(&header.genesis) {
            Ok(chain) => self.tree.chain = Some(chain),
            // An export without signatures does not need the key.
            Err(e) if header.tree.is_some() => self.fault(FaultCode::KeyForm, e.to_string()),
            Err(_) => {}
        }
        if let Some(tree) = header.tree {
            self.tree.wanted.insert(tree.size);
            if tree.size == Position::START {
                let root = TreeHash::of_nothing();
                self.tree.roots.insert(Position::START, root);
            }
        }
    }

    fn take_event(&mut self, event: &RecordedEvent, faults: Vec<(FaultCode, String)>) {
        self.current = Some((event.header.seq, event.header.kind.clone()));
        self.report.events += 1;
        if event.payload == Payload::Redacted {
            self.report.redacted += 1;
            self.erasures.list(event);
        }
        for (code, detail) in faults {
            self.fault(code, detail);
        }
        self.check_scope(event);
        if self.check_order(event) {
            self.check_link(event);
            self.check_version(event);
            self.take_leaf(event);
            let is_whole = self.report.scope == Some(Scope::WholeLedger);
            self.erasures.take(event, self.line, is_whole);
            for (code, detail) in self.budgets.take(event) {
                self.fault(code, detail);
            }
            self.last = Some(Last {
                seq: event.header.seq,
                hash: event.hash,
                recorded_at: event.header.recorded_at,
            });
        }
        if let Some(known) = self.known.remove(&event.header.seq) {
            self.hold_against_known(event, known);
        }
        self.current = None;
    }

    fn hold_against_known(&mut self, event: &RecordedEvent, known: EventHash) {
        if known != event.hash {
            let detail = format!("noted was {known}, here is {}", event.hash);
            self.fault(FaultCode::KnownDiffers, detail);
        } else if self.report.scope == Some(Scope::WholeLedger) {
            let position = event.header.seq.position();
            self.report.held = self.report.held.max(Some(position));
        }
    }

    fn take_end(&mut self, end: &ExportEnd) {
        self.end_seen = true;
        if end.events != self.report.events {
            let detail = format!(
                "{} events, the last line counts {}",
                self.report.events, end.events
            );
            self.fault(FaultCode::EndCount, detail);
        }
        let genesis = self.header.as_ref().map(|header| header.genesis.hash());
        let head = self.last.as_ref().map(|last| (last.seq, last.hash));
        let matches = match head {
            Some((seq, hash)) => end.head_seq == Some(seq) && end.head_hash == hash,
            None => {
                end.head_seq.is_none() && genesis.is_none_or(|genesis| genesis == end.head_hash)
            }
        };
        if !matches {
            self.fault(FaultCode::EndHead, "the last line names another last event");
        }
        self.check_blobs();
        self.check_checkpoint(end.checkpoint.as_deref());
    }

    /// What nobody ordered to be erased, of a whole ledger. Where only one stream is here, the order can
    /// lie in another.
    fn check_erasures(&mut self) {
        let (listed, unordered) = std::mem::take(&mut self.erasures).finish();
        self.report.redactions = listed;
        if self.report.scope != Some(Scope::WholeLedger) {
            return;
        }
        for erased in unordered {
            let detail = "it is erased, and no event orders that";
            self.report.add(Fault {
                code: FaultCode::RedactionUnordered,
                line: erased.line,
                seq: Some(erased.seq),
                kind: erased.kind,
                detail: detail.to_owned(),
            });
        }
    }

    fn finish(mut self) -> Report {
        if self.line == 1 {
            self.fault(FaultCode::HeaderMissing, "the file is empty");
        }
        self.miss_proof();
        if !self.end_seen {
            self.fault(FaultCode::Truncated, "the export has no last line");
        }
        self.check_erasures();
        self.check_held();
        for (seq, hash) in std::mem::take(&mut self.known) {
            let detail = format!("event {seq} with hash {hash} was noted and is not here");
            self.fault(FaultCode::KnownMissing, detail);
        }
        self.report.streams = u64::try_from(self.versions.len()).unwrap_or(u64::MAX);
        self.report.keys = match &self.tree.chain {
            Some(chain) => chain.keys().to_vec(),
            None => Vec::new(),
        };
        self.report.budgets = self.budgets.into_uses();
        self.report.head = self.last.map(|last| (last.seq, last.hash));
        self.report
    }
}
