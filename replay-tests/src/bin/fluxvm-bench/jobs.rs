//! Output over the host API: how fast it comes, and what a job costs.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use std::time::Instant;

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
    let command = format!("head -c {} /dev/zero | tr '\\0' x", mebibytes << 20);
    let rate = |name: &str, took| Figure::rate(name, mebibytes, took, "MiB");
    let jobs = format!("/v1/agents/sessions/{session}/jobs");

    let exec = format!("/v1/agents/sessions/{session}/exec/stream");
    let body = json!({"command": command, "timeout_seconds": 300}).to_string();
    let live = read_stream(api, "POST", &exec, &body, mebibytes);

    let body = json!({"command": command, "max_output_bytes": 256 << 20});
    let job = api.start_job(session, &body);
    let path = format!("{jobs}/{job}/stream?encoding=base64");
    let live_bytes = read_stream(api, "GET", &path, "", mebibytes);
    let kept = read_stream(api, "GET", &format!("{jobs}/{job}/stream"), "", mebibytes);
    let kept_bytes = read_stream(api, "GET", &path, "", mebibytes);
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

/// Reads a stream to its end as fast as a client can that does nothing else. The id of the last frame says
/// that everything came.
fn read_stream(api: &Api, method: &str, path: &str, body: &str, mebibytes: usize) -> Duration {
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
    let mut buffer = vec![0; READ_BYTES];
    let mut tail = Vec::new();
    loop {
        let read = socket.read(&mut buffer).expect("read");
        if read == 0 {
            break;
        }
        tail.extend_from_slice(&buffer[read.saturating_sub(1024)..read]);
        tail.drain(..tail.len().saturating_sub(1024));
    }
    let took = began.elapsed();
    let tail = String::from_utf8_lossy(&tail);
    let last = format!("event: exit\nid: {}:0\n", mebibytes << 20);
    assert!(tail.contains(&last), "everything came: {tail}");
    took
}
