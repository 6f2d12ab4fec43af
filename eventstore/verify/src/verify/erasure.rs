//! Whether an event ordered what was erased.
//!
//! Anybody can take a payload out of an export and call it erased: every hash stays what it was. What
//! nobody can make up is an event that is signed for. So each erased event is held against the later
//! events that order erasures, and what none of them ordered is named.
//!
//! It takes a few numbers for each erased event until its order is found.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::HashSet;

use serde::Deserialize;

use super::FAULTS_LISTED_MAX;
use crate::CorrelationId;
use crate::EventKind;
use crate::GlobalSeq;
use crate::LEDGER_STREAM;
use crate::Payload;
use crate::RecordedEvent;
use crate::StreamName;

/// The kind of the answers that are kept for requests. They go with the session that was asked.
const ANSWERED: &str = "idempotency.answered";

/// An event whose payload was erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redaction {
    /// The event.
    pub seq: GlobalSeq,
    /// Its kind.
    pub kind: EventKind,
    /// The event that ordered it. `None` in the export of a whole ledger is a fault; that of one stream
    /// need not hold the order.
    pub order: Option<GlobalSeq>,
}

/// An erased event for which no order was found, and its line.
pub(super) struct Unordered {
    pub(super) seq: GlobalSeq,
    pub(super) kind: Option<EventKind>,
    pub(super) line: u64,
}

/// The erased events so far.
#[derive(Default)]
pub(super) struct Erasures {
    listed: Vec<Redaction>,
    waiting: BTreeMap<GlobalSeq, Waiting>,
    /// Numbers for the names of streams of which something was erased.
    streams: HashMap<StreamName, usize>,
}

/// An erased event without its order.
struct Waiting {
    line: u64,
    /// Its place in the list, where it is in it.
    listed: Option<usize>,
    stream: usize,
    correlation: CorrelationId,
    is_answer: bool,
}

/// What an event orders.
enum Order {
    /// These events.
    Events(Vec<u64>),
    /// One event of the same stream.
    OwnEvent(u64),
    /// All that the session said, and the answers to what was asked of it.
    Session(String),
    /// All before it in its own stream.
    OwnStream,
}

#[derive(Deserialize)]
struct Seqs {
    seqs: Vec<u64>,
}

#[derive(Deserialize)]
struct Seq {
    seq: u64,
}

#[derive(Deserialize)]
struct Shredded {
    session: String,
}

impl Erasures {
    /// Lists an erased event, wherever it stands.
    pub(super) fn list(&mut self, event: &RecordedEvent) {
        if self.listed.len() < FAULTS_LISTED_MAX {
            self.listed.push(Redaction {
                seq: event.header.seq,
                kind: event.header.kind.clone(),
                order: None,
            });
        }
    }

    /// Takes an event that stands in its order; an erased one was listed just before.
    pub(super) fn take(&mut self, event: &RecordedEvent, line: u64, is_whole: bool) {
        if event.payload == Payload::Redacted {
            return self.wait(event, line);
        }
        if self.waiting.is_empty() {
            return;
        }
        let by = event.header.seq;
        match order(event, is_whole) {
            None => {}
            Some(Order::Events(seqs)) => {
                let seqs: Vec<_> = seqs.into_iter().filter_map(GlobalSeq::new).collect();
                self.settle(seqs, by);
            }
            Some(Order::OwnEvent(seq)) => {
                let own = self.streams.get(&event.header.stream).copied();
                let seq = GlobalSeq::new(seq).filter(|seq| {
                    let waiting = self.waiting.get(seq);
                    waiting.is_some_and(|it| Some(it.stream) == own)
                });
                self.settle(seq.into_iter().collect(), by);
            }
            Some(Order::OwnStream) => self.settle(self.of_stream(&event.header.stream), by),
            Some(Order::Session(id)) => {
                if let Ok(stream) = StreamName::parse(&format!("session/{id}")) {
                    self.settle(self.of_session(&stream), by);
                }
            }
        }
    }

    /// The list, and what nothing ordered.
    pub(super) fn finish(self) -> (Vec<Redaction>, Vec<Unordered>) {
        let listed = self.listed;
        let unordered = self.waiting.into_iter().map(|(seq, waiting)| {
            let of_list = waiting.listed.and_then(|at| listed.get(at));
            Unordered {
                seq,
                kind: of_list.map(|it| it.kind.clone()),
                line: waiting.line,
            }
        });
        let unordered = unordered.collect();
        (listed, unordered)
    }

    fn wait(&mut self, event: &RecordedEvent, line: u64) {
        let header = &event.header;
        let next = self.streams.len();
        let stream = match self.streams.get(&header.stream) {
            Some(known) => *known,
            None => *self.streams.entry(header.stream.clone()).or_insert(next),
        };
        let last = self.listed.len().checked_sub(1);
        let is_listed = |at: &usize| self.listed.get(*at).is_some_and(|it| it.seq == header.seq);
        let waiting = Waiting {
            line,
            listed: last.filter(is_listed),
            stream,
            correlation: header.correlation_id,
            is_answer: header.kind.as_str() == ANSWERED,
        };
        self.waiting.insert(header.seq, waiting);
    }

    fn settle(&mut self, seqs: Vec<GlobalSeq>, by: GlobalSeq) {
        for seq in seqs {
            let waiting = self.waiting.remove(&seq);
            let listed = waiting.and_then(|it| it.listed);
            if let Some(redaction) = listed.and_then(|at| self.listed.get_mut(at)) {
                redaction.order = Some(by);
            }
        }
    }

    fn of_stream(&self, stream: &StreamName) -> Vec<GlobalSeq> {
        let Some(stream) = self.streams.get(stream) else {
            return Vec::new();
        };
        let of_it = self.waiting.iter().filter(|(_, it)| it.stream == *stream);
        of_it.map(|(seq, _)| *seq).collect()
    }

    /// What a session said, and the answers that were sealed with it: those to the requests that it said
    /// something for, and those to requests for which no erased session did, because there was nothing to do.
    fn of_session(&self, stream: &StreamName) -> Vec<GlobalSeq> {
        let mut seqs = self.of_stream(stream);
        let Some(own) = self.streams.get(stream) else {
            return seqs;
        };
        let requests = |is_own: bool| -> HashSet<CorrelationId> {
            let said = self.waiting.values().filter(|it| !it.is_answer);
            let said = said.filter(|it| (it.stream == *own) == is_own);
            said.map(|it| it.correlation).collect()
        };
        let (own, others) = (requests(true), requests(false));
        let is_sealed = |request| own.contains(request) || !others.contains(request);
        let answers = self.waiting.iter();
        let answers = answers.filter(|(_, it)| it.is_answer && is_sealed(&it.correlation));
        seqs.extend(answers.map(|(seq, _)| *seq));
        seqs
    }
}

/// What the event orders, where it orders an erasure.
fn order(event: &RecordedEvent, is_whole: bool) -> Option<Order> {
    let payload = event.payload_bytes()?;
    let is_of_ledger = event.header.stream.as_str() == LEDGER_STREAM;
    match event.header.kind.as_str() {
        "ledger.redacted" if is_of_ledger => seqs(payload),
        "ledger.shredded" if is_of_ledger => {
            let said: Shredded = serde_json::from_slice(payload).ok()?;
            Some(Order::Session(said.session))
        }
        "idempotency.erased" => {
            let said: Seq = serde_json::from_slice(payload).ok()?;
            Some(Order::OwnEvent(said.seq))
        }
        // In the ledger's own stream the same is said with more in it.
        "session.redacted" if !is_whole => seqs(payload),
        "session.erased" if !is_whole => Some(Order::OwnStream),
        _ => None,
    }
}

fn seqs(payload: &[u8]) -> Option<Order> {
    let said: Seqs = serde_json::from_slice(payload).ok()?;
    Some(Order::Events(said.seqs))
}
