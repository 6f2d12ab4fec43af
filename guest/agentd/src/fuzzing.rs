//! Doors for fuzzers: what takes bytes from outside, one function each. Not part of the program.
//!
//! Each takes any bytes and panics when a promise is broken.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a fuzzer's finding is a panic"
)]

use agentd_protocol::StartRequest;
use agentd_protocol::tunnel;

use crate::auth::TunnelIdentity;
use crate::files::Portion;
use crate::files::TreeLimits;
use crate::files::incoming;
use crate::files::write_tree;

/// Unpacks an archive below `folder/root`, and requires that `folder/outside` is what it was.
pub fn archive(folder: &std::path::Path, bytes: &[u8]) {
    let (outside, root) = (folder.join("outside"), folder.join("root"));
    std::fs::write(&outside, "kept").unwrap();
    let (portions, body) = incoming();
    portions
        .try_send(Portion::Bytes(bytes.to_vec().into()))
        .unwrap();
    portions.try_send(Portion::End).unwrap();
    let limits = TreeLimits {
        members_max: 64,
        bytes_max: 1024 * 1024,
    };
    let _ = write_tree(root.to_str().unwrap(), 0, limits, 0, body);
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
    let beside = std::fs::read_dir(folder).unwrap().count();
    assert!(beside <= 2, "something was made beside the root");
    let _ = std::fs::remove_dir_all(&root);
}

/// Reads a start and everything that is judged of it before there is a process.
pub fn start(bytes: &[u8]) {
    let Ok(request) = crate::routes::parse_start(bytes) else {
        return;
    };
    let _ = crate::exec::check_shape(&request);
    let sent = serde_json::to_vec(&request).unwrap();
    let again: StartRequest = serde_json::from_slice(&sent).unwrap();
    assert_eq!(again, request);
}

/// Hands frames to a verified tunnel: the first byte says whether the peer knows the keys. Bytes that
/// it did not seal are never taken for its own.
pub fn tunnel_frames(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let host = snow::Builder::new(tunnel::NOISE_PATTERN.parse().unwrap());
    let (host, guest) = (
        host.generate_keypair().unwrap(),
        snow::Builder::new(tunnel::NOISE_PATTERN.parse().unwrap())
            .generate_keypair()
            .unwrap(),
    );
    let key = |bytes: &[u8]| <[u8; 32]>::try_from(bytes).unwrap();
    let identity = TunnelIdentity {
        seed: key(&guest.private),
        host_public_key: key(&host.public),
    };
    if first % 2 == 0 {
        assert!(crate::tunnel::fuzzing::greets(&identity, rest).is_none());
        return;
    }
    let mut initiator = snow::Builder::new(tunnel::NOISE_PATTERN.parse().unwrap())
        .local_private_key(&host.private)
        .unwrap()
        .remote_public_key(&guest.public)
        .unwrap()
        .prologue(&tunnel::prologue(80))
        .unwrap()
        .build_initiator()
        .unwrap();
    let mut message = vec![0; 1024];
    let length = initiator.write_message(&[], &mut message).unwrap();
    let greeted = crate::tunnel::fuzzing::greets(&identity, &message[..length]);
    let session = greeted.expect("the pinned peer is greeted");
    for frame in rest.chunks(usize::from(first).max(1)) {
        assert!(!session(frame), "a forged frame was opened");
    }
}
