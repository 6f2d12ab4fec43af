//! The body of an exec answer.
//!
//! A command can write 16 MiB to each stream. Escaped as JSON text, and in base64 beside it where it is
//! not UTF-8, that is many times as much; so the body is made while it goes out, 48 KiB of output at a
//! time, and is never whole in memory.

use std::io::Write;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fluxvm_api_types::ExecAnswer;
use fluxvm_api_types::Survivor;
use fluxvm_api_types::Survivors;

use crate::session_view;

/// Bytes of output that become one chunk of the body. A multiple of three, so that base64 has no padding
/// in its middle.
const PIECE_BYTES: usize = 48 * 1024;
const _: () = assert!(PIECE_BYTES.is_multiple_of(3));

/// Up to here the body is made whole, so that it has a length and costs one write.
const WHOLE_BYTES_MAX: usize = 64 * 1024;

/// What is kept of each stream when a whole answer is too large to be kept for an idempotency key. Text
/// grows at most sixfold in JSON, and base64 by a third.
const KEPT_STREAM_BYTES: usize = 512 * 1024;
const _: () =
    assert!(2 * KEPT_STREAM_BYTES * (6 + 2) <= crate::limits::IDEMPOTENCY_ANSWER_BYTES_MAX);

/// An exec answer with its outputs.
#[derive(Clone, Debug)]
pub(crate) struct ExecBody {
    pub(crate) answer: ExecAnswer,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
}

impl ExecBody {
    /// The answer to a command that ended.
    pub(crate) fn of(answer: fluxvm_commands::ExecAnswer) -> Self {
        let outcome = answer.outcome;
        let (stdout_dropped, stderr_dropped) =
            (outcome.stdout.dropped_bytes, outcome.stderr.dropped_bytes);
        Self {
            answer: ExecAnswer {
                result: "exec",
                seq: answer.seq,
                exit_code: outcome.exit_code,
                signal: outcome.signal,
                timed_out: outcome.timed_out,
                duration_ms: outcome.duration_ms,
                output_truncated: outcome.output_truncated(),
                stdout_dropped_bytes: stdout_dropped,
                stderr_dropped_bytes: stderr_dropped,
                enforcement: outcome.enforcement.as_deref().map(session_view::enforced),
                survivors: outcome.survivors.map(|survivors| Survivors {
                    total: survivors.total,
                    listed: survivors
                        .listed
                        .into_iter()
                        .map(|survivor| Survivor {
                            pid: survivor.pid,
                            command: survivor.command,
                        })
                        .collect(),
                }),
            },
            stdout: answer.stdout,
            stderr: answer.stderr,
        }
    }

    /// The body, whole when it is small and as it is made when it is not.
    pub(crate) fn into_body(self) -> Body {
        if self.stdout.len() + self.stderr.len() <= WHOLE_BYTES_MAX {
            return self.to_bytes().into();
        }
        let chunks = self.into_chunks().map(Ok::<_, std::convert::Infallible>);
        Body::from_stream(futures_util::stream::iter(chunks))
    }

    /// The whole body.
    pub(crate) fn to_bytes(&self) -> Bytes {
        self.clone()
            .into_chunks()
            .fold(Vec::new(), |mut all, chunk| {
                all.extend_from_slice(&chunk);
                all
            })
            .into()
    }

    /// The same answer with so little output that it can be kept. What is cut counts as dropped.
    pub(crate) fn shortened(mut self) -> Self {
        let cut = |bytes: &mut Bytes, dropped: &mut u64| {
            let rest = bytes.len().saturating_sub(KEPT_STREAM_BYTES);
            bytes.truncate(KEPT_STREAM_BYTES);
            *dropped += rest as u64;
        };
        cut(&mut self.stdout, &mut self.answer.stdout_dropped_bytes);
        cut(&mut self.stderr, &mut self.answer.stderr_dropped_bytes);
        self.answer.output_truncated = true;
        self
    }

    fn into_chunks(self) -> impl Iterator<Item = Bytes> + Send + 'static {
        let head = serde_json::to_string(&self.answer).unwrap_or_else(|_| "{}".to_owned());
        let head = head
            .strip_suffix('}')
            .map(ToOwned::to_owned)
            .unwrap_or(head);
        let mut pieces = vec![Piece::Literal(head.into())];
        for (name, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            pieces.push(Piece::Literal(format!(",\"{name}\":\"").into()));
            pieces.push(Piece::Text(bytes.clone()));
            pieces.push(Piece::Literal("\"".into()));
            if std::str::from_utf8(bytes).is_err() {
                pieces.push(Piece::Literal(format!(",\"{name}_base64\":\"").into()));
                pieces.push(Piece::Base64(bytes.clone()));
                pieces.push(Piece::Literal("\"".into()));
            }
        }
        pieces.push(Piece::Literal("}".into()));
        pieces.into_iter().flat_map(Piece::into_chunks)
    }
}

enum Piece {
    Literal(Bytes),
    Text(Bytes),
    Base64(Bytes),
}

impl Piece {
    fn into_chunks(self) -> Box<dyn Iterator<Item = Bytes> + Send> {
        match self {
            Self::Literal(bytes) => Box::new(std::iter::once(bytes)),
            Self::Text(bytes) => Box::new(
                Cut {
                    rest: bytes,
                    end: text_end,
                }
                .map(|part| escaped(&part)),
            ),
            Self::Base64(bytes) => {
                let end = |bytes: &Bytes| bytes.len().min(PIECE_BYTES);
                Box::new(Cut { rest: bytes, end }.map(|part| STANDARD.encode(part).into()))
            }
        }
    }
}

/// Cuts bytes into parts.
struct Cut {
    rest: Bytes,
    end: fn(&Bytes) -> usize,
}

impl Iterator for Cut {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        let end = (self.end)(&self.rest);
        Some(self.rest.split_to(end))
    }
}

/// Where to cut text: not within a character, if it is one.
fn text_end(bytes: &Bytes) -> usize {
    if bytes.len() <= PIECE_BYTES {
        return bytes.len();
    }
    let continues = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xC0 == 0x80);
    // A character has at most three bytes after its first.
    let starts = (PIECE_BYTES - 3..=PIECE_BYTES)
        .rev()
        .find(|at| !continues(at));
    starts.unwrap_or(PIECE_BYTES)
}

/// Text as it stands between the quotes of a JSON string; what is no UTF-8 becomes U+FFFD.
fn escaped(bytes: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(bytes);
    let mut json = Vec::with_capacity(bytes.len() + bytes.len() / 8 + 2);
    // Writing text to memory cannot fail; an empty text would be the harmless outcome if it did.
    if serde_json::to_writer(json.by_ref(), &text).is_err() {
        return Bytes::new();
    }
    let json = Bytes::from(json);
    json.slice(1..json.len().saturating_sub(1).max(1))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn body(stdout: &[u8], stderr: &[u8]) -> ExecBody {
        let answer = ExecAnswer {
            result: "exec",
            seq: 7,
            exit_code: 0,
            signal: None,
            timed_out: false,
            duration_ms: 12,
            output_truncated: false,
            stdout_dropped_bytes: 0,
            stderr_dropped_bytes: 0,
            survivors: None,
            enforcement: None,
        };
        let copy = Bytes::copy_from_slice;
        ExecBody {
            answer,
            stdout: copy(stdout),
            stderr: copy(stderr),
        }
    }

    fn read(body: &ExecBody) -> Value {
        serde_json::from_slice(&body.to_bytes()).expect("JSON")
    }

    #[test]
    fn text_goes_out_as_it_is_and_nothing_beside_it() {
        let body = body(b"a\n\n\"b\\\x01", b"");
        assert_eq!(
            body.to_bytes(),
            r#"{"result":"exec","seq":7,"exit_code":0,"duration_ms":12,"stdout":"a\n\n\"b\\\u0001","stderr":""}"#
        );
    }

    #[test]
    fn bytes_that_are_no_text_go_out_exactly_beside_it() {
        let all: Vec<u8> = (0..=255).collect();
        let answer = read(&body(&all, b"\xc3\x28"));
        assert_eq!(answer["stderr"], "\u{fffd}(");
        assert_eq!(answer["stderr_base64"], STANDARD.encode(b"\xc3\x28"));
        let exact = STANDARD.decode(answer["stdout_base64"].as_str().expect("there"));
        assert_eq!(exact.expect("base64"), all);
    }

    #[test]
    fn a_cut_between_two_chunks_splits_no_character() {
        for offset in 0..4 {
            let text = format!("{}{}", "x".repeat(offset), "€𝄞ä".repeat(20_000));
            let answer = read(&body(text.as_bytes(), b""));
            assert_eq!(answer["stdout"], text.as_str());
            assert_eq!(answer.get("stdout_base64"), None);
        }
        let noise = vec![0x80_u8; 200_000];
        let answer = read(&body(&noise, b""));
        let exact = STANDARD.decode(answer["stdout_base64"].as_str().expect("there"));
        assert_eq!(exact.expect("base64"), noise);
    }

    #[test]
    fn a_shortened_answer_fits_and_says_what_it_lacks() {
        let noise = vec![0x01_u8; 3 * 1024 * 1024];
        let short = body(&noise, &noise).shortened();
        assert!(short.to_bytes().len() <= crate::limits::IDEMPOTENCY_ANSWER_BYTES_MAX);
        let answer = read(&short);
        assert_eq!(answer["output_truncated"], true);
        assert_eq!(
            answer["stdout_dropped_bytes"],
            noise.len() - KEPT_STREAM_BYTES
        );
    }
}
