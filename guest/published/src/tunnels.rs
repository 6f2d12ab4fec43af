//! Tunnels, plain and verified, and a port that is forwarded.

use microvms_core::identity::TunnelIdentity;
use microvms_core::session::serve::EndKind;
use microvms_core::session::serve::ServeLimits;
use microvms_core::session::serve::TunnelTarget;
use microvms_core::session::serve::bind_address;
use microvms_core::session::serve::start_forward;
use microvms_core::session::serve::start_tunnel;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use crate::Guest;
use crate::PATIENCE;
use crate::holds;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";

/// Answers every connection with the same bytes, once it has heard an empty line.
async fn serve(listener: TcpListener) {
    loop {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            let count = connection.read_buf(&mut heard).await.unwrap();
            assert_ne!(count, 0, "the request has an end: {heard:?}");
        }
        connection.write_all(ANSWER).await.unwrap();
    }
}

async fn ask(address: std::net::SocketAddr) -> Vec<u8> {
    let mut connection = TcpStream::connect(address).await.unwrap();
    // A forward answers nobody who names another host than its own.
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = connection.read_to_end(&mut answer);
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    answer
}

pub async fn hold(guest: &Guest, endpoint: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(serve(listener));
    let limits = ServeLimits {
        max_connections: None,
    };
    let bind = bind_address(None).unwrap();
    let pins = |seed: &str| TunnelIdentity::from_encoded_parts(seed, &guest.public_key).unwrap();
    let target = |port, pin| TunnelTarget::for_session(&guest.session, port, pin);
    for (name, pin) in [
        ("a plain tunnel", None),
        ("a verified tunnel", Some(pins(&guest.host_seed))),
    ] {
        let tunnel = start_tunnel(bind, target(port, pin), limits).await.unwrap();
        let answer = ask(tunnel.local_address()).await;
        holds(name, answer == ANSWER, String::from_utf8_lossy(&answer));
        let summary = tunnel.stop(Some(PATIENCE)).await.unwrap();
        let clean = summary.report.served == 1 && summary.ended.is_empty();
        holds("its end", clean, summary);
    }
    // The guest's public key is no seed of ours: whoever it is, the guest does not know it.
    let foreign = Some(pins(&guest.public_key));
    for (name, target, code) in [
        ("a stranger's tunnel", target(port, foreign), 4403),
        ("a tunnel to nobody", target(1, None), 4502),
    ] {
        let tunnel = start_tunnel(bind, target, limits).await.unwrap();
        let mut client = TcpStream::connect(tunnel.local_address()).await.unwrap();
        let _ = client.read_to_end(&mut Vec::new()).await;
        let summary = tunnel.stop(Some(PATIENCE)).await.unwrap();
        let [end] = summary.ended.as_slice() else {
            panic!("{name}: {summary:?}");
        };
        let told = end.kind == EndKind::Refused && end.code == Some(code);
        holds(name, told, end);
    }

    let auth = guest.session.proxy_auth().cloned();
    let forward = start_forward(bind, endpoint, port, auth, limits)
        .await
        .unwrap();
    let answer = ask(forward.local_address()).await;
    holds("a forwarded port", answer.ends_with(b"hi"), answer);
    let summary = forward.stop(Some(PATIENCE)).await.unwrap();
    holds("the forward's end", summary.report.served == 1, summary);
    server.abort();
}
