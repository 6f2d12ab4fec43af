//! A ledger, or one stream of it, as JSON lines.
//!
//! ```text
//! {"type":"ledger","format":1,…what the ledger began with…,"scope":…,"genesis":…}
//! {"type":"event","seq":…,…header…,"payload":<the stored bytes>,"salt":…,"prev":…,"hash":…}
//! {"type":"end","events":…,"head_seq":…,"head_hash":…}
//! ```
//!
//! Format 2 is the same as evidence: the first line names the state of the ledger that the events
//! are in (`tree_size`, `tree_root`, and `content` where that came along), lines of [proofs and blobs](crate::evidence) stand between,
//! and the last line bears the signed checkpoint of that state (`checkpoint`).
//!
//! The payload stands in the line exactly as it was hashed. A redacted event has `"payload":null`,
//! `"salt":null` and `"redacted":true`. Times have nine decimals, hashes are lower-case
//! hexadecimal.
//!
//! Each line has exactly one form, the one that the functions here write: the verifier writes every
//! line that it reads once more and compares, so that no byte of an export can change unnoticed.

use bytes::Bytes;
use serde::Deserialize;
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::Actor;
use crate::CommandId;
use crate::EventHash;
use crate::EventId;
use crate::EventKind;
use crate::FORMAT_VERSION;
use crate::Genesis;
use crate::GlobalSeq;
use crate::Header;
use crate::LedgerId;
use crate::PAYLOAD_BYTES_MAX;
use crate::Payload;
use crate::Position;
use crate::RecordedAt;
use crate::RecordedEvent;
use crate::Scope;
use crate::StreamName;
use crate::StreamVersion;
use crate::TreeHash;
use crate::evidence::ExportBlob;
use crate::evidence::ExportProof;
use crate::evidence::TreeHead;
use crate::evidence::blob_line;
use crate::evidence::proof_line;
use crate::evidence::read_blob;
use crate::evidence::read_proof;
use crate::hash::parse_hex32;

/// The longest line of an export in bytes: the largest payload and ample room for a header.
pub const LINE_BYTES_MAX: usize = PAYLOAD_BYTES_MAX as usize + 64 * 1024;

/// The format of exports that bear proofs and a checkpoint.
pub const FORMAT_EVIDENCE: u8 = 2;

/// How the scope of a whole ledger is written: nothing that a stream could be called, nor one bit
/// from it.
const WHOLE_LEDGER: &str = "whole ledger";

/// The first line: which ledger this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportHeader {
    /// The format that the lines have.
    pub format: u8,
    /// What the ledger began with.
    pub genesis: Genesis,
    /// Whether all events follow or those of one stream.
    pub scope: Scope,
    /// The genesis hash as the line states it.
    pub genesis_hash: EventHash,
    /// The state of the ledger that the events are proven to be in; there in format 2.
    pub tree: Option<TreeHead>,
    /// The stored content that events name came along. Exports from before this was said had it too.
    pub with_content: bool,
}

/// The last line: how many events there were and which was the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportEnd {
    /// How many event lines lie before this one.
    pub events: u64,
    /// The last event's place in the ledger; none where there were no events.
    pub head_seq: Option<GlobalSeq>,
    /// The last event's hash, or the genesis hash where there were no events.
    pub head_hash: EventHash,
    /// The signed checkpoint of the state in the first line; there in format 2.
    pub checkpoint: Option<String>,
}

/// One line of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "read one at a time and never kept in numbers"
)]
pub enum ExportLine {
    /// The first line.
    Header(ExportHeader),
    /// An event.
    Event(RecordedEvent),
    /// That the event before it is in the tree.
    Proof(ExportProof),
    /// A part of a blob.
    Blob(ExportBlob),
    /// The last line.
    End(ExportEnd),
}

/// Why a line is not a line of an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It does not start as any known type of line does.
    #[error("the line is of no known type")]
    UnknownType,
    /// It is not JSON, or a field is missing, unknown or of the wrong form.
    #[error("{0}")]
    Malformed(String),
    /// It says the right thing in another form than the writer's.
    #[error("the line is not byte for byte as an export writes it")]
    OtherForm,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderFields {
    r#type: String,
    format: u8,
    ledger_id: Uuid,
    origin: String,
    created_at: String,
    vkey: String,
    scope: String,
    genesis: EventHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree_size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree_root: Option<EventHash>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<bool>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventFields<'a> {
    r#type: String,
    seq: GlobalSeq,
    stream: StreamName,
    version: StreamVersion,
    event_id: EventId,
    kind: EventKind,
    schema: u16,
    recorded_at: String,
    actor: Actor,
    command_id: CommandId,
    causation_id: Option<EventId>,
    correlation_id: Uuid,
    payload_bytes: u32,
    payload_commitment: EventHash,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    salt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redacted: Option<bool>,
    prev: EventHash,
    hash: EventHash,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndFields {
    r#type: String,
    events: u64,
    head_seq: Option<GlobalSeq>,
    head_hash: EventHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
}

/// The first line of an export, with its line feed.
pub fn header_line(genesis: &Genesis, scope: &Scope) -> String {
    render_header(&ExportHeader {
        format: FORMAT_VERSION,
        genesis: genesis.clone(),
        scope: scope.clone(),
        genesis_hash: genesis.hash(),
        tree: None,
        with_content: false,
    })
}

/// The first line of an export as evidence, with its line feed.
pub fn evidence_header_line(
    genesis: &Genesis,
    scope: &Scope,
    tree: TreeHead,
    with_content: bool,
) -> String {
    render_header(&ExportHeader {
        format: FORMAT_EVIDENCE,
        genesis: genesis.clone(),
        scope: scope.clone(),
        genesis_hash: genesis.hash(),
        tree: Some(tree),
        with_content,
    })
}

/// The line of an event, with its line feed.
///
/// A payload that is not JSON, which no ledger of ours holds, is written as `null` and fails
/// verification.
pub fn event_line(event: &RecordedEvent) -> String {
    let header = &event.header;
    let (payload, salt, redacted) = match &event.payload {
        Payload::Present { bytes, salt } => (
            serde_json::from_slice(bytes).ok(),
            Some(hex::encode(salt)),
            None,
        ),
        Payload::Redacted => (None, None, Some(true)),
    };
    render(&EventFields {
        r#type: "event".to_owned(),
        seq: header.seq,
        stream: header.stream.clone(),
        version: header.version,
        event_id: header.event_id,
        kind: header.kind.clone(),
        schema: header.schema,
        recorded_at: header.recorded_at.to_rfc3339_nanos(),
        actor: header.actor.clone(),
        command_id: header.command_id,
        causation_id: header.causation_id,
        correlation_id: header.correlation_id.uuid(),
        payload_bytes: header.payload_bytes,
        payload_commitment: EventHash::from_bytes(header.payload_commitment),
        payload,
        salt,
        redacted,
        prev: event.prev,
        hash: event.hash,
    })
}

/// The last line of an export, with its line feed.
pub fn footer_line(end: &ExportEnd) -> String {
    render(&EndFields {
        r#type: "end".to_owned(),
        events: end.events,
        head_seq: end.head_seq,
        head_hash: end.head_hash,
        checkpoint: end.checkpoint.clone(),
    })
}

/// Reads one line without its line feed.
pub fn parse_line(line: &[u8]) -> Result<ExportLine, LineError> {
    let text = std::str::from_utf8(line).map_err(|e| LineError::Malformed(e.to_string()))?;
    let (parsed, rendered) = if text.starts_with(r#"{"type":"event","#) {
        let event = read_event(text)?;
        let rendered = event_line(&event);
        (ExportLine::Event(event), rendered)
    } else if text.starts_with(r#"{"type":"ledger","#) {
        let header = read_header(text)?;
        let rendered = render_header(&header);
        (ExportLine::Header(header), rendered)
    } else if text.starts_with(r#"{"type":"proof","#) {
        let proof = read_proof(text)?;
        let rendered = proof_line(&proof);
        (ExportLine::Proof(proof), rendered)
    } else if text.starts_with(r#"{"type":"blob","#) {
        let blob = read_blob(text)?;
        let rendered = blob_line(&blob);
        (ExportLine::Blob(blob), rendered)
    } else if text.starts_with(r#"{"type":"end","#) {
        let end = read_end(text)?;
        let rendered = footer_line(&end);
        (ExportLine::End(end), rendered)
    } else {
        return Err(LineError::UnknownType);
    };
    match rendered.strip_suffix('\n') == Some(text) {
        true => Ok(parsed),
        false => Err(LineError::OtherForm),
    }
}

fn render_header(header: &ExportHeader) -> String {
    render(&HeaderFields {
        r#type: "ledger".to_owned(),
        format: header.format,
        ledger_id: header.genesis.ledger_id.uuid(),
        origin: header.genesis.origin.clone(),
        created_at: header.genesis.created_at.to_rfc3339_nanos(),
        vkey: header.genesis.vkey.clone(),
        scope: match &header.scope {
            Scope::WholeLedger => WHOLE_LEDGER.to_owned(),
            Scope::OneStream(stream) => stream.as_str().to_owned(),
        },
        genesis: header.genesis_hash,
        tree_size: header.tree.map(|tree| tree.size.get()),
        tree_root: header
            .tree
            .map(|tree| EventHash::from_bytes(*tree.root.as_bytes())),
        content: header.with_content.then_some(true),
    })
}

pub(crate) fn render(fields: &impl Serialize) -> String {
    // Strings, integers and raw JSON always serialise; an empty line would fail verification.
    let mut line = serde_json::to_string(fields).unwrap_or_default();
    line.push('\n');
    line
}

fn read_header(text: &str) -> Result<ExportHeader, LineError> {
    let fields: HeaderFields = serde_json::from_str(text).map_err(malformed)?;
    let scope = match fields.scope.as_str() {
        WHOLE_LEDGER => Scope::WholeLedger,
        stream => Scope::OneStream(StreamName::parse(stream).map_err(malformed)?),
    };
    let genesis = Genesis {
        ledger_id: LedgerId::new(fields.ledger_id),
        origin: fields.origin,
        created_at: RecordedAt::parse_rfc3339_nanos(&fields.created_at).map_err(malformed)?,
        vkey: fields.vkey,
    };
    genesis.check().map_err(malformed)?;
    let tree = match (fields.format, fields.tree_size, fields.tree_root) {
        (FORMAT_EVIDENCE, Some(size), Some(root)) => Some(TreeHead {
            size: Position::new(size),
            root: TreeHash::from_bytes(*root.as_bytes()),
        }),
        (FORMAT_EVIDENCE, ..) | (_, Some(_), _) | (_, _, Some(_)) => {
            let reason = "a state of the tree belongs to format 2 and only to it";
            return Err(LineError::Malformed(reason.to_owned()));
        }
        _ => None,
    };
    if fields.content.is_some() && tree.is_none() {
        let reason = "content belongs to format 2 and only to it";
        return Err(LineError::Malformed(reason.to_owned()));
    }
    Ok(ExportHeader {
        format: fields.format,
        genesis,
        scope,
        genesis_hash: fields.genesis,
        tree,
        with_content: fields.content == Some(true),
    })
}

fn read_event(text: &str) -> Result<RecordedEvent, LineError> {
    let fields: EventFields<'_> = serde_json::from_str(text).map_err(malformed)?;
    let payload = match (fields.payload, &fields.salt, fields.redacted) {
        (payload, Some(salt), None) => Payload::Present {
            // A payload that is `null` reads as none: the value itself tells it from a missing one.
            bytes: Bytes::copy_from_slice(payload.map_or("null", RawValue::get).as_bytes()),
            salt: parse_hex32(salt)
                .ok_or_else(|| LineError::Malformed("the salt is not 32 bytes".to_owned()))?,
        },
        (None, None, Some(true)) => Payload::Redacted,
        _ => {
            return Err(LineError::Malformed(
                "neither a payload nor a redaction".to_owned(),
            ));
        }
    };
    let header = Header {
        seq: fields.seq,
        stream: fields.stream,
        version: fields.version,
        event_id: fields.event_id,
        kind: fields.kind,
        schema: fields.schema,
        recorded_at: RecordedAt::parse_rfc3339_nanos(&fields.recorded_at).map_err(malformed)?,
        actor: fields.actor,
        command_id: fields.command_id,
        causation_id: fields.causation_id,
        correlation_id: fields.correlation_id.into(),
        payload_bytes: fields.payload_bytes,
        payload_commitment: *fields.payload_commitment.as_bytes(),
    };
    Ok(RecordedEvent {
        header,
        payload,
        prev: fields.prev,
        hash: fields.hash,
    })
}

fn read_end(text: &str) -> Result<ExportEnd, LineError> {
    let fields: EndFields = serde_json::from_str(text).map_err(malformed)?;
    Ok(ExportEnd {
        events: fields.events,
        head_seq: fields.head_seq,
        head_hash: fields.head_hash,
        checkpoint: fields.checkpoint,
    })
}

pub(crate) fn malformed(error: impl std::fmt::Display) -> LineError {
    LineError::Malformed(error.to_string())
}
