//! The public view of recorded events, as JSON and as frames of a stream.

use fluxvm_api_types::EventView;
use fluxvm_eventstore::RecordedEvent;
use serde_json::value::RawValue;

/// Writes one event as a JSON object on one line.
pub(crate) fn write_event(out: &mut Vec<u8>, event: &RecordedEvent) {
    let header = &event.header;
    // The payload is the canonical JSON that was hashed; it is passed on and not rewritten.
    let data: Option<&RawValue> = event
        .payload_bytes()
        .and_then(|bytes| serde_json::from_slice(bytes).ok());
    let view = EventView {
        seq: header.seq.get(),
        stream: header.stream.as_str(),
        version: header.version.get(),
        kind: header.kind.as_str(),
        at: header.recorded_at.to_rfc3339(),
        actor: header.actor.as_str(),
        request: header.correlation_id.uuid(),
        data,
        redacted: event.payload_bytes().is_none().then_some(true),
        prev: event.prev.to_string(),
        hash: event.hash.to_string(),
    };
    let start = out.len();
    if serde_json::to_writer(&mut *out, &view).is_err() {
        // Strings and numbers into memory: it cannot fail; half an object must not stay if it does.
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Writes one event as a frame of the event stream. Its seq is its id, so that `Last-Event-ID` is where
/// the client was.
pub(crate) fn write_frame(out: &mut Vec<u8>, event: &RecordedEvent) {
    out.extend_from_slice(b"event: ledger\nid: ");
    out.extend_from_slice(event.header.seq.get().to_string().as_bytes());
    out.extend_from_slice(b"\ndata: ");
    write_event(out, event);
    out.extend_from_slice(b"\n\n");
}

/// Writes the frame that ends a stream.
pub(crate) fn write_error_frame(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(b"event: error\ndata: ");
    out.extend_from_slice(body);
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use expect_test::expect;
    use fluxvm_eventstore::Actor;
    use fluxvm_eventstore::CommandId;
    use fluxvm_eventstore::CorrelationId;
    use fluxvm_eventstore::EventHash;
    use fluxvm_eventstore::EventId;
    use fluxvm_eventstore::EventKind;
    use fluxvm_eventstore::GlobalSeq;
    use fluxvm_eventstore::Header;
    use fluxvm_eventstore::Payload;
    use fluxvm_eventstore::RecordedAt;
    use fluxvm_eventstore::StreamName;
    use fluxvm_eventstore::StreamVersion;
    use uuid::Uuid;

    use super::*;

    fn event(payload: Payload) -> RecordedEvent {
        let id = Uuid::from_u128(1);
        let header = Header {
            seq: GlobalSeq::new(42).expect("seq"),
            stream: StreamName::parse("session/0c1d").expect("stream"),
            version: StreamVersion::new(6).expect("version"),
            event_id: EventId::new(id),
            kind: EventKind::parse("exec").expect("kind"),
            schema: 1,
            recorded_at: RecordedAt::from_unix_ns(1_796_119_200_123_456_789),
            actor: Actor::parse("admin:ops").expect("actor"),
            command_id: CommandId::new(id),
            causation_id: None,
            correlation_id: CorrelationId::new(id),
            payload_bytes: 9,
            payload_commitment: [0; 32],
        };
        let hash = EventHash::from_bytes([7; 32]);
        RecordedEvent {
            header,
            payload,
            prev: hash,
            hash,
        }
    }

    #[test]
    fn a_frame_has_the_seq_as_its_id_and_the_event_on_one_line() {
        let bytes = Bytes::from_static(br#"{"a":"x\ny"}"#);
        let mut out = Vec::new();
        write_frame(
            &mut out,
            &event(Payload::Present {
                bytes,
                salt: [0; 32],
            }),
        );
        expect![[r#"
            event: ledger
            id: 42
            data: {"seq":42,"stream":"session/0c1d","version":6,"kind":"exec","at":"2026-12-01T10:00:00.123456Z","actor":"admin:ops","request":"00000000-0000-0000-0000-000000000001","data":{"a":"x\ny"},"prev":"0707070707070707070707070707070707070707070707070707070707070707","hash":"0707070707070707070707070707070707070707070707070707070707070707"}

        "#]].assert_eq(std::str::from_utf8(&out).expect("text"));
    }

    #[test]
    fn an_erased_payload_is_null_and_says_so() {
        let mut out = Vec::new();
        write_event(&mut out, &event(Payload::Redacted));
        let view: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(
            (&view["data"], &view["redacted"]),
            (&serde_json::Value::Null, &true.into())
        );
    }
}
