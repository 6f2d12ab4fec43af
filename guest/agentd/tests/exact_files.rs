//! Files for the host's API: facts, slices, whole replacements, removals, and the links and nodes that
//! lead nowhere.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_client::FileOrder;
use agentd_client::protocol::EntryKind;
use agentd_client::protocol::Placed;
use bytes::Bytes;
use futures_util::stream;
use support::*;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn order(path: &Path, bytes: &[u8]) -> FileOrder {
    FileOrder {
        path: text(path).to_owned(),
        size: bytes.len() as u64,
        sha256: None,
        mode: 0o640,
        parents: true,
    }
}

async fn place(
    client: &AgentdClient,
    order: &FileOrder,
    bytes: &[u8],
) -> Result<Placed, ClientError> {
    let portions: Vec<_> = bytes
        .chunks(100_000)
        .map(|portion| Ok(Bytes::copy_from_slice(portion)))
        .collect();
    client.place_file(order, stream::iter(portions)).await
}

fn slug<T: std::fmt::Debug>(done: Result<T, ClientError>) -> String {
    match done {
        Err(ClientError::Refused {
            slug: Some(slug), ..
        }) => slug.into(),
        other => panic!("{other:?}"),
    }
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_is_replaced_as_a_whole_or_not_at_all() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/for it/a");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let placed = place(&client, &order(&path, &bytes), &bytes).await.unwrap();
    assert_eq!(
        (placed.size, placed.mode, placed.replaced),
        (3_000_000, 0o640, false)
    );
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
    // Another name of the old file keeps its bytes.
    fs::hard_link(&path, folder.path().join("other")).unwrap();
    let mut again = order(&path, b"new");
    again.sha256 = Some("0".repeat(64));
    assert_eq!(
        slug(place(&client, &again, b"new").await),
        "checksum_mismatch"
    );
    again.sha256 = None;
    assert_eq!(slug(place(&client, &again, b"ne").await), "size_mismatch");
    assert_eq!(fs::read(&path).unwrap(), bytes, "a refusal changes nothing");
    let again = place(&client, &again, b"new").await.unwrap();
    assert!(again.replaced);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(fs::read(folder.path().join("other")).unwrap(), bytes);
    assert_eq!(
        names(path.parent().unwrap()),
        ["a"],
        "nothing is left beside it"
    );
}

#[tokio::test]
async fn a_change_follows_no_link_and_replaces_no_node() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir(root.join("outside")).unwrap();
    fs::write(root.join("outside/kept"), "kept").unwrap();
    symlink(root.join("outside"), root.join("link")).unwrap();
    symlink(root.join("outside/kept"), root.join("file link")).unwrap();
    nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, expected) in [
        ("link/kept", "symlink"),
        ("link/new/deep", "symlink"),
        ("file link", "symlink"),
        ("link", "symlink"),
        ("pipe", "not_a_file"),
        ("outside", "not_a_file"),
        ("outside/kept/below", "not_a_folder"),
        ("outside/../x", "malformed"),
    ] {
        let order = order(&root.join(path), b"evil");
        assert_eq!(
            slug(place(&client, &order, b"evil").await),
            expected,
            "{path}"
        );
    }
    let relative = FileOrder {
        path: "relative".into(),
        ..order(root, b"")
    };
    assert_eq!(slug(place(&client, &relative, b"").await), "malformed");
    let link = root.join("link/kept");
    assert_eq!(slug(client.remove_file(text(&link), true).await), "symlink");
    let removed = client
        .remove_file(text(&root.join("link")), true)
        .await
        .unwrap();
    assert_eq!((removed.kind, removed.entries), (EntryKind::Symlink, 1));
    assert_eq!(fs::read(root.join("outside/kept")).unwrap(), b"kept");
}

#[tokio::test]
async fn a_tree_goes_whole_and_what_its_links_point_at_stays() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    fs::write(tree.join("a/b/c/file"), "12345").unwrap();
    fs::write(folder.path().join("stays"), "stays").unwrap();
    symlink(folder.path(), tree.join("a/up")).unwrap();
    symlink(folder.path().join("stays"), tree.join("link")).unwrap();
    assert_eq!(
        slug(client.remove_file(text(&tree), false).await),
        "not_empty"
    );
    let removed = client.remove_file(text(&tree), true).await.unwrap();
    assert_eq!(
        (removed.kind, removed.size, removed.entries),
        (EntryKind::Dir, 5, 7)
    );
    assert_eq!(names(folder.path()), ["stays"]);
    assert_eq!(slug(client.remove_file(text(&tree), true).await), "absent");
    assert_eq!(slug(client.remove_file("/", true).await), "malformed");
}

#[tokio::test]
async fn what_lies_there_is_told_and_read_in_slices() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("run.sh"), "0123456789").unwrap();
    fs::set_permissions(root.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    symlink("run.sh", root.join("link")).unwrap();
    nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let facts = client.file_facts(text(root)).await.unwrap();
    let entries: Vec<_> = facts
        .entries
        .unwrap()
        .into_iter()
        .map(|entry| (entry.name, entry.kind, entry.mode, entry.target))
        .filter(|entry| entry.1 != EntryKind::Symlink || entry.3.as_deref() == Some("run.sh"))
        .map(|entry| (entry.0, entry.1))
        .collect();
    let expected = [
        ("empty", EntryKind::Dir),
        ("link", EntryKind::Symlink),
        ("pipe", EntryKind::Other),
        ("run.sh", EntryKind::File),
    ];
    assert_eq!(
        entries,
        expected.map(|(name, kind)| (name.to_owned(), kind))
    );
    let through = client.file_facts(text(&root.join("link"))).await.unwrap();
    assert_eq!(
        (through.entry.kind, through.entry.size),
        (EntryKind::File, 10)
    );

    let slice = client
        .file_slice(text(&root.join("link")), 7, 100, true)
        .await
        .unwrap();
    assert_eq!(slice.bytes, "789");
    assert_eq!((slice.facts.size, slice.facts.mode), (10, 0o755));
    let digest = slice.facts.sha256.unwrap();
    assert!(
        digest.starts_with("84d89877f0d4041efb6bf91a16f0248f"),
        "{digest}"
    );
    let beyond = client
        .file_slice(text(&root.join("run.sh")), 99, 1, false)
        .await
        .unwrap();
    assert!(beyond.bytes.is_empty());
    for (path, expected) in [
        (text(&root.join("pipe")), "not_a_file"),
        (text(root), "not_a_file"),
        (text(&root.join("none")), "absent"),
        ("/dev/null", "not_a_file"),
        ("/proc/self/root/etc/hostname", "magic_link"),
        ("/proc/self/fd/0", "magic_link"),
        ("/proc/../etc/hostname", "malformed"),
    ] {
        let read = client.file_slice(path, 0, 1, false).await;
        assert_eq!(slug(read), expected, "{path}");
    }
}
