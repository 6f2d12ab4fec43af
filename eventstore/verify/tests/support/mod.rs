//! A small ledger built by hand, and the means to tamper with it as an attacker would.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "each test file uses its part of this, and a test may fail loudly"
)]

pub mod evidence;

use bytes::Bytes;
use fluxvm_verify::*;

/// A ledger in the hands of someone who can change anything and hash it anew.
#[derive(Clone)]
pub struct Forge {
    pub genesis: Genesis,
    pub events: Vec<RecordedEvent>,
    pub scope: Scope,
}

pub fn genesis(id: u8) -> Genesis {
    Genesis {
        ledger_id: LedgerId::from_bytes([id; 16]),
        origin: "flux.example/ledger".to_owned(),
        created_at: RecordedAt::from_unix_ns(1_796_119_200_000_000_001),
        vkey: "flux.example/ledger+12345678+AQ==".to_owned(),
    }
}

impl Forge {
    /// Ten events on two streams.
    pub fn new() -> Forge {
        Forge::of_ledger(1, 10)
    }

    pub fn of_ledger(id: u8, events: u64) -> Forge {
        let mut forge = Forge {
            genesis: genesis(id),
            events: Vec::new(),
            scope: Scope::WholeLedger,
        };
        for n in 1..=events {
            let stream = if n.is_multiple_of(3) {
                "host"
            } else {
                "session/a"
            };
            forge.append(stream, &format!("{{\"n\":{n},\"text\":\"é\\\"\\n\"}}"));
        }
        forge
    }

    pub fn append(&mut self, stream: &str, payload: &str) {
        self.append_kind(stream, "test.done", payload);
    }

    pub fn append_kind(&mut self, stream: &str, kind: &str, payload: &str) {
        let n = self.events.len() as u64 + 1;
        let stream = StreamName::parse(stream).unwrap();
        let version = self
            .events
            .iter()
            .filter(|event| event.header.stream == stream)
            .count() as u64
            + 1;
        let salt = [n as u8; 32];
        let header = Header {
            seq: GlobalSeq::new(n).unwrap(),
            stream,
            version: StreamVersion::new(version).unwrap(),
            event_id: EventId::from_bytes([n as u8; 16]),
            kind: EventKind::parse(kind).unwrap(),
            schema: 1,
            recorded_at: RecordedAt::from_unix_ns(1_796_119_200_000_000_100 + n),
            actor: Actor::parse("admin:\"ops\"").unwrap(),
            command_id: CommandId::from_bytes([100 + n as u8; 16]),
            causation_id: n
                .is_multiple_of(2)
                .then(|| EventId::from_bytes([n as u8 - 1; 16])),
            correlation_id: CorrelationId::from_bytes([200; 16]),
            payload_bytes: payload.len() as u32,
            payload_commitment: payload_commitment(&salt, payload.as_bytes()),
        };
        let prev = self
            .events
            .last()
            .map_or(self.genesis.hash(), |event| event.hash);
        let hash = event_hash(prev, &header);
        let bytes = Bytes::copy_from_slice(payload.as_bytes());
        let payload = Payload::Present { bytes, salt };
        self.events.push(RecordedEvent {
            header,
            payload,
            prev,
            hash,
        });
    }

    pub fn set_payload(&mut self, at: usize, payload: &str) {
        let Payload::Present { salt, .. } = &self.events[at].payload else {
            panic!("redacted")
        };
        let bytes = Bytes::copy_from_slice(payload.as_bytes());
        self.events[at].payload = Payload::Present { bytes, salt: *salt };
    }

    /// Makes the header say what the payload is.
    pub fn recommit(&mut self, at: usize) {
        let event = &mut self.events[at];
        let Payload::Present { bytes, salt } = &event.payload else {
            panic!("redacted")
        };
        event.header.payload_bytes = bytes.len() as u32;
        event.header.payload_commitment = payload_commitment(salt, bytes);
    }

    /// Gives the event the hash of what it says now.
    pub fn rehash(&mut self, at: usize) {
        let event = &mut self.events[at];
        event.hash = event_hash(event.prev, &event.header);
    }

    /// Links and hashes everything from `from` on anew: the attack that only a note outside
    /// catches.
    pub fn rechain(&mut self, from: usize) {
        for at in from..self.events.len() {
            self.events[at].prev = match at {
                0 => self.genesis.hash(),
                _ => self.events[at - 1].hash,
            };
            self.rehash(at);
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![export::header_line(&self.genesis, &self.scope)];
        lines.extend(self.events.iter().map(export::event_line));
        lines.push(export::footer_line(&export::ExportEnd {
            events: self.events.len() as u64,
            head_seq: self.events.last().map(RecordedEvent::seq),
            head_hash: self
                .events
                .last()
                .map_or(self.genesis.hash(), |event| event.hash),
            checkpoint: None,
        }));
        lines
    }

    pub fn text(&self) -> String {
        self.lines().concat()
    }

    pub fn verify(&self) -> Report {
        verify(&self.text())
    }
}

pub fn verify(text: &str) -> Report {
    verify_export(text.as_bytes(), &unsigned())
}

/// As the tests of the chain ask: nobody signed for the ledgers that they are made on.
pub fn unsigned() -> VerifyOptions {
    VerifyOptions {
        allow_unsigned: true,
        ..VerifyOptions::default()
    }
}

/// The codes of a report, each with the event that it names.
pub fn codes(report: &Report) -> Vec<(FaultCode, Option<u64>)> {
    report
        .faults
        .iter()
        .map(|fault| (fault.code, fault.seq.map(GlobalSeq::get)))
        .collect()
}
