//! The walk over the lines: what each must hold by itself, and what it must hold beside its
//! neighbours.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::BufRead;

use super::Fault;
use super::FaultCode;
use super::Report;
use super::Scope;
use super::VerifyOptions;
use super::lines::Line;
use super::lines::Lines;
use crate::EventHash;
use crate::FORMAT_VERSION;
use crate::GlobalSeq;
use crate::Payload;
use crate::RecordedAt;
use crate::RecordedEvent;
use crate::StreamName;
use crate::StreamVersion;
use crate::check_canonical;
use crate::export::ExportEnd;
use crate::export::ExportHeader;
use crate::export::ExportLine;
use crate::export::LineError;
use crate::export::parse_line;

pub(super) fn walk(reader: impl BufRead, options: &VerifyOptions) -> Report {
    let mut walk = Walk::new(options);
    let mut lines = Lines::new(reader, options.line_bytes_max);
    loop {
        walk.line += 1;
        match lines.next() {
            Ok(Line::Whole(line)) => walk.take_line(line),
            Ok(Line::Unended(line)) => {
                walk.take_line(line);
                walk.fault(FaultCode::Truncated, "the file ends within a line");
            }
            Ok(Line::TooLong) => {
                let detail = format!("the line has more than {} bytes", options.line_bytes_max);
                walk.fault(FaultCode::LineTooLong, detail);
            }
            Ok(Line::End) => break,
            Err(e) => {
                walk.fault(FaultCode::Unreadable, e.to_string());
                break;
            }
        }
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
}

impl<'a> Walk<'a> {
    fn new(options: &'a VerifyOptions) -> Walk<'a> {
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
        }
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

    fn take_line(&mut self, line: &[u8]) {
        if self.end_seen {
            self.fault(FaultCode::AfterEnd, "a line behind the last one");
        }
        let parsed = parse_line(line);
        if self.line == 1 && !matches!(parsed, Ok(ExportLine::Header(_))) {
            self.fault(
                FaultCode::HeaderMissing,
                "the first line does not name a ledger",
            );
        }
        match parsed {
            Ok(ExportLine::Header(header)) => self.take_header(header),
            Ok(ExportLine::Event(event)) => self.take_event(&event),
            Ok(ExportLine::End(end)) => self.take_end(end),
            Err(e @ LineError::UnknownType) => self.fault(FaultCode::UnknownLine, e.to_string()),
            Err(LineError::Malformed(detail)) => self.fault(FaultCode::MalformedLine, detail),
            Err(e @ LineError::OtherForm) => self.fault(FaultCode::LineForm, e.to_string()),
        }
    }

    fn take_header(&mut self, header: ExportHeader) {
        let id = header.genesis.ledger_id;
        if header.format != FORMAT_VERSION {
            let detail = format!(
                "format {}, this verifier reads {FORMAT_VERSION}",
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

    fn take_event(&mut self, event: &RecordedEvent) {
        self.current = Some((event.header.seq, event.header.kind.clone()));
        self.report.events += 1;
        self.check_payload(event);
        self.check_hash(event);
        self.check_scope(event);
        if self.check_order(event) {
            self.check_link(event);
            self.check_version(event);
            self.last = Some(Last {
                seq: event.header.seq,
                hash: event.hash,
                recorded_at: event.header.recorded_at,
            });
        }
        if let Some(known) = self.known.remove(&event.header.seq)
            && known != event.hash
        {
            self.fault(
                FaultCode::KnownDiffers,
                format!("noted was {known}, here is {}", event.hash),
            );
        }
        self.current = None;
    }

    fn check_payload(&mut self, event: &RecordedEvent) {
        let Payload::Present { bytes, salt } = &event.payload else {
            self.report.redacted += 1;
            return;
        };
        if u32::try_from(bytes.len()) != Ok(event.header.payload_bytes) {
            let detail = format!("{} bytes, not {}", bytes.len(), event.header.payload_bytes);
            self.fault(FaultCode::PayloadLength, detail);
        }
        if crate::payload_commitment(salt, bytes) != event.header.payload_commitment {
            self.fault(
                FaultCode::PayloadCommitment,
                "the header commits to another payload",
            );
        }
        if let Err(e) = check_canonical(bytes) {
            self.fault(FaultCode::PayloadForm, e.to_string());
        }
    }

    fn check_hash(&mut self, event: &RecordedEvent) {
        if event.hash_holds() {
            return;
        }
        let code = match event.payload {
            Payload::Present { .. } => FaultCode::EventHash,
            Payload::Redacted => FaultCode::RedactedHash,
        };
        self.fault(code, "header and predecessor give another hash");
    }

    fn check_scope(&mut self, event: &RecordedEvent) {
        if let Some(Scope::OneStream(stream)) = &self.report.scope
            && *stream != event.header.stream
        {
            let detail = format!("stream {} in an export of {stream}", event.header.stream);
            self.fault(FaultCode::StreamForeign, detail);
        }
    }

    /// Whether the event comes later in the ledger than all before it.
    fn check_order(&mut self, event: &RecordedEvent) -> bool {
        let seq = event.header.seq;
        let expected = self
            .last
            .as_ref()
            .map_or(GlobalSeq::FIRST, |last| last.seq.next());
        if seq < expected {
            match self.take_skipped(seq.get()) {
                true => self.fault(FaultCode::SeqOrder, "it stands behind a later event"),
                false => self.fault(FaultCode::EventRepeated, "its number was there before"),
            }
            return false;
        }
        if seq > expected {
            self.skipped.insert(expected.get(), seq.get() - 1);
            if self
                .report
                .scope
                .as_ref()
                .is_none_or(|scope| *scope == Scope::WholeLedger)
            {
                self.fault(
                    FaultCode::SeqGap,
                    format!("event {expected} is missing before it"),
                );
            }
        }
        true
    }

    /// Takes `seq` out of the gaps that were passed over, if it lies in one.
    fn take_skipped(&mut self, seq: u64) -> bool {
        let gap = self
            .skipped
            .range(..=seq)
            .next_back()
            .map(|(first, last)| (*first, *last));
        let Some((first, last)) = gap.filter(|(_, last)| seq <= *last) else {
            return false;
        };
        self.skipped.remove(&first);
        if first < seq {
            self.skipped.insert(first, seq - 1);
        }
        if seq < last {
            self.skipped.insert(seq + 1, last);
        }
        true
    }

    fn check_link(&mut self, event: &RecordedEvent) {
        if event.header.seq == GlobalSeq::FIRST {
            let genesis = self.header.as_ref().map(|header| header.genesis.hash());
            if genesis.is_some_and(|genesis| genesis != event.prev) {
                self.fault(
                    FaultCode::GenesisLink,
                    "the first event is of another ledger",
                );
            }
        }
        let Some(last) = &self.last else { return };
        let adjacent = last.seq.next() == event.header.seq;
        let linked = last.hash == event.prev;
        let backwards = event.header.recorded_at < last.recorded_at;
        if adjacent && !linked {
            self.fault(
                FaultCode::LinkBroken,
                "its predecessor is not the event before it",
            );
        }
        if backwards {
            self.fault(
                FaultCode::TimeBackwards,
                "recorded earlier than the event before it",
            );
        }
    }

    fn check_version(&mut self, event: &RecordedEvent) {
        let version = event.header.version;
        let before = self.versions.get(&event.header.stream).copied();
        let expected = StreamVersion::after(before);
        if version < expected {
            let detail = format!("version {version} of {}", event.header.stream);
            self.fault(FaultCode::VersionRepeated, detail);
            return;
        }
        if version > expected {
            let detail = format!("version {expected} of {} is missing", event.header.stream);
            self.fault(FaultCode::VersionGap, detail);
        }
        self.versions.insert(event.header.stream.clone(), version);
    }

    fn take_end(&mut self, end: ExportEnd) {
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
    }

    fn finish(mut self) -> Report {
        if self.line == 1 {
            self.fault(FaultCode::HeaderMissing, "the file is empty");
        }
        if !self.end_seen {
            self.fault(FaultCode::Truncated, "the export has no last line");
        }
        for (seq, hash) in std::mem::take(&mut self.known) {
            let detail = format!("event {seq} with hash {hash} was noted and is not here");
            self.fault(FaultCode::KnownMissing, detail);
        }
        self.report.streams = u64::try_from(self.versions.len()).unwrap_or(u64::MAX);
        self.report.head = self.last.map(|last| (last.seq, last.hash));
        self.report
    }
}
