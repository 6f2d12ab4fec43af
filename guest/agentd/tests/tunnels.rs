//! Relays to a port inside the guest, plain and verified.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use agentd_client::protocol::AgentToken;
use agentd_client::protocol::IdentityPair;
use agentd_client::protocol::RunHookPayload;
use agentd_client::protocol::tunnel;
use agentd_client::protocol::tunnel::close_code;
use futures_util::SinkExt;
use futures_util::StreamExt;
use snow::HandshakeState;
use snow::TransportState;
use support::*;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::net::UnixStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

type Client = WebSocketStream<UnixStream>;

async fn open(guest: &Guest, query: &str) -> Client {
    let mut request = format!("ws://guest/v1/tcp?{query}")
        .into_client_request()
        .unwrap();
    let token = format!("Bearer {TOKEN}").parse().unwrap();
    request.headers_mut().insert("authorization", token);
    let offered = "other, lambda-microvms".parse().unwrap();
    request
        .headers_mut()
        .insert("sec-websocket-protocol", offered);
    let stream = UnixStream::connect(guest.socket()).await.unwrap();
    let (client, answer) = tokio_tungstenite::client_async(request, stream)
        .await
        .unwrap();
    assert_eq!(
        answer.headers()["sec-websocket-protocol"],
        "lambda-microvms"
    );
    assert!(answer.headers().contains_key("microvms-agentd-version"));
    client
}

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

async fn next(client: &mut Client) -> Option<Message> {
    let next = tokio::time::timeout(PATIENCE, client.next()).await;
    next.expect("the tunnel says nothing").map(Result::unwrap)
}

/// The code of the close that comes next.
async fn closed(client: &mut Client) -> u16 {
    loop {
        match next(client).await {
            Some(Message::Close(Some(frame))) => return frame.code.into(),
            Some(Message::Close(None)) | None => panic!("no close code"),
            Some(_) => {}
        }
    }
}

#[tokio::test]
async fn a_plain_tunnel_carries_bytes_both_ways_and_ends_with_its_first_side() {
    let (guest, _client) = Guest::start().await;
    let (listener, port) = listener().await;
    let mut tunnel = open(&guest, &format!("port={port}")).await;
    let (mut inside, _) = listener.accept().await.unwrap();
    tunnel.send(Message::binary(&b"in"[..])).await.unwrap();
    tunnel.send(Message::text(" text")).await.unwrap();
    let mut bytes = [0; 7];
    inside.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"in text");
    let sent = vec![7; 300_000];
    inside.write_all(&sent).await.unwrap();
    inside.shutdown().await.unwrap();
    let mut got = Vec::new();
    let code = loop {
        match next(&mut tunnel).await {
            Some(Message::Binary(bytes)) => {
                assert!(bytes.len() <= tunnel::PLAIN_CHUNK_BYTES);
                got.extend_from_slice(&bytes);
            }
            Some(Message::Close(Some(frame))) => break u16::from(frame.code),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((got == sent, code), (true, close_code::NORMAL));
    assert_eq!(inside.read(&mut bytes).await.unwrap(), 0);

    let mut tunnel = open(&guest, &format!("port={port}")).await;
    let (mut inside, _) = listener.accept().await.unwrap();
    tunnel.close(None).await.unwrap();
    assert_eq!(inside.read(&mut bytes).await.unwrap(), 0);
}

#[tokio::test]
async fn each_outcome_has_its_close_code() {
    let (guest, _client) = Guest::start().await;
    let (dropped, nobody) = listener().await;
    drop(dropped);
    for (query, code) in [
        ("port=0".to_owned(), close_code::BAD_PORT),
        ("port=0&identity=true".to_owned(), close_code::BAD_PORT),
        (format!("port={nobody}"), close_code::NO_LISTENER),
        (
            format!("port={nobody}&identity=true"),
            close_code::NO_IDENTITY,
        ),
        (format!("port={nobody}&identity=1"), close_code::NO_IDENTITY),
    ] {
        let mut tunnel = open(&guest, &query).await;
        assert_eq!(closed(&mut tunnel).await, code, "{query}");
    }
    let (listener, port) = listener().await;
    let mut tunnel = open(&guest, &format!("port={port}")).await;
    let (mut inside, _) = listener.accept().await.unwrap();
    inside.write_all(b"here").await.unwrap();
    assert_eq!(next(&mut tunnel).await, Some(Message::binary(&b"here"[..])));
    inside.set_zero_linger().unwrap();
    drop(inside);
    assert_eq!(closed(&mut tunnel).await, close_code::RELAY_FAILED);
}

#[tokio::test]
async fn what_is_refused_before_the_upgrade_is_an_ordinary_answer() {
    let bare = Guest::bare(&[]);
    assert_eq!(
        bare.http("GET", "/v1/tcp?port=1", &bearer(), "").status(),
        503
    );
    let (guest, _client) = Guest::start().await;
    assert_eq!(guest.http("GET", "/v1/tcp?port=1", "", "").status(), 401);
    let upgrade = format!(
        "{}upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: eA==\r\n",
        bearer()
    );
    for target in [
        "/v1/tcp",
        "/v1/tcp?port=x",
        "/v1/tcp?port=65536",
        "/v1/tcp?port=1",
    ] {
        let answer = guest.http("GET", target, &upgrade, "");
        assert_eq!(answer.status(), 400, "{target}");
        assert!(answer.body().contains("malformed_request"), "{}", answer.0);
    }
}

struct Keys {
    seed: Vec<u8>,
    host: snow::Keypair,
    guest_public: Vec<u8>,
}

fn builder() -> snow::Builder<'static> {
    snow::Builder::new(tunnel::NOISE_PATTERN.parse().unwrap())
}

/// A guest whose launch pinned a pair of keys.
async fn verified_guest() -> (Guest, Keys) {
    let guest = Guest::bare(&[]);
    let own = builder().generate_keypair().unwrap();
    let host = builder().generate_keypair().unwrap();
    let text = |bytes: &[u8]| base64_simd::STANDARD.encode_to_string(bytes);
    let mut payload = RunHookPayload::new(AgentToken::new(TOKEN));
    payload.identity = Some(IdentityPair {
        seed: text(&own.private),
        host_public_key: text(&host.public),
    });
    guest.client(TOKEN).run_hook(&payload).await.unwrap();
    let keys = Keys {
        seed: own.private,
        host,
        guest_public: own.public,
    };
    (guest, keys)
}

fn initiator(keys: &Keys, prologue: &[u8]) -> HandshakeState {
    builder()
        .local_private_key(&keys.host.private)
        .unwrap()
        .remote_public_key(&keys.guest_public)
        .unwrap()
        .prologue(prologue)
        .unwrap()
        .build_initiator()
        .unwrap()
}

async fn send(client: &mut Client, noise: &mut TransportState, plain: &[u8]) {
    let mut frame = vec![0; plain.len() + 16];
    let length = noise.write_message(plain, &mut frame).unwrap();
    frame.truncate(length);
    client.send(Message::binary(frame)).await.unwrap();
}

fn opened(noise: &mut TransportState, frame: &[u8]) -> Vec<u8> {
    let mut plain = vec![0; frame.len()];
    let length = noise.read_message(frame, &mut plain).unwrap();
    plain.truncate(length);
    plain
}

/// The handshake alone; `flags` is what the client offers.
async fn shake(client: &mut Client, keys: &Keys, port: u16, flags: &[u8]) -> TransportState {
    let mut handshake = initiator(keys, &tunnel::prologue(port));
    let mut buffer = vec![0; 1024];
    let length = handshake.write_message(flags, &mut buffer).unwrap();
    let first = Message::binary(buffer[..length].to_vec());
    client.send(first).await.unwrap();
    let Some(Message::Binary(second)) = next(client).await else {
        panic!("no second message");
    };
    let length = handshake.read_message(&second, &mut buffer).unwrap();
    assert_eq!(buffer[..length], [tunnel::END_OF_STREAM]);
    handshake.into_transport_mode().unwrap()
}

/// A whole verified tunnel to a listener that is at hand.
async fn verified(flags: &[u8]) -> (Guest, Client, TransportState, TcpStream) {
    let (guest, keys) = verified_guest().await;
    let (listener, port) = listener().await;
    let mut client = open(&guest, &format!("port={port}&identity=true")).await;
    let mut noise = shake(&mut client, &keys, port, flags).await;
    send(&mut client, &mut noise, tunnel::READY).await;
    let (inside, _) = listener.accept().await.unwrap();
    (guest, client, noise, inside)
}

#[tokio::test]
async fn a_verified_tunnel_lets_the_guest_speak_first_and_proves_its_end() {
    let (guest, mut client, mut noise, mut inside) = verified(&[tunnel::END_OF_STREAM]).await;
    // The guest's own proof of what is relayed: the ready message is not.
    inside.write_all(b"banner").await.unwrap();
    let Some(Message::Binary(frame)) = next(&mut client).await else {
        panic!("no banner");
    };
    assert_eq!(opened(&mut noise, &frame), b"banner");
    send(&mut client, &mut noise, b"request").await;
    let mut bytes = [0; 7];
    inside.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"request");
    let sent = vec![9; 200_000];
    inside.write_all(&sent).await.unwrap();
    inside.shutdown().await.unwrap();
    let mut got = Vec::new();
    loop {
        let Some(Message::Binary(frame)) = next(&mut client).await else {
            panic!("the stream did not end");
        };
        let plain = opened(&mut noise, &frame);
        if plain.is_empty() {
            break;
        }
        assert!(plain.len() <= tunnel::VERIFIED_CHUNK_BYTES);
        got.extend(plain);
    }
    assert!(got == sent);
    assert_eq!(closed(&mut client).await, close_code::NORMAL);
    assert!(!guest.log().contains(TOKEN));
}

#[tokio::test]
async fn an_offered_end_that_does_not_come_resets_the_guests_connection() {
    let mut byte = [0; 1];
    // Said, closed without being said, said by a peer that offered nothing, forged.
    let (_guest, mut client, mut noise, mut inside) = verified(&[tunnel::END_OF_STREAM]).await;
    send(&mut client, &mut noise, b"").await;
    assert_eq!(closed(&mut client).await, close_code::NORMAL);
    assert_eq!(inside.read(&mut byte).await.unwrap(), 0);

    // What else an offer says is for others.
    let later = [tunnel::END_OF_STREAM | 0x82];
    for how in ["close", "later close", "hang up", "forge", "text"] {
        let offer = if how == "later close" {
            later
        } else {
            [tunnel::END_OF_STREAM]
        };
        let (_guest, mut client, _noise, mut inside) = verified(&offer).await;
        match how {
            "close" | "later close" => client.close(None).await.unwrap(),
            "hang up" => drop(client),
            "forge" => {
                client.send(Message::binary(vec![1; 64])).await.unwrap();
                assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
            }
            _ => {
                client.send(Message::text("plain")).await.unwrap();
                assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
            }
        }
        let read = inside.read(&mut byte).await.unwrap_err();
        assert_eq!(read.kind(), std::io::ErrorKind::ConnectionReset, "{how}");
    }

    let (_guest, mut client, _noise, mut inside) = verified(&[]).await;
    client.close(None).await.unwrap();
    assert_eq!(inside.read(&mut byte).await.unwrap(), 0);
}

#[tokio::test]
async fn a_handshake_that_is_not_the_pinned_one_is_refused_before_anything_is_dialled() {
    let (guest, keys) = verified_guest().await;
    let (listener, port) = listener().await;
    let query = format!("port={port}&identity=true");
    let mut buffer = vec![0; 1024];
    let stranger = Keys {
        seed: keys.seed.clone(),
        host: builder().generate_keypair().unwrap(),
        guest_public: keys.guest_public.clone(),
    };
    let other_port = tunnel::prologue(port ^ 1);
    let mut old = tunnel::prologue(port);
    let version = tunnel::NOISE_PATTERN.len() + "microvms-tunnel".len() + 2;
    old[version] = b'1';
    for mut handshake in [
        initiator(&stranger, &tunnel::prologue(port)),
        initiator(&keys, &other_port),
        initiator(&keys, &old),
    ] {
        let mut client = open(&guest, &query).await;
        let length = handshake.write_message(&[1], &mut buffer).unwrap();
        let first = Message::binary(buffer[..length].to_vec());
        client.send(first).await.unwrap();
        assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
    }
    let mut client = open(&guest, &query).await;
    client.send(Message::text("hello")).await.unwrap();
    assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
    // A ready message that is another one.
    let mut client = open(&guest, &query).await;
    let mut noise = shake(&mut client, &keys, port, &[1]).await;
    send(&mut client, &mut noise, b"microvms-tunnel-readY").await;
    assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
    let dialled = tokio::time::timeout(std::time::Duration::from_millis(50), listener.accept());
    assert!(dialled.await.is_err());
    assert_eq!(keys.seed.len(), 32);
}

#[tokio::test]
async fn a_ready_message_that_does_not_come_is_refused_after_ten_seconds() {
    let (guest, keys) = verified_guest().await;
    let (_listener, port) = listener().await;
    let mut client = open(&guest, &format!("port={port}&identity=true")).await;
    let mut silent = open(&guest, &format!("port={port}&identity=true")).await;
    let asked = std::time::Instant::now();
    let _noise = shake(&mut client, &keys, port, &[1]).await;
    assert_eq!(closed(&mut client).await, close_code::IDENTITY_REFUSED);
    assert!(asked.elapsed() >= tunnel::READY_DEADLINE);
    assert_eq!(closed(&mut silent).await, close_code::IDENTITY_REFUSED);
}
