//! A recorded event together with what it says.

use chrono::DateTime;
use chrono::Utc;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::EventId;
use fluxvm_verify::GlobalSeq;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;

use crate::event::Event;

/// What a projection sees of one recorded event.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// Its place in the ledger.
    pub seq: GlobalSeq,
    /// Its stream.
    pub stream: StreamName,
    /// Its place in the stream.
    pub version: StreamVersion,
    /// Its id, by which outcomes name their intents.
    pub id: EventId,
    /// The intent that it is the outcome of.
    pub cause: Option<EventId>,
    /// The request that it is part of.
    pub request: CorrelationId,
    /// The kind, known even when the payload was erased.
    pub kind: String,
    /// When the committer recorded it.
    pub at: DateTime<Utc>,
    /// What it says.
    pub event: Event,
}

/// Why a recorded event cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// A newer version wrote this kind.
    #[error("event kind `{kind}` is not known to this version; a newer one wrote it")]
    UnknownKind {
        /// The kind.
        kind: String,
    },
    /// A newer version changed this kind's shape.
    #[error("schema {schema} of event kind `{kind}` is not known to this version")]
    UnknownSchema {
        /// The kind.
        kind: String,
        /// The schema number.
        schema: u16,
    },
    /// The payload does not have the shape of its kind.
    #[error("the payload of event kind `{kind}` does not have its shape: {source}")]
    Payload {
        /// The kind.
        kind: String,
        /// What the JSON reader says.
        source: serde_json::Error,
    },
}

impl Envelope {
    /// Reads what a recorded event says.
    ///
    /// # Errors
    ///
    /// Those of [`Event::decode`].
    pub fn decode(recorded: &RecordedEvent) -> Result<Self, DecodeError> {
        let header = &recorded.header;
        let event = match recorded.payload_bytes() {
            Some(bytes) => Event::decode(header.kind.as_str(), header.schema, bytes)?,
            None => Event::Redacted,
        };
        Ok(Self {
            seq: header.seq,
            stream: header.stream.clone(),
            version: header.version,
            id: header.event_id,
            cause: header.causation_id,
            request: header.correlation_id,
            kind: header.kind.as_str().to_owned(),
            at: DateTime::from_timestamp_nanos(
                i64::try_from(header.recorded_at.unix_ns()).unwrap_or(i64::MAX),
            ),
            event,
        })
    }
}
