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
