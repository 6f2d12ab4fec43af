//! Sets of changes: applied exactly, below their folder and nowhere else.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_protocol::paths::REMOVED;
use bytes::Bytes;
use futures_util::stream;
use support::*;
use tar::Builder;
use tar::EntryType;
use tar::Header;

/// A set out of kinds, paths, link targets and contents. Everything gets mode 02750 and a time in 2001.
fn set(members: &[(u8, &str, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, path, target, data) in members {
        let records = [
            ("path", path.as_bytes()),
            ("linkpath", target.as_bytes()),
            ("mtime", b"1000000000.500000000"),
        ];
        archive.append_pax_extensions(records).unwrap();
        let mut header = Header::new_gnu();
        header.set_path("changed").unwrap();
        header.set_entry_type(EntryType::new(*kind));
        header.set_mode(0o2750);
        header.set_uid(nix::unistd::getuid().as_raw().into());
        header.set_gid(nix::unistd::getgid().as_raw().into());
        header.set_mtime(0);
        header.set_size(data.len() as u64);
        header.set_cksum();
        archive.append(&header, data.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

async fn apply(client: &AgentdClient, root: &Path, set: Vec<u8>) -> Result<(), ClientError> {
    let portions = [Ok(Bytes::from(set))];
    client
        .apply_changes(root.to_str().unwrap(), stream::iter(portions))
        .await
}

#[tokio::test]
async fn what_goes_goes_and_what_comes_is_exact() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    std::fs::create_dir(at("old")).unwrap();
    std::fs::write(at("old/file"), "old").unwrap();
    std::fs::write(at("changed"), "old").unwrap();
    let changes = set(&[
        (REMOVED, "old/file", "", ""),
        (REMOVED, "old", "", ""),
        (REMOVED, "never/there", "", ""),
        (b'0', "changed", "", "new"),
        (b'5', "folder", "", ""),
        (b'0', "folder/file", "", "inside"),
        (b'2', "link", "/etc/shadow", ""),
    ]);
    apply(&client, folder.path(), changes.clone())
        .await
        .unwrap();
    assert!(!at("old").exists());
    assert_eq!(std::fs::read(at("changed")).unwrap(), b"new");
    assert_eq!(
        std::fs::read_link(at("link")).unwrap(),
        Path::new("/etc/shadow")
    );
    for path in ["changed", "folder", "folder/file"] {
        let data = at(path).symlink_metadata().unwrap();
        assert_eq!(data.permissions().mode() & 0o7777, 0o2750, "{path}");
        assert_eq!(
            (data.mtime(), data.mtime_nsec()),
            (1_000_000_000, 500_000_000),
            "{path}"
        );
    }
    let link = at("link").symlink_metadata().unwrap();
    assert_eq!(link.mtime_nsec(), 500_000_000);
    apply(&client, folder.path(), changes).await.unwrap();
}

#[tokio::test]
async fn c10_nothing_outside_the_folder_is_touched() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("real")).unwrap();
    std::fs::create_dir(folder.path().join("outside")).unwrap();
    std::fs::write(folder.path().join("outside/kept"), "kept").unwrap();
    symlink("../outside", root.join("way")).unwrap();
    for member in [
        (REMOVED, "way/kept", "", ""),
        (REMOVED, "../outside/kept", "", ""),
        (b'0', "way/kept", "", "changed"),
        (b'0', "way/new", "", "new"),
        (b'5', "way/folder", "", ""),
        (b'2', "way/link", "x", ""),
        (b'0', "../outside/kept", "", "changed"),
        (b'0', "/etc/changed", "", "changed"),
        (b'1', "hard", "../outside/kept", ""),
        (b'3', "device", "", ""),
        (REMOVED, "real/..", "", ""),
        (b'5', "way", "", ""),
    ] {
        let refused = apply(&client, &root, set(&[member])).await;
        assert!(
            matches!(refused, Err(ClientError::Refused { status: 400, .. })),
            "{member:?}: {refused:?}"
        );
    }
    let names = std::fs::read_dir(folder.path().join("outside"))
        .unwrap()
        .count();
    assert_eq!(names, 1);
    let kept = std::fs::read(folder.path().join("outside/kept")).unwrap();
    assert_eq!(kept, b"kept");
}
