//! What a writer does by itself before it queues: checks, salts and commitments.
//!
//! Hashing the payloads is most of the work of an append. It happens here, on the writer's side, so
//! that the committer has only headers to hash.

use std::collections::HashSet;

use bytes::Bytes;
use fluxvm_verify::Actor;
use fluxvm_verify::CommandId;
use fluxvm_verify::CorrelationId;
use fluxvm_verify::KEY_ROTATED_KIND;
use fluxvm_verify::StreamName;
use fluxvm_verify::payload_commitment;

use crate::AppendError;
use crate::ExpectedVersion;
use crate::NewEvent;
use crate::append::APPEND_BYTES_MAX;
use crate::append::APPEND_EVENTS_MAX;
use crate::append::ATTACHMENT_BYTES_MAX;
use crate::append::Append;
use crate::blobs::BlobDigest;
use crate::record::Body;
use crate::record::INLINE_PAYLOAD_BYTES_MAX;
use crate::shared::Shared;

/// An append with all that does not depend on its place in the chain.
pub(crate) struct Prepared {
    pub(crate) command_id: CommandId,
    pub(crate) correlation_id: CorrelationId,
    pub(crate) actor: Actor,
    pub(crate) streams: Vec<PreparedStream>,
    pub(crate) attachments: Vec<(BlobDigest, Bytes)>,
    /// How many events there are.
    pub(crate) events: usize,
    /// How many bytes they and the attachments have.
    pub(crate) bytes: usize,
}

pub(crate) struct PreparedStream {
    pub(crate) stream: StreamName,
    pub(crate) expected: ExpectedVersion,
    pub(crate) events: Vec<PreparedEvent>,
}

pub(crate) struct PreparedEvent {
    pub(crate) event: NewEvent,
    pub(crate) salt: [u8; 32],
    pub(crate) commitment: [u8; 32],
    pub(crate) body: Body,
    /// What the random part of the event's identifier is made of.
    pub(crate) id_entropy: [u8; 16],
}

/// Refuses an append that is out of bounds, whatever the state of the ledger.
pub(crate) fn check(append: &Append) -> Result<(), AppendError> {
    if append.streams.is_empty() || append.streams.iter().any(|stream| stream.events.is_empty()) {
        return Err(AppendError::Empty);
    }
    let is_reserved = |event: &NewEvent| &**event.kind() == KEY_ROTATED_KIND;
    let mut events = append.streams.iter().flat_map(|stream| &stream.events);
    if let Some(event) = events.find(|event| is_reserved(event)) {
        let kind = event.kind().clone();
        return Err(AppendError::KindReserved { kind });
    }
    let mut seen = HashSet::with_capacity(append.streams.len());
    if let Some(stream) = append
        .streams
        .iter()
        .find(|stream| !seen.insert(&stream.stream))
    {
        return Err(AppendError::StreamRepeated {
            stream: stream.stream.clone(),
        });
    }
    check_limit("events", event_count(append), APPEND_EVENTS_MAX)?;
    check_limit("bytes", byte_count(append), APPEND_BYTES_MAX)?;
    let largest = append
        .attachments
        .iter()
        .map(Bytes::len)
        .max()
        .unwrap_or_default();
    check_limit("bytes in one attachment", largest, ATTACHMENT_BYTES_MAX)
}

fn check_limit(what: &'static str, found: usize, limit: usize) -> Result<(), AppendError> {
    match found <= limit {
        true => Ok(()),
        false => Err(AppendError::TooLarge { what, found, limit }),
    }
}

fn event_count(append: &Append) -> usize {
    append
        .streams
        .iter()
        .map(|stream| stream.events.len())
        .sum()
}

fn byte_count(append: &Append) -> usize {
    let events = append.streams.iter().flat_map(|stream| &stream.events);
    let payloads: usize = events.map(|event| event.payload().len()).sum();
    payloads + append.attachments.iter().map(Bytes::len).sum::<usize>()
}

/// Whether preparing takes so long, or writes a file, that it must not happen on an async thread.
pub(crate) fn is_heavy(append: &Append) -> bool {
    byte_count(append) > INLINE_PAYLOAD_BYTES_MAX
}

/// Salts and hashes the payloads, and puts the large ones into files of their own.
pub(crate) fn prepare(append: Append, shared: &Shared) -> Result<Prepared, AppendError> {
    let events = event_count(&append);
    let bytes = byte_count(&append);
    let mut entropy = vec![0; events * ENTROPY_BYTES];
    shared.environment.entropy.fill(&mut entropy).map_err(|e| {
        // Without salts a payload could be guessed from its commitment.
        shared.poison(&format!("no randomness: {e}"));
        AppendError::Poisoned {
            reason: e.to_string(),
        }
    })?;
    let mut entropy = entropy.as_slice();
    let mut streams = Vec::with_capacity(append.streams.len());
    for stream in append.streams {
        let events = stream.events.into_iter().map(|event| {
            let (drawn, rest) = entropy
                .split_first_chunk()
                .unwrap_or((&[0; ENTROPY_BYTES], &[]));
            entropy = rest;
            prepare_event(event, drawn, shared)
        });
        let events = events.collect::<Result<_, AppendError>>()?;
        streams.push(PreparedStream {
            stream: stream.stream,
            expected: stream.expected,
            events,
        });
    }
    let attachments = append.attachments.into_iter();
    Ok(Prepared {
        command_id: append.command_id,
        correlation_id: append.correlation_id,
        actor: append.actor,
        streams,
        attachments: attachments
            .map(|bytes| (BlobDigest::of(&bytes), bytes))
            .collect(),
        events,
        bytes,
    })
}

/// Random bytes that one event needs: its salt and its identifier.
const ENTROPY_BYTES: usize = 48;

fn prepare_event(
    event: NewEvent,
    entropy: &[u8; ENTROPY_BYTES],
    shared: &Shared,
) -> Result<PreparedEvent, AppendError> {
    let salt = entropy.first_chunk().copied().unwrap_or_default();
    let id_entropy = entropy.last_chunk().copied().unwrap_or_default();
    let payload = event.payload();
    let body = if payload.len() <= INLINE_PAYLOAD_BYTES_MAX {
        Body::Inline(payload.clone())
    } else {
        let put = shared.put_blob(payload);
        Body::File(put.map_err(|e| AppendError::Blob {
            reason: e.to_string().into(),
        })?)
    };
    let commitment = payload_commitment(&salt, payload);
    Ok(PreparedEvent {
        event,
        salt,
        commitment,
        body,
        id_entropy,
    })
}
