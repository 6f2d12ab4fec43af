//! The paths of the protocol, and the one place that builds a path with an exec id in it.

use std::fmt::Write;

use crate::ExecId;

/// The platform's prefix of every lifecycle hook.
pub const HOOKS_PREFIX: &str = "/aws/lambda-microvms/runtime/v1/";
/// Liveness and bootstrap state; open.
pub const HEALTH: &str = "/v1/health";
/// The protocol as a JSON document; open.
pub const SCHEMA: &str = "/v1/schema";
/// What the image configures.
pub const DISCOVERY: &str = "/v1/discovery";
/// Every exec's process group and its live members.
pub const PROCS: &str = "/v1/procs";
/// A relay to a port inside the guest.
pub const TCP: &str = "/v1/tcp";
/// One file, read or written.
pub const FILE: &str = "/v1/fs/file";
/// A tree, as an archive.
pub const TAR: &str = "/v1/fs/tar";
/// Starts an exec.
pub const EXEC_START: &str = "/v1/exec/start";
/// The prefix of everything about one exec.
pub const EXEC_PREFIX: &str = "/v1/exec/";
/// Starts an exec and follows its output in the same request; an addition of this project.
pub const EXEC_RUN: &str = "/v1/x/exec/run";
/// Takes a new token and identity; an addition of this project.
pub const IDENTITY: &str = "/v1/x/identity";
/// Ends every other connection and holds the output of what was followed; an addition of this
/// project.
pub const QUIESCE: &str = "/v1/x/quiesce";

/// What lies at a path; an addition of this project.
pub const FILE_FACTS: &str = "/v1/x/fs/stat";
/// A part of a file; an addition of this project.
pub const FILE_SLICE: &str = "/v1/x/fs/range";
/// Replaces a file as a whole; an addition of this project.
pub const FILE_PLACE: &str = "/v1/x/fs/place";
/// Removes a file or a tree; an addition of this project.
pub const FILE_REMOVE: &str = "/v1/x/fs/remove";

/// The parameter with which an archive is a set of changes that is applied exactly; an addition of this
/// project. Members of the kind [`REMOVED`] are paths that go; the others are made with their owner,
/// their permissions and their time.
pub const TAR_CHANGES: &str = "x_changes";
/// The kind of member by which a set of changes says that a path goes: a letter that archives leave to
/// whoever uses it.
pub const REMOVED: u8 = b'R';

/// The query of an acknowledgement that wants no result back; an addition of this project. A caller
/// that followed the stream has the bytes, and a result repeats up to both captures as JSON text.
pub const ACK_WITHOUT_OUTCOME: &str = "x_outcome=none";

/// The path of an exec's terminal, to resize it; an addition of this project.
pub fn resize(id: &ExecId) -> String {
    let mut path = String::from("/v1/x/exec/");
    push_encoded(&mut path, id.as_str().as_bytes());
    path.push_str("/resize");
    path
}

/// The query of an acknowledgement of the output up to an offset only, for an exec that holds its
/// output; an addition of this project. The exec may still run.
pub const ACK_OFFSET: &str = "x_offset";

/// The query of a kill that sends one signal, by its name without `SIG`, and waits for nothing; an
/// addition of this project.
pub const KILL_SIGNAL: &str = "x_signal";

/// What can be asked of one exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecVerb {
    /// Its state; the bare path.
    Poll,
    /// Its output as an event stream.
    Stream,
    /// Bytes for its standard input, or that input's end.
    Stdin,
    /// Release its output.
    Ack,
    /// Stop its process group.
    Kill,
}

impl ExecVerb {
    /// The path segment after the id, empty for the bare path.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Poll => "",
            Self::Stream => "stream",
            Self::Stdin => "stdin",
            Self::Ack => "ack",
            Self::Kill => "kill",
        }
    }
}

/// The path of a verb on an exec, with the id percent-encoded into one segment.
pub fn exec(id: &ExecId, verb: ExecVerb) -> String {
    let mut path = String::from(EXEC_PREFIX);
    push_encoded(&mut path, id.as_str().as_bytes());
    if verb != ExecVerb::Poll {
        path.push('/');
        path.push_str(verb.segment());
    }
    path
}

/// A path with a query of the given pairs, their values percent-encoded.
pub fn with_query<const N: usize>(path: &str, pairs: [(&str, &str); N]) -> String {
    let mut whole = path.to_owned();
    for (index, (name, value)) in pairs.into_iter().enumerate() {
        whole.push(if index == 0 { '?' } else { '&' });
        whole.push_str(name);
        whole.push('=');
        push_encoded(&mut whole, value.as_bytes());
    }
    whole
}

fn push_encoded(path: &mut String, text: &[u8]) {
    for &byte in text {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            // Dots are encoded too: a segment `..` must never be taken for a parent folder.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}

/// Percent-encodes a text, or a path that is none, as one segment.
pub fn encode_segment(bytes: &[u8]) -> String {
    let mut segment = String::new();
    push_encoded(&mut segment, bytes);
    segment
}

/// Undoes percent-encoding; `None` when an escape is broken or the result is not UTF-8.
pub fn decode_segment(segment: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slash_in_an_id_stays_inside_its_segment() {
        let id = ExecId::new("a/b").unwrap();
        assert_eq!(exec(&id, ExecVerb::Kill), "/v1/exec/a%2Fb/kill");
        assert_eq!(decode_segment("a%2Fb").as_deref(), Some("a/b"));
    }

    #[test]
    fn a_broken_escape_is_refused() {
        for broken in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode_segment(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn every_id_survives_the_way_through_a_path(text in ".{1,40}") {
            let id = ExecId::new(text.clone()).unwrap();
            let path = exec(&id, ExecVerb::Poll);
            let segment = path.strip_prefix(EXEC_PREFIX).unwrap();
            prop_assert!(!segment.contains('/'));
            prop_assert_eq!(decode_segment(segment), Some(text));
        }
    }
}
