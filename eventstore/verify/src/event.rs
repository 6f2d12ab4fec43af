//! One recorded event, as it is read back.

use bytes::Bytes;

use crate::EventHash;
use crate::GlobalSeq;
use crate::Header;
use crate::event_hash;
use crate::payload_commitment;

/// What is left of an event's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The payload is there.
    Present {
        /// Canonical JSON, byte for byte as it was hashed.
        bytes: Bytes,
        /// What the commitment was salted with.
        salt: [u8; 32],
    },
    /// The payload and its salt were erased. The commitment in the header stands in for them.
    Redacted,
}

/// An event together with its links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEvent {
    /// Everything but the payload.
    pub header: Header,
    /// The payload, unless it was erased.
    pub payload: Payload,
    /// The hash of the event before this one, or of the genesis.
    pub prev: EventHash,
    /// The hash of this event.
    pub hash: EventHash,
}

impl RecordedEvent {
    /// The event's place in the ledger.
    pub fn seq(&self) -> GlobalSeq {
        self.header.seq
    }

    /// The payload's JSON, unless it was erased.
    pub fn payload_bytes(&self) -> Option<&[u8]> {
        match &self.payload {
            Payload::Present { bytes, .. } => Some(bytes),
            Payload::Redacted => None,
        }
    }

    /// Whether header and predecessor give the hash that the event bears.
    pub fn hash_holds(&self) -> bool {
        event_hash(self.prev, &self.header) == self.hash
    }

    /// Whether the payload is the one that the header commits to. An erased one always is.
    pub fn payload_holds(&self) -> bool {
        match &self.payload {
            Payload::Present { bytes, salt } => {
                u32::try_from(bytes.len()) == Ok(self.header.payload_bytes)
                    && payload_commitment(salt, bytes) == self.header.payload_commitment
            }
            Payload::Redacted => true,
        }
    }
}
