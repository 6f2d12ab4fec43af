//! Standard input: what is written arrives once, in order, and every refusal has its name.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::time::Duration;
use std::time::Instant;

use agentd_client::ClientError;
use agentd_client::protocol::ErrorBody;
use agentd_client::protocol::StartRequest;
use support::*;

/// More than a pipe holds, and no more than one write may carry.
const MUCH: usize = 1024 * 1024;

fn with_input(mut request: StartRequest) -> StartRequest {
    request.stdin = true;
    request
}

#[tokio::test]
async fn what_is_written_comes_out_exactly_and_eof_ends_it() {
    let (_guest, client) = Guest::start().await;
    let request = with_input(command(["cat"]));
    let stream = client.run(&request).await.unwrap();
    let followed = tokio::spawn(follow(stream));
    let id = &request.exec_id;
    let bytes: Vec<u8> = (0..MUCH).map(|n| u8::try_from(n % 251).unwrap()).collect();
    assert_eq!(
        client.stdin(id, &bytes, false).await.unwrap().written,
        MUCH as u64
    );
    // Nothing is nothing, and not the end.
    let nothing = client.stdin(id, b"", false).await.unwrap();
    assert_eq!((nothing.written, nothing.eof), (0, false));
    let last = client.stdin(id, b"end", true).await.unwrap();
    assert_eq!((last.written, last.eof), (3, true));
    let told = followed.await.unwrap();
    assert_eq!(told.stdout.len(), MUCH + 3);
    assert!(told.stdout.starts_with(&bytes) && told.stdout.ends_with(b"end"));
    let closed = client.stdin(id, b"more", false).await.unwrap_err();
    assert_eq!(refusal(&closed), (410, Some("stdin_closed")));
}

#[tokio::test]
async fn each_refusal_has_its_name_in_the_order_of_the_contract() {
    let (guest, client) = Guest::start_with(&[("AGENTD_MAX_STDIN_WRITE_BYTES", "4")]).await;
    let silent = command(["sleep", "300"]);
    client.start(&silent).await.unwrap();
    let open = with_input(command(["sleep", "300"]));
    client.start(&open).await.unwrap();
    let closed = with_input(command(["true"]));
    run(&client, &closed).await;
    let ask = |id: &str, body: &str| {
        let path = format!("/v1/exec/{id}/stdin");
        let answer = guest.http("POST", &path, &bearer(), body);
        let error = serde_json::from_str::<ErrorBody>(answer.body()).unwrap();
        (answer.status(), error.error)
    };
    let (silent, open, closed) = (
        silent.exec_id.as_str(),
        open.exec_id.as_str(),
        closed.exec_id.as_str(),
    );
    let wrong_both = r#"{"signal":"stop","data_b64":"?"}"#;
    let too_much = r#"{"data_b64":"MTIzNDU="}"#;
    for (id, body, status, slug) in [
        ("nobody", "not json", 400, "malformed_request"),
        ("nobody", wrong_both, 404, "unknown_exec"),
        (silent, wrong_both, 409, "stdin_not_requested"),
        (closed, wrong_both, 400, "malformed_request"),
        (open, r#"{"data_b64":"?"}"#, 400, "malformed_request"),
        (open, r#"{"data_b64":7}"#, 400, "malformed_request"),
        (closed, too_much, 413, "stdin_write_too_large"),
        (open, too_much, 413, "stdin_write_too_large"),
        (closed, r#"{"data_b64":"MTIzNA=="}"#, 410, "stdin_closed"),
        (closed, "{}", 410, "stdin_closed"),
    ] {
        assert_eq!(ask(id, body), (status, slug.to_owned()), "{id} {body}");
    }
    let nulls = r#"{"data_b64":null,"signal":null,"later":1}"#;
    let path = format!("/v1/exec/{open}/stdin");
    assert_eq!(guest.http("POST", &path, &bearer(), nulls).status(), 200);
}

#[tokio::test]
async fn a_command_that_does_not_read_is_408_after_five_seconds_and_keeps_its_pipe() {
    let (guest, client) = Guest::start().await;
    // Reads only when it is told to.
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done; wc -c", go.display());
    let request = with_input(script(&wait));
    let stream = client.run(&request).await.unwrap();
    let followed = tokio::spawn(follow(stream));
    let id = request.exec_id.as_str();
    let data = base64_simd::STANDARD.encode_to_string(vec![b'x'; MUCH]);
    let asked = Instant::now();
    let path = format!("/v1/exec/{id}/stdin");
    let body = format!(r#"{{"data_b64":"{data}"}}"#);
    let answer = guest.http("POST", &path, &bearer(), &body);
    assert!(asked.elapsed() >= Duration::from_secs(5));
    let error: ErrorBody = serde_json::from_str(answer.body()).unwrap();
    assert_eq!(
        (answer.status(), error.error.as_str()),
        (408, "stdin_write_timeout")
    );
    // How much was taken is said, so that a caller can go on exactly there.
    let taken = usize::try_from(error.x.unwrap().written.unwrap()).unwrap();
    assert!(taken > 0 && taken < MUCH, "{taken}");
    std::fs::write(go, "").unwrap();
    let rest = vec![b'x'; MUCH - taken];
    client.stdin(&request.exec_id, &rest, true).await.unwrap();
    let told = followed.await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&told.stdout).trim(),
        MUCH.to_string()
    );
}

#[tokio::test]
async fn bytes_of_any_number_are_fed_to_a_command_that_reads_when_it_likes() {
    let (_guest, client) = Guest::start().await;
    let request = with_input(script("sleep 5.5; sha256sum; sleep 0.2"));
    let stream = client.run(&request).await.unwrap();
    let followed = tokio::spawn(follow(stream));
    let bytes: Vec<u8> = (0..5 * MUCH + 3)
        .map(|n| u8::try_from(n % 241).unwrap())
        .collect();
    client.feed(&request.exec_id, &bytes, true).await.unwrap();
    let told = followed.await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bytes");
    std::fs::write(&path, &bytes).unwrap();
    let expected = std::process::Command::new("sha256sum")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(told.stdout[..64], expected.stdout[..64]);
    let closed = client.feed(&request.exec_id, b"x", true).await.unwrap_err();
    assert_eq!(refusal(&closed), (410, Some("stdin_closed")));
}

#[tokio::test]
async fn a_write_with_its_offset_can_be_repeated_and_is_written_once() {
    let (guest, client) = Guest::start().await;
    let request = with_input(command(["cat"]));
    let stream = client.run(&request).await.unwrap();
    let followed = tokio::spawn(follow(stream));
    let id = &request.exec_id;
    let at = |offset, bytes: &'static [u8], eof| client.stdin_at(id, Some(offset), bytes, eof);
    for (offset, bytes, written, taken) in [
        (0, &b"abc"[..], 3, 3),
        (0, b"abc", 3, 3),
        (2, b"cd", 2, 4),
        (1, b"b", 1, 4),
        (4, b"", 0, 4),
    ] {
        let state = at(offset, bytes, false).await.unwrap();
        assert_eq!((state.written, state.x.unwrap().taken), (written, taken));
    }
    let unplaced = client.stdin_at(id, None, b"", false).await.unwrap();
    assert_eq!(unplaced.x.unwrap().taken, 4, "who asks is told");
    let gap = at(5, b"f", false).await.unwrap_err();
    assert_eq!(refusal(&gap), (409, Some("stdin_gap")));
    assert!(matches!(gap, ClientError::Refused { taken: Some(4), .. }));
    // Without an offset nothing is said that other daemons do not say.
    let path = format!("/v1/exec/{id}/stdin");
    let plain = guest.http("POST", &path, &bearer(), r#"{"data_b64":"ZQ=="}"#);
    assert!(!plain.body().contains("\"x\""), "{}", plain.body());
    for _ in 0..2 {
        let last = at(5, b"f", true).await.unwrap();
        assert_eq!(
            (last.written, last.eof),
            (1, true),
            "also the end, repeated"
        );
    }
    let late = at(5, b"fg", true).await.unwrap_err();
    let said = matches!(
        late,
        ClientError::Refused {
            written: Some(1),
            taken: Some(6),
            ..
        }
    );
    assert!(said, "{late:?}");
    let told = followed.await.unwrap();
    assert_eq!(told.stdout, b"abcdef");
}

#[tokio::test]
async fn a_write_that_waits_ends_when_the_command_does() {
    let (_guest, client) = Guest::start().await;
    let request = with_input(command(["sleep", "300"]));
    client.start(&request).await.unwrap();
    let id = request.exec_id.clone();
    let writing = tokio::spawn({
        let (client, id) = (client.clone(), id.clone());
        async move { client.stdin(&id, &vec![0; MUCH], false).await }
    });
    let asked = Instant::now();
    assert!(client.kill(&id).await.unwrap().killed);
    let refused = writing.await.unwrap().unwrap_err();
    assert_eq!(refusal(&refused), (410, Some("stdin_closed")));
    assert!(asked.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn a_command_without_an_input_reads_its_end_at_once() {
    let (_guest, client) = Guest::start().await;
    let told = run(&client, &command(["cat"])).await;
    assert_eq!((told.code(), told.stdout.len()), (Some(0), 0));
}
