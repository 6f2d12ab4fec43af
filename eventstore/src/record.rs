//! How an event lies in the store.
//!
//! ```text
//! version      u8   = 1
//! storage      u8   0: payload in the record · 1: payload in a blob file · 2: payload redacted
//!                   3: sealed payload in the record · 4: sealed payload in a blob file
//! header_bytes u16
//! header       the encoded header, `header_bytes` long
//! prev         32   hash of the event before
//! hash         32   hash of this event
//! salt         32   of the payload commitment; zero where the payload is redacted or sealed
//! storage 0:   the payload, as long as the header says
//! storage 1:   32, plain BLAKE3 of the payload: the name of its blob
//! storage 2:   nothing
//! storage 3:   16, the name of the key ‖ salt and payload, sealed
//! storage 4:   16, the name of the key ‖ 32, plain BLAKE3 of the sealed bytes: the name of their blob
//! ```
//!
//! Integers are big-endian. The record ends where the last field does. This layout can never
//! change: a new one gets a new version byte, and this one stays readable for as long as there are
//! ledgers.

use bytes::Bytes;
use fluxvm_verify::EventHash;
use fluxvm_verify::HEADER_BYTES_MAX;
use fluxvm_verify::Header;
use fluxvm_verify::HeaderError;
use fluxvm_verify::Payload;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::event_hash_of_encoded;

use crate::blobs::BlobDigest;
use crate::seal::SealId;
use crate::seal::TAG_BYTES;

/// The version of the layout that this code writes.
pub(crate) const RECORD_VERSION: u8 = 1;

/// The largest record in bytes, whatever it holds. The store's segment size is chosen after it.
pub(crate) const RECORD_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a record beside header and payload.
const FRAME_BYTES: usize = 1 + 1 + 2 + 32 + 32 + 32;

/// The largest payload that lies in the record itself; a larger one gets a file of its own.
pub(crate) const INLINE_PAYLOAD_BYTES_MAX: usize = 63 * 1024;

/// What sealing adds to a record: the name of the key, and the tag. The salt changes its place.
const SEAL_BYTES: usize = 16 + 32 + TAG_BYTES;

const _: () = assert!(
    FRAME_BYTES + HEADER_BYTES_MAX + INLINE_PAYLOAD_BYTES_MAX + SEAL_BYTES <= RECORD_BYTES_MAX
);

const STORAGE_INLINE: u8 = 0;
const STORAGE_FILE: u8 = 1;
const STORAGE_REDACTED: u8 = 2;
const STORAGE_SEALED: u8 = 3;
const STORAGE_SEALED_FILE: u8 = 4;

/// Where the payload of a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the record.
    Inline(Bytes),
    /// In a blob file of this name.
    File(BlobDigest),
    /// Erased.
    Redacted,
    /// In the record, sealed with the key of this name.
    Sealed(SealId, Bytes),
    /// In a blob file of this name, sealed with the key of that one.
    SealedFile(SealId, BlobDigest),
}

/// A record taken apart, its hash checked, its payload not yet.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) prev: EventHash,
    pub(crate) hash: EventHash,
    pub(crate) salt: [u8; 32],
    pub(crate) body: Body,
}

/// Bytes that are not a record, or not the one that was hashed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("the record has version {found}, this program reads {RECORD_VERSION}")]
    Version { found: u8 },
    #[error("the record is torn or altered: its layout does not hold")]
    Layout,
    #[error("the record's header cannot be read: {0}")]
    Header(#[from] HeaderError),
    #[error("the record's header or predecessor is not the one that was hashed")]
    Hash,
    #[error("the payload is not the one that was hashed")]
    Payload,
}

/// The record of an event whose payload is in `body`.
pub(crate) fn encode(event: &RecordedEvent, body: &Body) -> Vec<u8> {
    encode_with(event, &event.header.encode(), body)
}

/// The same, with the event's header at hand as it is hashed.
pub(crate) fn encode_with(event: &RecordedEvent, header: &[u8], body: &Body) -> Vec<u8> {
    let salt = match (&event.payload, body) {
        (Payload::Present { salt, .. }, Body::Inline(_) | Body::File(_)) => *salt,
        _ => [0; 32],
    };
    let (storage, seal, rest): (u8, &[u8], &[u8]) = match body {
        Body::Inline(payload) => (STORAGE_INLINE, &[], payload),
        Body::File(digest) => (STORAGE_FILE, &[], digest.as_bytes()),
        Body::Redacted => (STORAGE_REDACTED, &[], &[]),
        Body::Sealed(id, sealed) => (STORAGE_SEALED, id.as_bytes(), sealed),
        Body::SealedFile(id, digest) => (STORAGE_SEALED_FILE, id.as_bytes(), digest.as_bytes()),
    };
    let bytes = FRAME_BYTES + header.len() + seal.len() + rest.len();
    let mut out = Vec::with_capacity(bytes);
    out.extend_from_slice(&[RECORD_VERSION, storage]);
    // A header is far shorter than 64 KiB by the limits of its names.
    let header_bytes = u16::try_from(header.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&header_bytes.to_be_bytes());
    out.extend_from_slice(header);
    out.extend_from_slice(event.prev.as_bytes());
    out.extend_from_slice(event.hash.as_bytes());
    out.extend_from_slice(&salt);
    out.extend_from_slice(seal);
    out.extend_from_slice(rest);
    out
}

/// Takes a record apart and checks its hash. The payload shares the record's memory.
pub(crate) fn decode(bytes: &Bytes) -> Result<Record, RecordError> {
    let (fixed, rest) = bytes.split_first_chunk::<4>().ok_or(RecordError::Layout)?;
    let [version, storage, high, low] = *fixed;
    if version != RECORD_VERSION {
        return Err(RecordError::Version { found: version });
    }
    let header_bytes = usize::from(u16::from_be_bytes([high, low]));
    let (encoded, rest) = rest
        .split_at_checked(header_bytes)
        .ok_or(RecordError::Layout)?;
    let (prev, rest) = rest.split_first_chunk::<32>().ok_or(RecordError::Layout)?;
    let (hash, rest) = rest.split_first_chunk::<32>().ok_or(RecordError::Layout)?;
    let (salt, rest) = rest.split_first_chunk::<32>().ok_or(RecordError::Layout)?;

    let (prev, hash) = (EventHash::from_bytes(*prev), EventHash::from_bytes(*hash));
    if event_hash_of_encoded(prev, encoded) != hash {
        return Err(RecordError::Hash);
    }
    let body = match storage {
        STORAGE_INLINE => Body::Inline(bytes.slice_ref(rest)),
        STORAGE_FILE => Body::File(BlobDigest::from_bytes(
            rest.try_into().map_err(|_| RecordError::Layout)?,
        )),
        STORAGE_REDACTED if rest.is_empty() && *salt == [0; 32] => Body::Redacted,
        STORAGE_SEALED | STORAGE_SEALED_FILE if *salt == [0; 32] => {
            sealed(storage, bytes, rest).ok_or(RecordError::Layout)?
        }
        _ => return Err(RecordError::Layout),
    };
    Ok(Record {
        header: Header::decode(encoded)?,
        prev,
        hash,
        salt: *salt,
        body,
    })
}

fn sealed(storage: u8, record: &Bytes, rest: &[u8]) -> Option<Body> {
    let (id, rest) = rest.split_first_chunk::<16>()?;
    let id = SealId::from_bytes(*id);
    match storage {
        STORAGE_SEALED => Some(Body::Sealed(id, record.slice_ref(rest))),
        _ => Some(Body::SealedFile(
            id,
            BlobDigest::from_bytes(rest.try_into().ok()?),
        )),
    }
}

/// The blob file that holds the payload of this record, if one does. Nothing is checked.
pub(crate) fn payload_file(record: &[u8]) -> Option<BlobDigest> {
    let in_file = matches!(record.get(1), Some(&STORAGE_FILE | &STORAGE_SEALED_FILE));
    let digest = record.last_chunk::<32>().filter(|_| in_file)?;
    Some(BlobDigest::from_bytes(*digest))
}

/// The name of the key that this record is sealed with, if it is. Nothing is checked.
pub(crate) fn seal_id(record: &[u8]) -> Option<SealId> {
    let storage = *record.get(1)?;
    if !matches!(storage, STORAGE_SEALED | STORAGE_SEALED_FILE) {
        return None;
    }
    let header_bytes = u16::from_be_bytes([*record.get(2)?, *record.get(3)?]);
    let id = record.get(FRAME_BYTES + usize::from(header_bytes)..)?;
    id.first_chunk().map(|id| SealId::from_bytes(*id))
}

impl Record {
    /// The event with this record's header and `payload`, if that is the payload which was hashed.
    pub(crate) fn into_event(self, payload: Option<Bytes>) -> Result<RecordedEvent, RecordError> {
        let payload = match payload {
            Some(bytes) => Payload::Present {
                bytes,
                salt: self.salt,
            },
            None => Payload::Redacted,
        };
        let Record {
            header, prev, hash, ..
        } = self;
        let event = RecordedEvent {
            header,
            payload,
            prev,
            hash,
        };
        if event.payload_holds() {
            Ok(event)
        } else {
            Err(RecordError::Payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use fluxvm_verify::Actor;
    use fluxvm_verify::CommandId;
    use fluxvm_verify::CorrelationId;
    use fluxvm_verify::EventId;
    use fluxvm_verify::EventKind;
    use fluxvm_verify::GlobalSeq;
    use fluxvm_verify::RecordedAt;
    use fluxvm_verify::StreamName;
    use fluxvm_verify::StreamVersion;
    use fluxvm_verify::event_hash;
    use fluxvm_verify::payload_commitment;

    use super::*;

    fn event(payload: &'static str) -> RecordedEvent {
        let salt = [3; 32];
        let header = Header {
            seq: GlobalSeq::new(9).unwrap(),
            stream: StreamName::parse("session/a").unwrap(),
            version: StreamVersion::new(4).unwrap(),
            event_id: EventId::from_bytes([1; 16]),
            kind: EventKind::parse("exec").unwrap(),
            schema: 2,
            recorded_at: RecordedAt::from_unix_ns(77),
            actor: Actor::parse("admin:ops").unwrap(),
            command_id: CommandId::from_bytes([2; 16]),
            causation_id: None,
            correlation_id: CorrelationId::from_bytes([5; 16]),
            payload_bytes: u32::try_from(payload.len()).unwrap(),
            payload_commitment: payload_commitment(&salt, payload.as_bytes()),
        };
        let prev = EventHash::from_bytes([8; 32]);
        let hash = event_hash(prev, &header);
        let payload = Payload::Present {
            bytes: Bytes::from(payload),
            salt,
        };
        RecordedEvent {
            header,
            payload,
            prev,
            hash,
        }
    }

    fn bodies() -> Vec<(RecordedEvent, Body, Option<Bytes>)> {
        let payload = Bytes::from("{\"a\":1}");
        let digest = BlobDigest::of(&payload);
        let redacted = RecordedEvent {
            payload: Payload::Redacted,
            ..event("{\"a\":1}")
        };
        vec![
            (
                event("{\"a\":1}"),
                Body::Inline(payload.clone()),
                Some(payload.clone()),
            ),
            (event("{\"a\":1}"), Body::File(digest), Some(payload)),
            (redacted, Body::Redacted, None),
        ]
    }

    #[test]
    fn a_record_reads_back_as_the_event_that_it_was_made_of() {
        for (event, body, payload) in bodies() {
            let record = decode(&Bytes::from(encode(&event, &body))).unwrap();
            assert_eq!(record.body, body);
            assert_eq!(record.into_event(payload).unwrap(), event);
        }
    }

    #[test]
    fn no_flipped_bit_and_no_other_length_passes() {
        for (event, body, payload) in bodies() {
            let good = encode(&event, &body);
            let passes = |bytes: Vec<u8>| {
                let record = decode(&Bytes::from(bytes))?;
                let payload = match &record.body {
                    Body::Inline(bytes) => Some(bytes.clone()),
                    Body::File(digest)
                        if Some(*digest) != payload.as_deref().map(BlobDigest::of) =>
                    {
                        return Err(RecordError::Payload);
                    }
                    Body::File(_) => payload.clone(),
                    Body::Redacted => None,
                    Body::Sealed(..) | Body::SealedFile(..) => return Err(RecordError::Payload),
                };
                record.into_event(payload)
            };
            assert_eq!(passes(good.clone()), Ok(event));
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(passes(bad).is_err(), "bit {bit} of {body:?}");
            }
            for length in 0..good.len() {
                assert!(
                    passes(good[..length].to_vec()).is_err(),
                    "{length} bytes of {body:?}"
                );
            }
            assert!(passes([good.as_slice(), &[0]].concat()).is_err());
        }
    }

    #[test]
    fn the_layout_is_byte_for_byte_the_documented_one() {
        for (event, body, _) in bodies() {
            let header = event.header.encode();
            let (storage, salt, rest) = match &body {
                Body::Inline(payload) => (0, [3; 32], payload.to_vec()),
                Body::File(digest) => (1, [3; 32], digest.as_bytes().to_vec()),
                Body::Redacted => (2, [0; 32], vec![]),
                Body::Sealed(..) | Body::SealedFile(..) => unreachable!(),
            };
            let expected: Vec<u8> = [
                &[1, storage][..],
                &[0, u8::try_from(header.len()).unwrap()],
                &header,
                &[8; 32],
                event.hash.as_bytes(),
                &salt,
                &rest,
            ]
            .concat();
            assert_eq!(encode(&event, &body), expected);
        }
    }

    #[test]
    fn a_sealed_record_has_no_salt_to_read_and_names_its_key() {
        let event = event("{\"a\":1}");
        let id = SealId::from_bytes([6; 16]);
        let digest = BlobDigest::from_bytes([9; 32]);
        let bodies = [
            (
                3,
                Body::Sealed(id, Bytes::from_static(b"sealed")),
                b"sealed".to_vec(),
            ),
            (4, Body::SealedFile(id, digest), vec![9; 32]),
        ];
        for (storage, body, rest) in bodies {
            let record = encode(&event, &body);
            assert_eq!(record[1], storage);
            let tail = [&[0; 32], id.as_bytes().as_slice(), &rest].concat();
            assert!(record.ends_with(&tail));
            let read = decode(&Bytes::from(record.clone())).unwrap();
            assert_eq!(read.body, body);
            assert_eq!(payload_file(&record), (storage == 4).then_some(digest));
            let mut salted = record;
            let place = salted.len() - tail.len();
            salted[place] = 1;
            let refused = decode(&Bytes::from(salted)).unwrap_err();
            assert_eq!(refused, RecordError::Layout);
        }
    }

    #[test]
    fn a_record_of_a_newer_version_says_so() {
        let mut bytes = encode(&bodies()[0].0, &bodies()[0].1);
        bytes[0] = 2;
        let refused = decode(&Bytes::from(bytes)).unwrap_err();
        assert_eq!(refused, RecordError::Version { found: 2 });
    }
}
