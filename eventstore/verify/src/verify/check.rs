//! What a line must hold by itself, whatever stands around it: the costly part of the work, and
//! the part that several cores can share.

use std::collections::VecDeque;
use std::io;
use std::io::BufRead;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;

use super::FaultCode;
use super::lines::Line;
use super::lines::Lines;
use crate::EventHash;
use crate::Payload;
use crate::RecordedEvent;
use crate::check_canonical;
use crate::evidence::blob_names;
use crate::evidence::blob_references;
use crate::export::ExportLine;
use crate::export::LineError;
use crate::export::parse_line;

/// How many lines go to a core at a time.
const BATCH_LINES: usize = 256;
/// A batch ends early at so many bytes.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// How many batches may wait for each core: one at work, one to come.
const BATCHES_AHEAD: usize = 2;
/// More cores than this wait for the one that reads.
const THREADS_MAX: usize = 8;

/// A line and what was found in it.
pub(super) struct Checked {
    pub(super) parsed: Result<ExportLine, LineError>,
    pub(super) faults: Vec<(FaultCode, String)>,
    /// The blobs that the event refers to.
    pub(super) references: Vec<EventHash>,
    /// Those of them that it names as stored content.
    pub(super) named: Vec<EventHash>,
}

/// What comes next in the file, checked by itself.
pub(super) enum Item {
    Line(Box<Checked>),
    /// A line at the end of the file that no line feed follows.
    Unended(Box<Checked>),
    TooLong,
}

enum Raw {
    Line(Vec<u8>),
    Unended(Vec<u8>),
    TooLong,
}

/// Reads and checks everything, and hands it on in the order of the file.
pub(super) fn check_all<R: BufRead>(
    mut lines: Lines<R>,
    mut take: impl FnMut(Item),
) -> io::Result<()> {
    let (first, mut outcome) = read_batch(&mut lines);
    // A small file is not worth a thread.
    if !matches!(outcome, Ok(true)) {
        check_batch(first).into_iter().for_each(take);
        return outcome.map(|_| ());
    }
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = threads.min(THREADS_MAX);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let (batches, to_check) = mpsc::channel();
                let (checked, answers) = mpsc::channel();
                scope.spawn(move || {
                    for batch in to_check {
                        if checked.send(check_batch(batch)).is_err() {
                            return;
                        }
                    }
                });
                (batches, answers)
            })
            .collect();
        let gone = |_| io::Error::other("a thread of the verifier ended");
        let mut ahead = VecDeque::new();
        let mut turns = workers.iter().cycle();
        let mut batch = first;
        loop {
            if let Some((batches, answers)) = turns.next().filter(|_| !batch.is_empty()) {
                batches.send(batch).map_err(|_| gone(mpsc::RecvError))?;
                ahead.push_back(answers);
            }
            let more = matches!(outcome, Ok(true));
            let wait_for = if more { threads * BATCHES_AHEAD } else { 0 };
            while ahead.len() > wait_for {
                let Some(oldest) = ahead.pop_front() else {
                    break;
                };
                oldest.recv().map_err(gone)?.into_iter().for_each(&mut take);
            }
            if !more {
                return outcome.map(|_| ());
            }
            (batch, outcome) = read_batch(&mut lines);
        }
    })
}

/// The next lines, and whether there are more of them.
fn read_batch<R: BufRead>(lines: &mut Lines<R>) -> (Vec<Raw>, io::Result<bool>) {
    let mut batch = Vec::new();
    let mut bytes = 0;
    while batch.len() < BATCH_LINES && bytes < BATCH_BYTES_MAX {
        match lines.next() {
            Ok(Line::Whole(line)) => {
                bytes += line.len();
                batch.push(Raw::Line(line.to_vec()));
            }
            Ok(Line::Unended(line)) => batch.push(Raw::Unended(line.to_vec())),
            Ok(Line::TooLong) => batch.push(Raw::TooLong),
            Ok(Line::End) => return (batch, Ok(false)),
            Err(e) => return (batch, Err(e)),
        }
    }
    (batch, Ok(true))
}

fn check_batch(batch: Vec<Raw>) -> Vec<Item> {
    let check = |raw| match raw {
        Raw::Line(line) => Item::Line(Box::new(check_line(&line))),
        Raw::Unended(line) => Item::Unended(Box::new(check_line(&line))),
        Raw::TooLong => Item::TooLong,
    };
    batch.into_iter().map(check).collect()
}

fn check_line(line: &[u8]) -> Checked {
    let parsed = parse_line(line);
    let mut checked = Checked {
        parsed,
        faults: Vec::new(),
        references: Vec::new(),
        named: Vec::new(),
    };
    if let Ok(ExportLine::Event(event)) = &checked.parsed {
        check_payload(event, &mut checked.faults);
        check_hash(event, &mut checked.faults);
        checked.references = event
            .payload_bytes()
            .map(blob_references)
            .unwrap_or_default();
        // Most events name none, and to read JSON takes longer than to look for digests.
        if !checked.references.is_empty() {
            checked.named = event.payload_bytes().map(blob_names).unwrap_or_default();
        }
    }
    checked
}

fn check_payload(event: &RecordedEvent, faults: &mut Vec<(FaultCode, String)>) {
    let Payload::Present { bytes, salt } = &event.payload else {
        return;
    };
    if u32::try_from(bytes.len()) != Ok(event.header.payload_bytes) {
        let detail = format!("{} bytes, not {}", bytes.len(), event.header.payload_bytes);
        faults.push((FaultCode::PayloadLength, detail));
    }
    if crate::payload_commitment(salt, bytes) != event.header.payload_commitment {
        let detail = "the header commits to another payload".to_owned();
        faults.push((FaultCode::PayloadCommitment, detail));
    }
    if let Err(e) = check_canonical(bytes) {
        faults.push((FaultCode::PayloadForm, e.to_string()));
    }
}

fn check_hash(event: &RecordedEvent, faults: &mut Vec<(FaultCode, String)>) {
    if event.hash_holds() {
        return;
    }
    let code = match event.payload {
        Payload::Present { .. } => FaultCode::EventHash,
        Payload::Redacted => FaultCode::RedactedHash,
    };
    faults.push((code, "header and predecessor give another hash".to_owned()));
}
