//! One group commit in the making: the appends admitted so far, linked behind the head.

use std::collections::HashMap;
use std::sync::Arc;

use fluxvm_verify::CommandId;
use fluxvm_verify::EventHash;
use fluxvm_verify::EventId;
use fluxvm_verify::Header;
use fluxvm_verify::Payload;
use fluxvm_verify::RecordedAt;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::event_hash_of_encoded;
use tokio::sync::oneshot;

use crate::AppendError;
use crate::Appended;
use crate::Head;
use crate::keys;
use crate::memory::Memory;
use crate::prepare::Prepared;
use crate::prepare::PreparedEvent;
use crate::record;
use crate::store::Write;

/// Beyond so many events a group takes no further append.
const GROUP_EVENTS_MAX: usize = 512;
/// Beyond so many bytes a group takes no further append.
const GROUP_BYTES_MAX: usize = 1024 * 1024;

/// Where an answer goes.
pub(crate) type Reply = oneshot::Sender<Result<Appended, AppendError>>;

/// The appends of one commit and what they come to.
pub(crate) struct Group {
    /// Where the chain will end.
    pub(crate) head: Head,
    pub(crate) last_recorded_at: RecordedAt,
    pub(crate) events: Vec<Arc<RecordedEvent>>,
    pub(crate) writes: Vec<Write>,
    /// Earlier events that are erased with this group, in their erased form.
    pub(crate) redacted: Vec<Arc<RecordedEvent>>,
    /// In the order in which they were asked.
    pub(crate) answers: Vec<(Reply, Result<Appended, AppendError>)>,
    /// Whether no checkpoint may be signed together with this group.
    pub(crate) is_signed_later: bool,
    versions: HashMap<StreamName, StreamVersion>,
    bytes: usize,
}

impl Group {
    pub(crate) fn new(head: Head, last_recorded_at: RecordedAt) -> Group {
        Group {
            head,
            last_recorded_at,
            events: Vec::new(),
            writes: Vec::new(),
            redacted: Vec::new(),
            answers: Vec::new(),
            is_signed_later: false,
            versions: HashMap::new(),
            bytes: 0,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= GROUP_EVENTS_MAX || self.bytes >= GROUP_BYTES_MAX
    }

    /// The events of a command that is in this group.
    pub(crate) fn events_of(&self, command_id: CommandId) -> Option<Appended> {
        let of_command = |event: &&Arc<RecordedEvent>| event.header.command_id == command_id;
        let events: Appended = self.events.iter().filter(of_command).cloned().collect();
        Some(events).filter(|events| !events.is_empty())
    }

    /// Links the append behind what is there, unless a stream is not where it was expected.
    pub(crate) fn admit(
        &mut self,
        append: Prepared,
        now: RecordedAt,
        memory: &Memory,
    ) -> Result<Appended, AppendError> {
        let mut versions = Vec::with_capacity(append.streams.len());
        for stream in &append.streams {
            let staged = self.versions.get(&stream.stream).copied();
            let actual = staged.or_else(|| memory.latest_version(&stream.stream));
            if !stream.expected.allows(actual) {
                let (stream, expected) = (stream.stream.clone(), stream.expected);
                return Err(AppendError::Conflict {
                    stream,
                    expected,
                    actual,
                });
            }
            versions.push(actual);
        }
        // A clock that was set back must not make the ledger's time go back.
        self.last_recorded_at = self.last_recorded_at.max(now);
        let (command_id, correlation_id) = (append.command_id, append.correlation_id);
        let mut appended = Vec::with_capacity(append.events);
        for (stream, mut version) in append.streams.into_iter().zip(versions) {
            for prepared in stream.events {
                let next = StreamVersion::after(version);
                version = Some(next);
                let header = Header {
                    seq: self.head.position.next_seq(),
                    stream: stream.stream.clone(),
                    version: next,
                    event_id: event_id(self.last_recorded_at, prepared.id_entropy),
                    kind: prepared.event.kind().clone(),
                    schema: prepared.event.schema(),
                    recorded_at: self.last_recorded_at,
                    actor: append.actor.clone(),
                    command_id,
                    causation_id: prepared.event.causation(),
                    correlation_id,
                    payload_bytes: u32::try_from(prepared.event.payload().len())
                        .unwrap_or(u32::MAX),
                    payload_commitment: prepared.commitment,
                };
                appended.push(self.link(header, prepared));
            }
            self.versions
                .extend(version.map(|version| (stream.stream, version)));
        }
        self.bytes += append.bytes;
        Ok(appended)
    }

    fn link(&mut self, header: Header, prepared: PreparedEvent) -> Arc<RecordedEvent> {
        let prev = self.head.hash;
        let encoded = header.encode();
        let hash: EventHash = event_hash_of_encoded(prev, &encoded);
        self.head = Head {
            position: header.seq.position(),
            hash,
        };
        let payload = Payload::Present {
            bytes: prepared.event.payload().clone(),
            salt: prepared.salt,
        };
        let event = RecordedEvent {
            header,
            payload,
            prev,
            hash,
        };
        let record = record::encode_with(&event, &encoded, &prepared.body);
        self.writes
            .push((keys::event(event.seq()).to_vec(), record));
        let event = Arc::new(event);
        self.events.push(Arc::clone(&event));
        event
    }
}

/// A version 7 UUID: milliseconds first, so that identifiers sort as their events do, then
/// randomness.
fn event_id(recorded_at: RecordedAt, entropy: [u8; 16]) -> EventId {
    let random = entropy.first_chunk::<10>().copied().unwrap_or_default();
    EventId::new(
        uuid::Builder::from_unix_timestamp_millis(recorded_at.unix_ms(), &random).into_uuid(),
    )
}
