//! Output over the host API: how fast it comes, every byte of it checked, and what a job costs.

use std::fmt::Write as _;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fluxvm_replay_tests::Api;
use serde_json::Value;
use serde_json::json;

use crate::Scale;
use crate::figures::Figure;

/// One measured output, in MiB: below what a job can keep of one stream.
const OUTPUT_MIB: usize = 200;

/// Bytes that the measuring client reads at once.
const READ_BYTES: usize = 256 * 1024;

pub(crate) fn measure(api: &Api, session: &str, scale: Scale) -> Vec<Figure> {
    let mebibytes = scale.of(OUTPUT_MIB);
    // Numbers in order, so that a byte that is missing, twice or elsewhere does not go unnoticed.
    let command = format!("seq 1 100000000 | head -c {}", mebibytes << 20);
    let expected = numbers(mebibytes << 20);
    let read_stream = |method: &str, path: &str, body: &str| {
        let (took, digest) = read_stream(api, method, path, body);
        assert_eq!(
            digest, expected,
            "every byte came, once and in order: {path}"
        );
        took
    };
    let rate = |name: &str, took| Figure::rate(name, mebibytes, took, "MiB");
    let jobs = format!("/v1/agents/sessions/{session}/jobs");

    let exec = format!("/v1/agents/sessions/{session}/exec/stream");
    let body = json!({"command": command, "timeout_seconds": 300}).to_string();
    let live = read_stream("POST", &exec, &body);

    let body = json!({"command": command, "max_output_bytes": 256 << 20});
    let job = api.start_job(session, &body);
    let path = format!("{jobs}/{job}/stream?encoding=base64");
    let live_bytes = read_stream("GET", &path, "");
    let kept = read_stream("GET", &format!("{jobs}/{job}/stream"), "");
    let kept_bytes = read_stream("GET", &path, "");
    vec![
        rate("exec/stream of a command's output", live).target("≥ 150 MB/s"),
        rate("job stream, base64 alone", live_bytes).target("≥ 150 MB/s"),
        rate("stream of a job that ended", kept),
        rate("the same, base64 alone", kept_bytes),
        streamed(api, session, scale.of(500)),
        started(api, session, scale.of(500)),
    ]
}

fn streamed(api: &Api, session: &str, count: usize) -> Figure {
    let took = (0..count).map(|_| {
        let began = Instant::now();
        let output = api.exec_stream(session, &json!({"command": "true"}));
        assert_eq!(output.exit_code(), Some(0));
        began.elapsed()
    });
    Figure::latency("exec/stream true, to its exit", took.collect())
}

fn started(api: &Api, session: &str, count: usize) -> Figure {
    let took = (0..count).map(|_| {
        let began = Instant::now();
        let job = api.background(session, "true");
        let page: Value = api.job(session, &job, "?wait_ms=10000");
        assert_eq!(page["exit_code"], 0);
        began.elapsed()
    });
    Figure::latency("job true, start to polled exit", took.collect())
}

/// The digest of as many bytes of the numbers from one on, a line each.
fn numbers(count: usize) -> blake3::Hash {
    let mut text = String::with_capacity(count + 16);
    let mut number = 1_u64;
    while text.len() < count {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "{number}");
        number += 1;
    }
    blake3::hash(&text.as_bytes()[..count])
}

/// Reads a stream to its end as a client does that wants its bytes, and digests them.
fn read_stream(api: &Api, method: &str, path: &str, body: &str) -> (Duration, blake3::Hash) {
    let address = api.url().trim_start_matches("http://");
    let token = api.token().unwrap_or_default();
    let mut socket = TcpStream::connect(address).expect("a connection");
    let began = Instant::now();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("asked");
    let mut lines = BufReader::with_capacity(READ_BYTES, socket);
    let (mut line, mut output) = (Vec::new(), Vec::new());
    let mut hasher = blake3::Hasher::new();
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).expect("read") == 0 {
            break;
        }
        // The bytes stand last in their frame, and base64 has no quotes.
        let encoded = line
            .strip_suffix(b"\"}\n")
            .filter(|line| line.starts_with(b"data: "));
        let Some(frame) = encoded.filter(|frame| frame.len() > 64) else {
            continue;
        };
        let begin = frame
            .iter()
            .rposition(|byte| *byte == b'"')
            .expect("a quote");
        output.clear();
        STANDARD
            .decode_vec(&frame[begin + 1..], &mut output)
            .expect("base64");
        hasher.update(&output);
    }
    (began.elapsed(), hasher.finalize())
}
