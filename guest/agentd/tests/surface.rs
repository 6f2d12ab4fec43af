//! The surface as a whole: what is published is what is served, and no bytes break it.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::Read;
use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use agentd_client::protocol::limits::CONNECTIONS_MAX;
use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest::test_runner::TestRunner;
use serde_json::Value;
use support::*;

#[tokio::test]
async fn every_published_route_is_served_as_published_and_nothing_else_is() {
    let bare = Guest::bare(&[]);
    let answer = bare.http("GET", "/v1/schema", "", "");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let schema: Value = serde_json::from_str(answer.body()).unwrap();
    for key in [
        "$schema",
        "title",
        "daemon_version",
        "protocol_version",
        "version_header",
        "hook_prefix",
        "generated_from",
        "auth",
        "unmatched_path",
        "limits",
        "routes",
        "$defs",
        "definition_collisions",
    ] {
        assert!(schema.get(key).is_some(), "{key}");
    }
    assert_eq!(schema["protocol_version"], "2");
    for limit in [
        "exec_ttl_secs",
        "kill_grace_secs",
        "max_body_bytes",
        "max_drain_bytes",
        "max_output_bytes",
        "max_stdin_write_bytes",
        "max_tar_bytes",
        "max_tar_members",
        "output_linger_secs",
        "sse_keepalive_secs",
        "stdin_write_timeout_secs",
        "stream_replay_bytes",
    ] {
        assert!(schema["limits"][limit].is_number(), "{limit}");
    }
    let routes = schema["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 29);
    for route in routes {
        let field = |name: &str| route[name].as_str().unwrap();
        let path = field("path").replace("{id}", "no-such-exec");
        let expected = match field("auth") {
            "bearer" => 503,
            // A launch without a body is malformed; every other open route is fine.
            _ if path.ends_with("/run") => 400,
            _ => 200,
        };
        let answer = bare.http(field("method"), &path, "", "");
        assert_eq!(answer.status(), expected, "{} {path}", field("method"));
        let other = bare.http("PATCH", &path, "", "");
        let unknown = if expected == 503 { 503 } else { 405 };
        assert_eq!(other.status(), unknown, "{path}");
        assert!(route["summary"].is_string() && route["statuses"].is_array());
    }
}

#[tokio::test]
async fn the_limits_that_are_published_are_those_in_force() {
    let guest = Guest::bare(&[
        ("AGENTD_MAX_OUTPUT_BYTES", "11"),
        ("AGENTD_STREAM_BUFFER_BYTES", "12"),
        ("AGENTD_MAX_BODY_BYTES", "13"),
        ("AGENTD_MAX_STDIN_WRITE_BYTES", "14"),
        ("AGENTD_EXEC_TTL_SECS", "15"),
        ("AGENTD_OUTPUT_LINGER_SECS", "16"),
        ("AGENTD_SSE_KEEPALIVE_SECS", "17"),
    ]);
    let answer = guest.http("GET", "/v1/schema", "", "");
    let schema: Value = serde_json::from_str(answer.body()).unwrap();
    for (name, value) in [
        ("max_output_bytes", 11.0),
        ("stream_replay_bytes", 12.0),
        ("max_body_bytes", 13.0),
        ("max_stdin_write_bytes", 14.0),
        ("exec_ttl_secs", 15.0),
        ("output_linger_secs", 16.0),
        ("sse_keepalive_secs", 17.0),
    ] {
        assert_eq!(schema["limits"][name].as_f64(), Some(value), "{name}");
    }
}

#[tokio::test]
async fn the_account_of_processes_lists_every_exec_in_the_order_of_its_start() {
    let (_guest, client) = Guest::start().await;
    let done = command(["true"]);
    run(&client, &done).await;
    let mut left = script("sleep 300 & exit 0");
    left.reap_group_on_exit = false;
    left.x = Some(agentd_client::protocol::StartExtension {
        output_linger_ms: Some(0),
        ..Default::default()
    });
    run(&client, &left).await;
    client.ack(&left.exec_id).await.unwrap();
    let mut runs = command(["sleep", "300"]);
    runs.reap_group_on_exit = true;
    client.start(&runs).await.unwrap();
    let procs = client.procs().await.unwrap().procs;
    let ids: Vec<_> = procs.iter().map(|group| &group.exec_id).collect();
    assert_eq!(ids, [&done.exec_id, &left.exec_id, &runs.exec_id]);
    let [done, left, running] = procs.as_slice() else {
        panic!("{procs:?}");
    };
    assert!(done.child_exited && done.pids.is_empty());
    // Acknowledged, and what it left behind is still found.
    assert!(left.child_exited && left.pids.len() == 1, "{left:?}");
    assert!(!running.child_exited && running.reap);
    assert_eq!(Some(running.pids[0]), running.pgid);
    assert!(running.started_at > 1_700_000_000);
    assert!(client.kill(&runs.exec_id).await.unwrap().killed);
    let procs = client.procs().await.unwrap().procs;
    assert!(procs[2].pids.is_empty(), "the dead are not listed");
}

#[tokio::test]
async fn an_open_tunnel_and_an_open_stream_each_take_a_connections_place() {
    let (guest, client) = Guest::start().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let quiet = command(["sleep", "300"]);
    client.start(&quiet).await.unwrap();
    // The client keeps a connection of its own; its task has to run once to close it.
    drop(client);
    tokio::task::yield_now().await;
    let stream = format!("/v1/exec/{}/stream", quiet.exec_id);
    let requests = [
        (
            format!("/v1/tcp?port={port}"),
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: eA==\r\n",
            "HTTP/1.1 101",
        ),
        (stream, "", "HTTP/1.1 200"),
    ];
    let mut held = Vec::new();
    for number in 0..CONNECTIONS_MAX {
        let (path, headers, expected) = &requests[number % 2];
        let mut connection = guest.connect();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: g\r\n{headers}{}\r\n",
            bearer()
        );
        connection.write_all(head.as_bytes()).unwrap();
        let mut status = [0; 12];
        connection.read_exact(&mut status).unwrap();
        assert_eq!(&String::from_utf8_lossy(&status), expected);
        held.push(connection);
    }
    let mut waiting = guest.connect();
    waiting
        .write_all(b"GET /v1/health HTTP/1.1\r\nhost: g\r\n\r\n")
        .unwrap();
    waiting
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let mut status = [0; 12];
    assert!(waiting.read_exact(&mut status).is_err());
    // The first of them is a tunnel: its end makes room.
    drop(held.remove(0));
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    waiting.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

/// Something between nonsense and a request.
fn almost_a_request() -> impl Strategy<Value = Vec<u8>> {
    let method = prop::sample::select(vec!["GET", "POST", "PUT", "HEAD", "X", ""]);
    let path = prop::sample::select(vec![
        "/v1/health",
        "/v1/schema",
        "/v1/exec/start",
        "/v1/exec/%00/stdin",
        "/v1/exec/%zz",
        "/v1/exec/a/stream?offset=-1",
        "/v1/tcp?port=0",
        "/v1/fs/file?path=%2Fnowhere%2Fa&start_line=0",
        "/v1/fs/tar?path=relative",
        "/aws/lambda-microvms/runtime/v1/suspend",
        "*",
    ]);
    let header = prop::sample::select(vec![
        format!("authorization: Bearer {TOKEN}"),
        "authorization: \u{ff}".to_owned(),
        "content-length: 3".to_owned(),
        "content-length: 99999999999".to_owned(),
        "content-length: x".to_owned(),
        "transfer-encoding: chunked".to_owned(),
        "expect: 100-continue".to_owned(),
        "upgrade: websocket".to_owned(),
        "connection: upgrade, close".to_owned(),
    ]);
    let headers = prop::collection::vec(header, 0..4);
    let body = prop::collection::vec(any::<u8>(), 0..40);
    let formed = (method, path, headers, body).prop_map(|(method, path, headers, body)| {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let mut bytes =
            format!("{method} {path} HTTP/1.1\r\nhost: g\r\n{headers}\r\n").into_bytes();
        bytes.extend(body);
        bytes
    });
    prop_oneof![formed, prop::collection::vec(any::<u8>(), 0..200)]
}

#[tokio::test]
async fn any_bytes_get_an_answer_or_a_close_and_never_end_the_daemon() {
    let (guest, client) = Guest::start().await;
    let mut runner = TestRunner::new(Config::with_cases(200));
    let outcome = runner.run(&almost_a_request(), |bytes| {
        let mut connection = guest.connect();
        let _ = connection.write_all(&bytes);
        let _ = connection.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        match connection.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => prop_assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
        Ok(())
    });
    outcome.unwrap();
    assert!(client.health().await.unwrap().bootstrapped);
    assert!(!guest.log().contains("panicked"));
}
