//! A header and its bytes determine each other.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use fluxvm_verify::*;
use proptest::prelude::*;

prop_compose! {
    fn header()(
        seq in 1..u64::MAX, version in 1..u64::MAX, recorded_at in any::<u64>(),
        schema in any::<u16>(), payload_bytes in 0..=PAYLOAD_BYTES_MAX,
        stream in "[a-z]{1,8}(/[A-Za-z0-9._-]{1,40})?", kind in "[a-z0-9_.]{1,64}",
        actor in "[ -~é]{1,60}", ids in any::<[[u8; 16]; 4]>(), commitment in any::<[u8; 32]>(),
        caused in any::<bool>(),
    ) -> Header {
        Header {
            seq: GlobalSeq::new(seq).unwrap(),
            stream: StreamName::parse(&stream).unwrap(),
            version: StreamVersion::new(version).unwrap(),
            event_id: EventId::from_bytes(ids[0]),
            kind: EventKind::parse(&kind).unwrap(),
            schema,
            recorded_at: RecordedAt::from_unix_ns(recorded_at),
            actor: Actor::parse(&actor).unwrap(),
            command_id: CommandId::from_bytes(ids[1]),
            causation_id: (caused && ids[2] != [0; 16]).then(|| EventId::from_bytes(ids[2])),
            correlation_id: CorrelationId::from_bytes(ids[3]),
            payload_bytes,
            payload_commitment: commitment,
        }
    }
}

proptest! {
    #[test]
    fn a_header_reads_back(header in header()) {
        let bytes = header.encode();
        prop_assert!(bytes.len() <= HEADER_BYTES_MAX);
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
    }

    #[test]
    fn bytes_that_decode_are_what_encoding_writes(
        header in header(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = header.encode();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(other) = Header::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
        }
    }

    #[test]
    fn a_torn_or_longer_header_is_refused(header in header(), more in 1..9_usize) {
        let bytes = header.encode();
        for length in 0..bytes.len() {
            prop_assert!(Header::decode(&bytes[..length]).is_err());
        }
        let longer = [bytes, vec![0; more]].concat();
        prop_assert_eq!(Header::decode(&longer), Err(HeaderError::Layout));
    }
}

#[test]
fn the_layout_is_byte_for_byte_the_documented_one() {
    let header = Header {
        seq: GlobalSeq::new(0x0102).unwrap(),
        stream: StreamName::parse("host").unwrap(),
        version: StreamVersion::new(3).unwrap(),
        event_id: EventId::from_bytes([0xa1; 16]),
        kind: EventKind::parse("boot").unwrap(),
        schema: 0x0405,
        recorded_at: RecordedAt::from_unix_ns(0x0607),
        actor: Actor::parse("me").unwrap(),
        command_id: CommandId::from_bytes([0xa2; 16]),
        causation_id: None,
        correlation_id: CorrelationId::from_bytes([0xa4; 16]),
        payload_bytes: 0x0809,
        payload_commitment: [0xa5; 32],
    };
    let expected: Vec<u8> = [
        &[1][..],
        &[0, 0, 0, 0, 0, 0, 1, 2],
        &[0, 4],
        b"host",
        &[0, 0, 0, 0, 0, 0, 0, 3],
        &[0xa1; 16],
        &[0, 4],
        b"boot",
        &[4, 5],
        &[0, 0, 0, 0, 0, 0, 6, 7],
        &[0, 2],
        b"me",
        &[0xa2; 16],
        &[0; 16],
        &[0xa4; 16],
        &[0, 0, 8, 9],
        &[0xa5; 32],
    ]
    .concat();
    assert_eq!(header.encode(), expected);
}

#[test]
fn a_header_of_another_format_says_so() {
    assert_eq!(
        Header::decode(&[2, 0, 0]),
        Err(HeaderError::Format { found: 2 })
    );
    assert_eq!(Header::decode(&[]), Err(HeaderError::Layout));
}
