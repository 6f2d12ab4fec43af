//! The binary header of an event: the bytes under its hash.
//!
//! ```text
//! format            u8      = 1
//! seq               u64     place in the ledger, from 1
//! stream            u16 n, n bytes
//! version           u64     place in the stream, from 1
//! event_id          16
//! kind              u16 n, n bytes
//! schema            u16     version of the payload's shape for this kind
//! recorded_at       u64     nanoseconds since the Unix epoch
//! actor             u16 n, n bytes
//! command_id        16
//! causation_id      16      all zero: none
//! correlation_id    16
//! payload_bytes     u32
//! payload_commitment 32
//! ```
//!
//! Integers are big-endian and texts carry their length in front: a separator could occur in a text
//! and make two headers encode alike. Decoding refuses whatever encoding would not have written, so
//! header and bytes determine each other.

use crate::Actor;
use crate::CommandId;
use crate::CorrelationId;
use crate::EventId;
use crate::EventKind;
use crate::GlobalSeq;
use crate::NameError;
use crate::PAYLOAD_BYTES_MAX;
use crate::RecordedAt;
use crate::StreamName;
use crate::StreamVersion;
use crate::names::ACTOR_BYTES_MAX;
use crate::names::EVENT_KIND_BYTES_MAX;
use crate::names::STREAM_NAME_BYTES_MAX;

/// The format of headers that this code reads and writes.
pub const FORMAT_VERSION: u8 = 1;

/// Bytes of an encoded header beside its three texts.
const FIXED_BYTES: usize = 1 + 8 + 2 + 8 + 16 + 2 + 2 + 8 + 2 + 3 * 16 + 4 + 32;

/// The longest encoded header in bytes.
pub const HEADER_BYTES_MAX: usize =
    FIXED_BYTES + STREAM_NAME_BYTES_MAX + EVENT_KIND_BYTES_MAX + ACTOR_BYTES_MAX;

const NO_CAUSATION: [u8; 16] = [0; 16];

/// Everything about an event but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The event's place in the ledger.
    pub seq: GlobalSeq,
    /// The stream that it belongs to.
    pub stream: StreamName,
    /// Its place in that stream.
    pub version: StreamVersion,
    /// Its name for ever.
    pub event_id: EventId,
    /// What happened.
    pub kind: EventKind,
    /// Which shape the payload of this kind has.
    pub schema: u16,
    /// When the committer recorded it; never earlier than the event before it.
    pub recorded_at: RecordedAt,
    /// Who caused it.
    pub actor: Actor,
    /// The append that it was written by.
    pub command_id: CommandId,
    /// The event that it answers, for example the intent of an outcome.
    pub causation_id: Option<EventId>,
    /// The request that set it off.
    pub correlation_id: CorrelationId,
    /// The length of the payload.
    pub payload_bytes: u32,
    /// The salted hash of the payload.
    pub payload_commitment: [u8; 32],
}

/// Bytes that are not a header of this format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The header has a format that this code does not know.
    #[error("the header has format {found}, this code reads format {FORMAT_VERSION}")]
    Format {
        /// The format that the header names.
        found: u8,
    },
    /// The bytes end before the header does, or go on behind it, or a text is not UTF-8.
    #[error("the bytes do not have the layout of a header")]
    Layout,
    /// A sequence number or a version is zero.
    #[error("a sequence number or a version is zero")]
    Zero,
    /// A name has a form that is never written.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The payload is said to be longer than any payload may be.
    #[error("a payload of {bytes} bytes is above the limit of {PAYLOAD_BYTES_MAX}")]
    PayloadTooLong {
        /// How long it is said to be.
        bytes: u32,
    },
}

impl Header {
    /// The bytes that are hashed and stored.
    pub fn encode(&self) -> Vec<u8> {
        let texts = self.stream.len() + self.kind.len() + self.actor.len();
        let mut out = Vec::with_capacity(FIXED_BYTES + texts);
        self.encode_into(&mut out);
        out
    }

    /// Appends the encoded header to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(FORMAT_VERSION);
        out.extend_from_slice(&self.seq.get().to_be_bytes());
        put_text(out, &self.stream);
        out.extend_from_slice(&self.version.get().to_be_bytes());
        out.extend_from_slice(self.event_id.as_bytes());
        put_text(out, &self.kind);
        out.extend_from_slice(&self.schema.to_be_bytes());
        out.extend_from_slice(&self.recorded_at.unix_ns().to_be_bytes());
        put_text(out, &self.actor);
        out.extend_from_slice(self.command_id.as_bytes());
        match &self.causation_id {
            Some(causation_id) => out.extend_from_slice(causation_id.as_bytes()),
            None => out.extend_from_slice(&NO_CAUSATION),
        }
        out.extend_from_slice(self.correlation_id.as_bytes());
        out.extend_from_slice(&self.payload_bytes.to_be_bytes());
        out.extend_from_slice(&self.payload_commitment);
    }

    /// Reads an encoded header, which must fill `bytes` exactly.
    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8().ok_or(HeaderError::Layout)?;
        if format != FORMAT_VERSION {
            return Err(HeaderError::Format { found: format });
        }
        let fields = RawFields::read(&mut reader).filter(|_| reader.is_empty());
        fields.ok_or(HeaderError::Layout)?.check()
    }
}

/// The fields as they lie in the bytes, before anything is said about their values.
struct RawFields<'a> {
    seq: u64,
    stream: &'a str,
    version: u64,
    event_id: [u8; 16],
    kind: &'a str,
    schema: u16,
    recorded_at: u64,
    actor: &'a str,
    command_id: [u8; 16],
    causation_id: [u8; 16],
    correlation_id: [u8; 16],
    payload_bytes: u32,
    payload_commitment: [u8; 32],
}

impl<'a> RawFields<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<RawFields<'a>> {
        Some(RawFields {
            seq: reader.u64()?,
            stream: reader.text()?,
            version: reader.u64()?,
            event_id: reader.array()?,
            kind: reader.text()?,
            schema: u16::from_be_bytes(reader.array()?),
            recorded_at: reader.u64()?,
            actor: reader.text()?,
            command_id: reader.array()?,
            causation_id: reader.array()?,
            correlation_id: reader.array()?,
            payload_bytes: u32::from_be_bytes(reader.array()?),
            payload_commitment: reader.array()?,
        })
    }

    fn check(self) -> Result<Header, HeaderError> {
        if self.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(HeaderError::PayloadTooLong {
                bytes: self.payload_bytes,
            });
        }
        let causation = Some(self.causation_id).filter(|id| *id != NO_CAUSATION);
        Ok(Header {
            seq: GlobalSeq::new(self.seq).ok_or(HeaderError::Zero)?,
            stream: StreamName::parse(self.stream)?,
            version: StreamVersion::new(self.version).ok_or(HeaderError::Zero)?,
            event_id: EventId::from_bytes(self.event_id),
            kind: EventKind::parse(self.kind)?,
            schema: self.schema,
            recorded_at: RecordedAt::from_unix_ns(self.recorded_at),
            actor: Actor::parse(self.actor)?,
            command_id: CommandId::from_bytes(self.command_id),
            causation_id: causation.map(EventId::from_bytes),
            correlation_id: CorrelationId::from_bytes(self.correlation_id),
            payload_bytes: self.payload_bytes,
            payload_commitment: self.payload_commitment,
        })
    }
}

/// Appends a text behind its length. Every text under a hash is far shorter than 64 KiB by its
/// type.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Takes fields off the front of a slice and never panics.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(u16::from_be_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}
