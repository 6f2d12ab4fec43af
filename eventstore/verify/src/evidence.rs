//! The lines that make an export evidence: proofs of single events, and the blobs they refer to.
//!
//! ```text
//! {"type":"proof","seq":…,"path":["<hash>",…]}                             behind its event
//! {"type":"blob","digest":…,"bytes":…,"offset":…,"content":"<base64>"}     behind all events
//! ```
//!
//! A path leads from the event before it to the root of the tree in the first line, the lowest hash
//! first. The hashes at its upper end are mostly those of the path before: such a shared end is
//! left out, and the length that the path must have tells how much of it.
//!
//! A blob is in as many lines as it needs, in order; its digest is the plain BLAKE3 of all of it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use crate::EventHash;
use crate::GlobalSeq;
use crate::Position;
use crate::TreeHash;
use crate::export::LineError;
use crate::export::malformed;
use crate::export::render;
use crate::merkle::ProofError;
use crate::merkle::inclusion_path_length;

/// How many bytes of a blob stand in one line.
pub const BLOB_CHUNK_BYTES: usize = 2 * 1024 * 1024;

/// How a text names a blob: its digest, in as many digits.
const DIGEST_DIGITS: usize = 64;

/// The state of the ledger that an export's events are proven to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeHead {
    /// How many events the ledger had.
    pub size: Position,
    /// The root over them.
    pub root: TreeHash,
}

/// That the event in the line before is in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportProof {
    /// The event.
    pub seq: GlobalSeq,
    /// The path as far as it differs from the one before.
    pub hashes: Vec<TreeHash>,
}

/// A part of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportBlob {
    /// The plain BLAKE3 of the whole blob.
    pub digest: EventHash,
    /// How many bytes the whole blob has.
    pub bytes: u64,
    /// How many of them lie before this part.
    pub offset: u64,
    /// This part.
    pub content: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProofFields {
    r#type: String,
    seq: GlobalSeq,
    path: Vec<EventHash>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlobFields {
    r#type: String,
    digest: EventHash,
    bytes: u64,
    offset: u64,
    content: String,
}

/// The line of a proof, with its line feed.
pub fn proof_line(proof: &ExportProof) -> String {
    let hashes = proof.hashes.iter();
    render(&ProofFields {
        r#type: "proof".to_owned(),
        seq: proof.seq,
        path: hashes
            .map(|hash| EventHash::from_bytes(*hash.as_bytes()))
            .collect(),
    })
}

pub(crate) fn read_proof(text: &str) -> Result<ExportProof, LineError> {
    let fields: ProofFields = serde_json::from_str(text).map_err(malformed)?;
    let hashes = fields.path.iter();
    Ok(ExportProof {
        seq: fields.seq,
        hashes: hashes
            .map(|hash| TreeHash::from_bytes(*hash.as_bytes()))
            .collect(),
    })
}

/// The line of a part of a blob, with its line feed.
pub fn blob_line(blob: &ExportBlob) -> String {
    render(&BlobFields {
        r#type: "blob".to_owned(),
        digest: blob.digest,
        bytes: blob.bytes,
        offset: blob.offset,
        content: BASE64.encode(&blob.content),
    })
}

pub(crate) fn read_blob(text: &str) -> Result<ExportBlob, LineError> {
    let fields: BlobFields = serde_json::from_str(text).map_err(malformed)?;
    Ok(ExportBlob {
        digest: fields.digest,
        bytes: fields.bytes,
        offset: fields.offset,
        content: BASE64.decode(&fields.content).map_err(malformed)?.into(),
    })
}

/// The parts of a blob, in order. An empty one has one empty part.
pub fn blob_parts(
    digest: EventHash,
    content: &Bytes,
) -> impl Iterator<Item = ExportBlob> + Send + use<> {
    let content = content.clone();
    let parts = content.len().div_ceil(BLOB_CHUNK_BYTES).max(1);
    (0..parts).map(move |part| {
        let from = part * BLOB_CHUNK_BYTES;
        let to = content.len().min(from + BLOB_CHUNK_BYTES);
        ExportBlob {
            digest,
            bytes: u64::try_from(content.len()).unwrap_or(u64::MAX),
            offset: u64::try_from(from).unwrap_or(u64::MAX),
            content: content.slice(from..to),
        }
    })
}

/// The blobs that a payload refers to: each string in it that is a digest. Which of them are blobs
/// only the ledger knows; a digest of something else is taken for one that is not there.
pub fn blob_references(payload: &[u8]) -> Vec<EventHash> {
    let mut found: Vec<EventHash> = Vec::new();
    for text in payload.split(|byte| *byte == b'"') {
        if text.len() == DIGEST_DIGITS
            && let Some(digest) = std::str::from_utf8(text).ok().and_then(|t| t.parse().ok())
            && !found.contains(&digest)
        {
            found.push(digest);
        }
    }
    found
}

/// The blobs that a payload names as stored content: `blob` in its `stdout` and `stderr`, and the list `blobs`.
/// A digest anywhere else can be one of something that was never stored.
pub fn blob_names(payload: &[u8]) -> Vec<EventHash> {
    let Ok(payload) = serde_json::from_slice::<Value>(payload) else {
        return Vec::new();
    };
    let outputs = ["/stdout/blob", "/stderr/blob"];
    let outputs = outputs.iter().filter_map(|path| payload.pointer(path));
    let list = payload.pointer("/blobs").and_then(Value::as_array);
    let named = outputs.chain(list.into_iter().flatten());
    named
        .filter_map(|digest| digest.as_str()?.parse().ok())
        .collect()
}

/// Leaves out of each path what it shares with the one before, and puts it back.
#[derive(Debug, Default)]
pub struct Paths {
    last: Vec<TreeHash>,
}

impl Paths {
    /// The hashes to write for the next path.
    pub fn shorten(&mut self, path: Vec<TreeHash>) -> Vec<TreeHash> {
        let pairs = path.iter().rev().zip(self.last.iter().rev());
        let shared = pairs.take_while(|(new, old)| new == old).count();
        let written = path.get(..path.len() - shared).unwrap_or_default().to_vec();
        self.last = path;
        written
    }

    /// The whole of the path that `written` stands for. One that leaves out less than it could is
    /// refused: there is one way to write it.
    pub fn complete(
        &mut self,
        seq: GlobalSeq,
        size: Position,
        written: &[TreeHash],
    ) -> Result<&[TreeHash], ProofError> {
        let wanted = inclusion_path_length(seq, size)?;
        let wrong = ProofError::Length {
            found: written.len(),
            wanted,
        };
        let missing = wanted.checked_sub(written.len()).ok_or(wrong)?;
        let shared = self.last.len().checked_sub(missing).ok_or(wrong)?;
        let shared = self.last.get(shared..).unwrap_or_default();
        let path = [written, shared].concat();
        match self.shorten(path) == written {
            true => Ok(&self.last),
            false => Err(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_that_is_a_digest_is_a_reference() {
        let digest = "ab".repeat(32);
        let payload =
            format!("{{\"a\":\"{digest}\",\"b\":[\"{digest}\",\"x\\\"{digest}\"],\"c\":1}}");
        let expected: Vec<EventHash> = vec![digest.parse().unwrap()];
        assert_eq!(blob_references(payload.as_bytes()), expected);
        assert_eq!(blob_references(digest.to_uppercase().as_bytes()), []);
    }

    #[test]
    fn a_blob_is_cut_into_parts_that_make_it_whole() {
        let digest = EventHash::from_bytes([1; 32]);
        for (bytes, parts) in [
            (0, 1),
            (1, 1),
            (BLOB_CHUNK_BYTES, 1),
            (BLOB_CHUNK_BYTES + 1, 2),
        ] {
            let content = Bytes::from(vec![7; bytes]);
            let found: Vec<_> = blob_parts(digest, &content).collect();
            assert_eq!(found.len(), parts);
            let whole: Vec<u8> = found
                .iter()
                .flat_map(|part| part.content.to_vec())
                .collect();
            assert_eq!(whole, content);
        }
    }

    #[test]
    fn a_shared_end_is_left_out_and_put_back_and_has_one_form() {
        let hash = |n| TreeHash::from_bytes([n; 32]);
        let (mut writer, mut reader) = (Paths::default(), Paths::default());
        let seq = |n| GlobalSeq::new(n).unwrap();
        let size = Position::new(4);
        for (n, path, written) in [
            (1, [1, 2], vec![1, 2]),
            (2, [3, 2], vec![3]),
            (2, [3, 2], vec![]),
        ] {
            let path = path.map(hash).to_vec();
            let short = writer.shorten(path.clone());
            assert_eq!(short, written.into_iter().map(hash).collect::<Vec<_>>());
            assert_eq!(reader.complete(seq(n), size, &short), Ok(path.as_slice()));
        }
        assert!(reader.complete(seq(2), size, &[hash(9), hash(2)]).is_err());
    }
}
