//! Jobs and their output as the API shows them.

use std::borrow::Cow;
use std::time::Duration;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_api_types::JobExitView;
use fluxvm_api_types::JobFailureView;
use fluxvm_api_types::JobView;
use fluxvm_commands::JobNow;
use fluxvm_projections::Job;

use crate::session_view;

/// What runs jobs.
const ENGINE: &str = "supervisor";

/// A job as it is listed.
pub(crate) fn view(job: &Job) -> JobView {
    let rfc3339 = |at: &DateTime<Utc>| fluxvm_api_types::rfc3339(at);
    JobView {
        job: job.id.0,
        command: job.command.clone(),
        state: job.state.as_str(),
        exit_code: job.exit_code,
        signal: job.signal,
        engine: ENGINE,
        started_at: rfc3339(&job.started_at),
        ended_at: job.ended_at.as_ref().map(rfc3339),
        stdin: job.stdin,
        stdin_bytes: job.stdin_bytes,
        stdin_lost_seconds: job.stdin_lost_ms.map(seconds),
        stdin_cut: job.stdin_cut,
        timeout_seconds: job.timeout_ms.map(seconds),
        max_output_bytes: job.max_output_bytes,
        failure: job
            .failure
            .clone()
            .map(|(code, message)| JobFailureView { code, message }),
        enforcement: job.enforcement.as_deref().map(session_view::enforced),
    }
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

/// How a job ended, for the last frame of its stream.
pub(crate) fn exit(now: &JobNow) -> JobExitView {
    let dropped_bytes = now.stdout_dropped_bytes + now.stderr_dropped_bytes;
    JobExitView {
        exit_code: now.job.exit_code,
        state: now.job.state.as_str(),
        signal: now.job.signal,
        stdin_cut: now.job.stdin_cut,
        truncated: dropped_bytes > 0,
        dropped_bytes,
        stdout_dropped_bytes: now.stdout_dropped_bytes,
        stderr_dropped_bytes: now.stderr_dropped_bytes,
        enforcement: now.job.enforcement.as_deref().map(session_view::enforced),
    }
}

/// How many of these bytes can be shown as text now: all but the beginning of a character whose rest is
/// still to come. At the end of the output nothing is to come any more.
pub(crate) fn whole_text(bytes: &[u8], is_end: bool) -> usize {
    if is_end {
        return bytes.len();
    }
    let tail = bytes.len().saturating_sub(3);
    let starts = bytes.iter().enumerate().skip(tail).rev();
    for (index, byte) in starts {
        let needed = match byte {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        let rest = bytes.get(index..).unwrap_or_default();
        return match rest.len() < needed && may_become_text(rest) {
            true => index,
            false => bytes.len(),
        };
    }
    bytes.len()
}

/// What of these bytes is shown as text, of a stream of which so many bytes were dropped. Where a limit cut
/// it, a character that lost its rest is not shown as a broken one: the bytes beside the text have it.
pub(crate) fn shown(bytes: &[u8], dropped_bytes: u64) -> &[u8] {
    match dropped_bytes {
        0 => bytes,
        _ => bytes.get(..whole_text(bytes, false)).unwrap_or(bytes),
    }
}

/// Whether more bytes could make these a character: if they cannot, waiting for more is for nothing.
fn may_become_text(begun: &[u8]) -> bool {
    std::str::from_utf8(begun).is_err_and(|error| error.error_len().is_none())
}

/// Bytes as text; what is no UTF-8 appears as U+FFFD.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Bytes exactly.
pub(crate) fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Writes bytes exactly, in base64.
pub(crate) fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    base64_simd::STANDARD.encode_append(bytes, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_before_a_character_that_is_not_whole_and_nowhere_else() {
        for (bytes, whole) in [
            (&b""[..], 0),
            (b"ab", 2),
            ("a\u{20ac}".as_bytes(), 4),
            (b"a\xe2\x82", 1),
            (b"a\xf0\x9f\x98", 1),
            (b"a\xe2\x28", 3),
            (b"\xff", 1),
            (b"\x80\x80\x80\x80", 4),
            (b"\xe0\x80", 2),
            (b"\xed\xa0", 2),
        ] {
            assert_eq!(whole_text(bytes, false), whole, "{bytes:?}");
            assert_eq!(whole_text(bytes, true), bytes.len());
        }
    }

    #[test]
    fn a_character_that_a_limit_cut_is_not_shown_as_a_broken_one() {
        assert_eq!(shown(b"a\xe2\x82", 1), b"a");
        assert_eq!(shown(b"a\xe2\x82", 0), b"a\xe2\x82", "the job's own");
        assert_eq!(shown(b"a\xff", 1), b"a\xff");
    }

    #[test]
    fn text_in_any_two_parts_is_the_same_text() {
        let all = "x\u{e9}\u{20ac}\u{1d11e}y".as_bytes();
        for at in 0..=all.len() {
            let (first, _) = all.split_at(at);
            let cut = whole_text(first, false);
            let (shown, rest) = all.split_at(cut);
            assert_eq!(format!("{}{}", text(shown), text(rest)), text(all), "{at}");
        }
    }
}
