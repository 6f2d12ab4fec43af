//! What a writer does by itself before it queues: checks, salts and commitments.
//!
//! Hashing the payloads is most of the work of an append. It happens here, on the writer's side, so
//! that the committer has only headers to hash.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

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
use crate::append::ATTACHMENT_INLINE_BYTES_MAX;
use crate::append::Append;
use crate::append::StreamAppend;
use crate::blobs::BLOB_BYTES_MAX;
use crate::blobs::BlobDigest;
use crate::keys;
use crate::record::Body;
use crate::record::INLINE_PAYLOAD_BYTES_MAX;
use crate::seal::SealId;
use crate::seal::SealKey;
use crate::shared::Shared;
use crate::store::Write;

/// An append with all that does not depend on its place in the chain.
pub(crate) struct Prepared {
    pub(crate) command_id: CommandId,
    pub(crate) correlation_id: CorrelationId,
    pub(crate) actor: Actor,
    pub(crate) streams: Vec<PreparedStream>,
    /// How many events there are.
    pub(crate) events: usize,
    /// How many bytes they and the attachments have in the store.
    pub(crate) bytes: usize,
}

/// A blob on its way into the store.
#[derive(Clone)]
pub(crate) struct Attachment {
    /// What is written with the events: the blob itself, or where its sealed bytes are.
    pub(crate) write: Option<Write>,
    /// The name of a file, with what lies in it where that is still in memory. It was put there already,
    /// and may have been erased since.
    pub(crate) file: Option<(BlobDigest, Option<Bytes>)>,
}

/// A blob that is durable, sealed where its stream is, and that nothing in the store leads to before an
/// append takes it up.
#[derive(Clone)]
pub struct KeptBlob {
    digest: BlobDigest,
    seal: Option<SealId>,
    attachment: Attachment,
}

impl KeptBlob {
    /// The digest of its bytes, by which it is read back.
    pub fn digest(&self) -> BlobDigest {
        self.digest
    }
}

impl fmt::Debug for KeptBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A small one has its bytes with it, which are nobody's business.
        write!(f, "KeptBlob({})", self.digest)
    }
}

pub(crate) struct PreparedStream {
    pub(crate) stream: StreamName,
    pub(crate) expected: ExpectedVersion,
    pub(crate) events: Vec<PreparedEvent>,
    pub(crate) attachments: Vec<Attachment>,
    /// What all of it is sealed with, and the stream whose key that is.
    pub(crate) seal: Option<(StreamName, Arc<SealKey>)>,
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
    check_limit("bytes", payload_bytes(append), APPEND_BYTES_MAX)?;
    check_limit(
        "bytes of attachments",
        attached_bytes(append),
        ATTACHMENT_BYTES_MAX,
    )
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

fn payload_bytes(append: &Append) -> usize {
    let events = append.streams.iter().flat_map(|stream| &stream.events);
    events.map(|event| event.payload().len()).sum()
}

fn attached_bytes(append: &Append) -> usize {
    let attachments = append.streams.iter().flat_map(|stream| &stream.attachments);
    attachments.map(Bytes::len).sum()
}

/// Whether preparing takes so long, or writes a file, that it must not happen on an async thread.
pub(crate) fn is_heavy(append: &Append, shared: &Shared) -> bool {
    let makes_key = shared.blobs.seals().is_some_and(|seals| {
        let mut sealed = append
            .streams
            .iter()
            .filter_map(|it| it.sealed_for.as_ref());
        sealed.any(|stream| seals.needs_files(stream))
    });
    makes_key || payload_bytes(append) + attached_bytes(append) > INLINE_PAYLOAD_BYTES_MAX
}

/// Salts and hashes the payloads, and puts the large ones into files of their own.
pub(crate) fn prepare(append: Append, shared: &Shared) -> Result<Prepared, AppendError> {
    let events = event_count(&append);
    let mut bytes = payload_bytes(&append);
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
        let stream = prepare_stream(stream, &mut entropy, shared)?;
        let written = stream.attachments.iter().filter_map(|it| it.write.as_ref());
        bytes += written.map(|(_, value)| value.len()).sum::<usize>();
        streams.push(stream);
    }
    Ok(Prepared {
        command_id: append.command_id,
        correlation_id: append.correlation_id,
        actor: append.actor,
        streams,
        events,
        bytes,
    })
}

fn prepare_stream(
    stream: StreamAppend,
    entropy: &mut &[u8],
    shared: &Shared,
) -> Result<PreparedStream, AppendError> {
    let seal = seal_of(stream.sealed_for.as_ref(), shared)?;
    let key = seal.as_ref().map(|(_, key)| &**key);
    let attachments = stream.attachments.into_iter();
    let attachments = attachments.map(|bytes| attach(&bytes, key, shared));
    let kept = stream.kept.into_iter().map(|kept| take_up(kept, key));
    let attachments = attachments.chain(kept);
    let attachments = attachments.collect::<Result<_, AppendError>>()?;
    let events = stream.events.into_iter().map(|event| {
        let (drawn, rest) = entropy
            .split_first_chunk()
            .unwrap_or((&[0; ENTROPY_BYTES], &[]));
        *entropy = rest;
        prepare_event(event, drawn, key, shared)
    });
    let events = events.collect::<Result<_, AppendError>>()?;
    Ok(PreparedStream {
        stream: stream.stream,
        expected: stream.expected,
        events,
        attachments,
        seal,
    })
}

/// What is sealed with which key; `None` where it is not to be, or the key's stream is not sealed.
fn seal_of(
    stream: Option<&StreamName>,
    shared: &Shared,
) -> Result<Option<(StreamName, Arc<SealKey>)>, AppendError> {
    let Some((stream, seals)) = stream.zip(shared.blobs.seals()) else {
        return Ok(None);
    };
    let is_new = || shared.memory().latest_version(stream).is_none();
    let key = seals.key_for(stream, is_new)?;
    Ok(key.map(|key| (stream.clone(), key)))
}

/// Makes a blob durable, sealed with the stream's key if the stream is sealed.
pub(crate) fn keep(
    stream: Option<&StreamName>,
    bytes: &Bytes,
    shared: &Shared,
) -> Result<KeptBlob, AppendError> {
    check_limit("bytes of a blob", bytes.len(), BLOB_BYTES_MAX)?;
    let seal = seal_of(stream, shared)?;
    let key = seal.as_ref().map(|(_, key)| &**key);
    let mut attachment = attach(bytes, key, shared)?;
    if let Some((_, held)) = &mut attachment.file {
        *held = None;
    }
    Ok(KeptBlob {
        digest: BlobDigest::of(bytes),
        seal: key.map(|key| key.id),
        attachment,
    })
}

/// A kept blob as a part of an append that is sealed with this key.
fn take_up(kept: KeptBlob, key: Option<&SealKey>) -> Result<Attachment, AppendError> {
    match kept.seal == key.map(|key| key.id) {
        true => Ok(kept.attachment),
        false => Err(AppendError::Blob {
            reason: "it was kept for another stream".into(),
        }),
    }
}

fn attach(
    bytes: &Bytes,
    key: Option<&SealKey>,
    shared: &Shared,
) -> Result<Attachment, AppendError> {
    let digest = BlobDigest::of(bytes);
    let Some(key) = key else {
        return Ok(match bytes.len() <= ATTACHMENT_INLINE_BYTES_MAX {
            true => Attachment {
                write: Some((keys::blob(&digest).to_vec(), bytes.to_vec())),
                file: None,
            },
            false => Attachment {
                write: None,
                file: Some((put(bytes, shared)?, Some(bytes.clone()))),
            },
        });
    };
    let sealed = key.seal_blob(&digest, bytes)?;
    let place = keys::sealed_blob(&key.place(&digest)).to_vec();
    if sealed.len() <= INLINE_PAYLOAD_BYTES_MAX {
        let value = [&[keys::SEALED_INLINE], sealed.as_ref()].concat();
        return Ok(Attachment {
            write: Some((place, value)),
            file: None,
        });
    }
    let file = put(&sealed, shared)?;
    let value = [&[keys::SEALED_FILE], file.as_bytes().as_slice()].concat();
    Ok(Attachment {
        write: Some((place, value)),
        file: Some((file, Some(sealed))),
    })
}

fn put(bytes: &[u8], shared: &Shared) -> Result<BlobDigest, AppendError> {
    shared.put_blob(bytes).map_err(|e| AppendError::Blob {
        reason: e.to_string().into(),
    })
}

/// Random bytes that one event needs: its salt and its identifier.
const ENTROPY_BYTES: usize = 48;

fn prepare_event(
    event: NewEvent,
    entropy: &[u8; ENTROPY_BYTES],
    key: Option<&SealKey>,
    shared: &Shared,
) -> Result<PreparedEvent, AppendError> {
    let salt = entropy.first_chunk().copied().unwrap_or_default();
    let id_entropy = entropy.last_chunk().copied().unwrap_or_default();
    let payload = event.payload();
    let commitment = payload_commitment(&salt, payload);
    let is_small = payload.len() <= INLINE_PAYLOAD_BYTES_MAX;
    let body = match key {
        None if is_small => Body::Inline(payload.clone()),
        None => Body::File(put(payload, shared)?),
        Some(key) => {
            let sealed = key.seal_event(&commitment, &salt, payload)?;
            match is_small {
                true => Body::Sealed(key.id, sealed),
                false => Body::SealedFile(key.id, put(&sealed, shared)?),
            }
        }
    };
    Ok(PreparedEvent {
        event,
        salt,
        commitment,
        body,
        id_entropy,
    })
}
