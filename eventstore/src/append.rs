//! What a writer hands to the ledger, and how it can be refused.

use std::sync::Arc;

use bytes::Bytes;
use fluxvm_verify::Actor;
use fluxvm_verify::CommandId;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::EventId;
use fluxvm_verify::EventKind;
use fluxvm_verify::INTEGER_MAGNITUDE_MAX;
use fluxvm_verify::NotCanonical;
use fluxvm_verify::PAYLOAD_BYTES_MAX;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::check_canonical;
use serde::Serialize;
use serde_json::Value;

use crate::prepare::KeptBlob;

/// The most events in one append: it must fit into one group commit.
pub const APPEND_EVENTS_MAX: usize = 512;
/// The most bytes of payloads in one append: it is held in memory while it waits.
pub const APPEND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most bytes of attachments in one append, and so of one: they are held in memory while it waits.
/// Both outputs of the largest job fit.
pub const ATTACHMENT_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The largest attachment in bytes that lies in the store beside the records, whose limit it is bound
/// by. A larger one gets a file of its own.
pub(crate) const ATTACHMENT_INLINE_BYTES_MAX: usize = 64 * 1024;

/// Events for one or more streams that become durable together or not at all.
#[derive(Clone, Debug)]
pub struct Append {
    /// Names this append. A second append with the same name is answered with the first one's
    /// result, so a command that appends twice (an intent, then its outcome) needs two of them.
    pub command_id: CommandId,
    /// The request that all of it belongs to.
    pub correlation_id: CorrelationId,
    /// Who caused it.
    pub actor: Actor,
    /// What goes to which stream; a stream may occur once.
    pub streams: Vec<StreamAppend>,
}

/// Events for one stream.
#[derive(Clone, Debug)]
pub struct StreamAppend {
    /// The stream.
    pub stream: StreamName,
    /// Where the writer believes the stream to be.
    pub expected: ExpectedVersion,
    /// What to append, at least one event.
    pub events: Vec<NewEvent>,
    /// Blobs that become durable together with the events, at most [`ATTACHMENT_BYTES_MAX`] in one append. They
    /// are read back through their digest.
    pub attachments: Vec<Bytes>,
    /// Content that is too much to be held while it waits: blobs that [`Ledger::keep_blob`] made durable,
    /// sealed as this part is. From here on they are found.
    ///
    /// [`Ledger::keep_blob`]: crate::Ledger::keep_blob
    pub kept: Vec<KeptBlob>,
    /// The stream whose key all of this is sealed with, if that stream is sealed; see
    /// [`SealOptions`](crate::SealOptions). Without it everything is as readable as the store is. Each
    /// stream of an append has its own: what becomes durable together is erased apart.
    pub sealed_for: Option<StreamName>,
}

/// Where a stream has to be for an append to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpectedVersion {
    /// It must not exist yet.
    NoStream,
    /// Its last event must have exactly this version.
    Exact(StreamVersion),
    /// It must exist, at whatever version.
    Exists,
    /// Anything goes. For streams that only ever collect facts.
    Any,
}

impl ExpectedVersion {
    /// Exactly `version`, or no stream where there is none.
    pub fn at(version: Option<StreamVersion>) -> ExpectedVersion {
        version.map_or(ExpectedVersion::NoStream, ExpectedVersion::Exact)
    }

    /// Whether a stream at `actual` is what was expected.
    pub fn allows(self, actual: Option<StreamVersion>) -> bool {
        match self {
            ExpectedVersion::NoStream => actual.is_none(),
            ExpectedVersion::Exact(version) => actual == Some(version),
            ExpectedVersion::Exists => actual.is_some(),
            ExpectedVersion::Any => true,
        }
    }
}

/// An event before the ledger has given it its place.
#[derive(Clone, Debug)]
pub struct NewEvent {
    kind: EventKind,
    schema: u16,
    payload: Bytes,
    causation: Option<EventId>,
}

impl NewEvent {
    /// An event with this payload, written as canonical JSON.
    ///
    /// Refuses floats and integers above 2^53, which a reader could not write back with certainty,
    /// and payloads above [`PAYLOAD_BYTES_MAX`].
    pub fn new(
        kind: EventKind,
        schema: u16,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<NewEvent, PayloadError> {
        let value = serde_json::to_value(payload).map_err(|e| PayloadError::Serialise {
            reason: e.to_string(),
        })?;
        check_numbers(&value)?;
        let bytes =
            serde_json_canonicalizer::to_vec(&value).map_err(|e| PayloadError::Serialise {
                reason: e.to_string(),
            })?;
        NewEvent::from_canonical(kind, schema, Bytes::from(bytes))
    }

    /// An event whose payload is canonical JSON already; anything else is refused.
    pub fn from_canonical(
        kind: EventKind,
        schema: u16,
        payload: Bytes,
    ) -> Result<NewEvent, PayloadError> {
        if payload.len() > PAYLOAD_BYTES_MAX as usize {
            return Err(PayloadError::TooLarge {
                bytes: payload.len(),
            });
        }
        check_canonical(&payload)?;
        Ok(NewEvent {
            kind,
            schema,
            payload,
            causation: None,
        })
    }

    /// Names the event that this one answers.
    #[must_use]
    pub fn caused_by(mut self, cause: EventId) -> NewEvent {
        self.causation = Some(cause);
        self
    }

    /// What happened.
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// The version of the payload's shape.
    pub fn schema(&self) -> u16 {
        self.schema
    }

    /// The payload's canonical JSON.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The event that this one answers.
    pub fn causation(&self) -> Option<EventId> {
        self.causation
    }
}

/// Canonical JSON has doubles for numbers, and the writer would round an integer that is too large.
fn check_numbers(value: &Value) -> Result<(), PayloadError> {
    match value {
        Value::Number(number) => {
            let magnitude = number
                .as_u64()
                .or_else(|| number.as_i64().map(i64::unsigned_abs));
            match magnitude {
                Some(magnitude) if magnitude <= INTEGER_MAGNITUDE_MAX => Ok(()),
                _ => Err(PayloadError::Number {
                    number: number.to_string(),
                }),
            }
        }
        Value::Array(items) => items.iter().try_for_each(check_numbers),
        Value::Object(fields) => fields.values().try_for_each(check_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Why something cannot be the payload of an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// It does not serialise to JSON.
    #[error("the payload does not serialise: {reason}")]
    Serialise {
        /// What the serialiser said.
        reason: String,
    },
    /// It holds a number that canonical JSON does not keep exactly.
    #[error("the number {number} is not an integer of at most 2^53: write it as a string")]
    Number {
        /// The number as JSON would have it.
        number: String,
    },
    /// It is above the limit.
    #[error("a payload of {bytes} bytes is above the limit of {PAYLOAD_BYTES_MAX}")]
    TooLarge {
        /// How long it is.
        bytes: usize,
    },
    /// The bytes are not canonical JSON.
    #[error(transparent)]
    NotCanonical(#[from] NotCanonical),
}

/// Why an append was refused. Nothing of it was written, unless the variant says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// A stream is not where the writer believed it to be: load it again and decide again.
    #[error("stream {stream} is at {actual:?}, expected {expected:?}")]
    Conflict {
        /// The stream.
        stream: StreamName,
        /// What the writer expected.
        expected: ExpectedVersion,
        /// Where the stream really is; none where it does not exist.
        actual: Option<StreamVersion>,
    },
    /// The append is above a limit.
    #[error("the append has {found} {what}, the limit is {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much may be.
        limit: usize,
    },
    /// The append, or the part for one stream, holds no event.
    #[error("the append holds no event")]
    Empty,
    /// A stream occurs twice, so that it would not be clear what its expected version means.
    #[error("stream {stream} occurs twice in one append")]
    StreamRepeated {
        /// The stream.
        stream: StreamName,
    },
    /// Events of this kind are written by the ledger itself, and are not erased.
    #[error("events of kind {kind} are the ledger's own: they cannot be appended or erased")]
    KindReserved {
        /// The kind.
        kind: EventKind,
    },
    /// The stream's key was destroyed, so that nothing can be sealed for it any more.
    #[error("the key of stream {stream} was destroyed")]
    KeyDestroyed {
        /// The stream.
        stream: StreamName,
    },
    /// What was to be sealed could not be.
    #[error("it could not be sealed: {reason}")]
    SealKey {
        /// What went wrong.
        reason: Arc<str>,
    },
    /// A payload that is too large for a record could not be put into a file of its own.
    #[error("a large payload could not be stored: {reason}")]
    Blob {
        /// What went wrong.
        reason: Arc<str>,
    },
    /// The ledger took harm and takes nothing more. Whether this append became durable is not
    /// known.
    #[error("the ledger is poisoned: {reason}")]
    Poisoned {
        /// The first error.
        reason: String,
    },
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
}

/// What a successful append is answered with: its events in order, linked and durable.
pub type Appended = Vec<Arc<RecordedEvent>>;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind() -> EventKind {
        EventKind::parse("test.done").unwrap()
    }

    #[test]
    fn a_payload_is_written_as_canonical_json() {
        let event = NewEvent::new(kind(), 1, &json!({"b": [1, -2], "a": "é\u{1}"})).unwrap();
        assert_eq!(
            event.payload(),
            "{\"a\":\"é\\u0001\",\"b\":[1,-2]}".as_bytes()
        );
    }

    #[test]
    fn a_number_that_a_double_might_not_hold_is_refused() {
        for payload in [
            json!(1.5),
            json!([9_007_199_254_740_993_u64]),
            json!({"x": i64::MIN}),
        ] {
            let refused = NewEvent::new(kind(), 1, &payload);
            assert!(
                matches!(refused, Err(PayloadError::Number { .. })),
                "{payload}"
            );
        }
        assert!(NewEvent::new(kind(), 1, &json!(9_007_199_254_740_992_u64)).is_ok());
    }

    #[test]
    fn a_payload_above_the_limit_is_refused() {
        let text = "x".repeat(PAYLOAD_BYTES_MAX as usize - 1);
        assert_eq!(
            NewEvent::new(kind(), 1, &text).unwrap_err(),
            PayloadError::TooLarge {
                bytes: PAYLOAD_BYTES_MAX as usize + 1
            }
        );
    }

    #[test]
    fn bytes_that_are_not_canonical_are_refused() {
        let refused = NewEvent::from_canonical(kind(), 1, Bytes::from_static(b"{ }"));
        assert!(matches!(refused, Err(PayloadError::NotCanonical(_))));
    }
}
