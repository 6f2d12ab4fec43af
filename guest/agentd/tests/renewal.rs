//! Around a memory checkpoint: silence before it, another identity after it, and no exec notices.
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
use std::time::Duration;

use agentd_client::ClientError;
use agentd_client::ExecEvent;
use agentd_client::ExecStream;
use agentd_client::protocol::AgentToken;
use agentd_client::protocol::IdentityPair;
use agentd_client::protocol::IdentityRequest;
use agentd_client::protocol::RunHookPayload;
use support::*;

const NEXT_TOKEN: &str = "next-token-51aa";

fn identity(generation: u64, token: &str) -> IdentityRequest {
    let entropy = base64_simd::STANDARD.encode_to_string([7; 32]);
    IdentityRequest::new(generation, AgentToken::new(token), entropy)
}

fn conflicts(answer: Result<impl std::fmt::Debug, ClientError>) {
    let error = answer.unwrap_err();
    assert_eq!(refusal(&error), (409, Some("generation_conflict")));
}

/// Reads until the stream breaks; returns the bytes and where to go on.
async fn until_cut(stream: &mut ExecStream) -> (Vec<u8>, u64) {
    let (mut bytes, mut next) = (Vec::new(), 0);
    loop {
        let event = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        match event.unwrap() {
            Ok(ExecEvent::Output {
                bytes: more,
                offset,
                ..
            }) => {
                assert_eq!(offset, next);
                bytes.extend_from_slice(&more);
                next += u64::try_from(more.len()).unwrap();
            }
            Err(ClientError::Disconnected) => return (bytes, next),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn another_identity_ends_what_the_old_token_opened_and_execs_go_on() {
    let (guest, client) = Guest::start().await;
    let old = guest.client(TOKEN);
    let request = script("echo one; read line; echo $line $LAUNCH");
    let request = with_stdin(request);
    let mut stream = client.run(&request).await.unwrap();
    let first = stream.next().await.unwrap().unwrap();
    let next = first.next_offset();

    let mut asked = identity(3, NEXT_TOKEN);
    asked.env = Some([("LAUNCH".to_owned(), "next".to_owned())].into());
    let state = client.take_identity(&asked).await.unwrap();
    // Not the first process of a machine, so the machine is somebody else's.
    assert_eq!((state.generation, state.steps.len()), (3, 0));
    let cut = stream.next().await.unwrap().unwrap_err();
    assert!(matches!(cut, ClientError::Disconnected), "{cut:?}");
    let error = old.procs().await.unwrap_err();
    assert_eq!(refusal(&error), (401, None));

    // The client shows the new token by itself, and the exec is where it was.
    client.feed(&request.exec_id, b"two\n", true).await.unwrap();
    let told = follow(client.stream(&request.exec_id, next).await.unwrap()).await;
    assert_eq!(
        told.stdout, b"two\n",
        "an exec keeps the variables of its start"
    );
    let later = run(&client, &script("echo $LAUNCH")).await;
    assert_eq!(later.stdout, b"next\n");
    let discovery = client.discovery().await.unwrap();
    assert_eq!(discovery.x.unwrap().generation, 3);
    for secret in [TOKEN, NEXT_TOKEN] {
        assert!(!guest.log().contains(secret));
    }
}

fn with_stdin(
    mut request: agentd_client::protocol::StartRequest,
) -> agentd_client::protocol::StartRequest {
    request.stdin = true;
    request
}

#[tokio::test]
async fn an_identity_is_repeated_harmlessly_and_its_number_only_grows() {
    let (guest, client) = Guest::start().await;
    let taken = client
        .take_identity(&identity(5, NEXT_TOKEN))
        .await
        .unwrap();
    // The answer was lost: a client that still shows the old token finds out.
    let late = guest.client(TOKEN);
    let again = late.take_identity(&identity(5, NEXT_TOKEN)).await.unwrap();
    assert_eq!(again, taken);
    late.procs().await.unwrap();
    conflicts(client.take_identity(&identity(5, "other")).await);
    conflicts(client.take_identity(&identity(4, NEXT_TOKEN)).await);
    conflicts(client.take_identity(&identity(0, "other")).await);
    // Who never had a token cannot bring one, whatever it sends.
    let stranger = guest.client("wrong");
    let error = stranger
        .take_identity(&identity(6, "mine"))
        .await
        .unwrap_err();
    assert_eq!(refusal(&error), (401, None));
    // Nor does a launch.
    let launch = RunHookPayload::new(AgentToken::new(TOKEN));
    assert_eq!(refusal(&client.run_hook(&launch).await.unwrap_err()).0, 409);
    client.procs().await.unwrap();
}

#[tokio::test]
async fn before_a_launch_there_is_no_identity_to_take() {
    let guest = Guest::bare(&[]);
    let client = guest.client(TOKEN);
    for _ in 0..2 {
        let error = client.take_identity(&identity(1, TOKEN)).await.unwrap_err();
        assert_eq!(refusal(&error), (503, None));
    }
    assert!(!client.health().await.unwrap().bootstrapped);
}

#[tokio::test]
async fn a_malformed_identity_changes_nothing() {
    let (guest, client) = Guest::start().await;
    let secret = "do-not-quote-me";
    for body in [
        "{}".to_owned(),
        format!(r#"{{"generation":1,"agent_token":"{secret}"}}"#),
        format!(r#"{{"generation":1,"agent_token":"{secret}","entropy_b64":"{secret}"}}"#),
        format!(r#"{{"generation":"{secret}","agent_token":"t","entropy_b64":""}}"#),
        format!(
            r#"{{"generation":1,"agent_token":"t","entropy_b64":"","identity":{{"seed":"{secret}"}}}}"#
        ),
    ] {
        let answer = guest.http("POST", "/v1/x/identity", &bearer(), &body);
        assert_eq!(answer.status(), 400, "{body}");
        assert!(!answer.0.contains(secret), "{}", answer.0);
    }
    client.procs().await.unwrap();
}

#[tokio::test]
async fn tunnels_end_with_the_identity_that_opened_them_and_so_do_their_keys() {
    let (guest, client) = Guest::start().await;
    let key = format!("B{}=", "A".repeat(42));
    let mut asked = identity(1, NEXT_TOKEN);
    asked.identity = Some(IdentityPair {
        seed: key.clone(),
        host_public_key: key,
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tunnel = open_tunnel(&guest, port, TOKEN);
    let (mut inside, _) = listener.accept().unwrap();
    client.take_identity(&asked).await.unwrap();
    let (mut nothing, mut inside_nothing) = ([0; 1], [0; 1]);
    assert!(matches!(tunnel.read(&mut nothing), Ok(0) | Err(_)));
    assert!(matches!(inside.read(&mut inside_nothing), Ok(0) | Err(_)));
}

/// A plain tunnel, as far as its upgrade.
fn open_tunnel(guest: &Guest, port: u16, token: &str) -> std::os::unix::net::UnixStream {
    let mut connection = guest.connect();
    let head = format!(
        "GET /v1/tcp?port={port} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {token}\r\n\
         connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: eA==\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        connection.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"));
    connection
}

/// Sockets that the daemon holds.
fn sockets(guest: &Guest) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap();
    let links = open
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}

#[tokio::test]
async fn a_quiesced_guest_has_no_connection_and_readers_go_on_without_a_gap() {
    let guest = Guest::bare(&[("AGENTD_STREAM_BUFFER_BYTES", "2097152")]);
    until("it listens", || guest.log().contains("serving")).await;
    let without_connections = sockets(&guest);
    let client = guest.client(TOKEN);
    let launch = RunHookPayload::new(AgentToken::new(TOKEN));
    client.run_hook(&launch).await.unwrap();
    // Far more than the ring holds: it has to be held back meanwhile.
    let request = command(["seq", "1", "2000000"]);
    let mut stream = client.run(&request).await.unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _tunnel = open_tunnel(&guest, listener.local_addr().unwrap().port(), TOKEN);
    let other = guest.client(TOKEN);
    other.poll(&request.exec_id).await.unwrap();
    let quiesced = client.quiesce(Duration::from_secs(60)).await.unwrap();
    assert_eq!(quiesced.state.connections_left, 0);
    assert_eq!((quiesced.state.held, quiesced.state.running), (1, 1));
    // The last one's end is seen a moment before it is closed.
    until("no connection is left", || {
        sockets(&guest) == without_connections
    })
    .await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.health().await })
    };
    // What had arrived is read, and then the stream is cut.
    let (mut bytes, next) = until_cut(&mut stream).await;
    assert!(!waiting.is_finished(), "nobody speaks to a silent guest");
    drop(quiesced);
    waiting.await.unwrap().unwrap();
    let told = follow(client.stream(&request.exec_id, next).await.unwrap()).await;
    assert_eq!(told.gaps, []);
    bytes.extend_from_slice(&told.stdout);
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 2_000_001);
    for (number, line) in (1_u32..).zip(&lines[..2_000_000]) {
        assert_eq!(*line, number.to_string().as_bytes());
    }
}

#[tokio::test]
async fn a_hold_ends_with_its_time_and_unread_results_stay() {
    let (_guest, client) = Guest::start_with(&[("AGENTD_STREAM_BUFFER_BYTES", "65536")]).await;
    let done = script("echo kept; exit 4");
    run(&client, &done).await;
    let request = command(["seq", "1", "200000"]);
    let stream = client.run(&request).await.unwrap();
    let quiesced = client.quiesce(Duration::from_millis(200)).await.unwrap();
    assert_eq!(quiesced.state.held, 1);
    drop((quiesced, stream));
    // Nobody comes back for it, so the command runs to its end all the same.
    let exit = loop {
        let state = client.poll(&request.exec_id).await.unwrap();
        if let Some(outcome) = state.outcome {
            break outcome;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(exit.exit_code, Some(0));
    assert!(exit.stdout.ends_with("200000\n"));
    let kept = client.ack(&done.exec_id).await.unwrap().outcome.unwrap();
    assert_eq!((kept.stdout.as_str(), kept.exit_code), ("kept\n", Some(4)));
}
