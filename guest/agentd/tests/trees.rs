//! Trees, up and down as archives.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use bytes::Bytes;
use futures_util::stream;
use support::*;
use tar::Builder;
use tar::EntryType;
use tar::Header;

/// A member with a name that no careful writer would let through.
fn member(archive: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, target: &str, data: &str) {
    let mut header = Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o777);
    header.set_size(data.len() as u64);
    header.set_cksum();
    archive.append(&header, data.as_bytes()).unwrap();
}

fn archive(members: &[(EntryType, &str, &str, &str)]) -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    for (kind, name, target, data) in members {
        member(&mut archive, *kind, name, target, data);
    }
    archive.into_inner().unwrap()
}

async fn put(client: &AgentdClient, root: &Path, archive: Vec<u8>) -> Result<(), ClientError> {
    let portions = [Ok(Bytes::from(archive))];
    client
        .write_tree(root.to_str().unwrap(), stream::iter(portions))
        .await
}

async fn refused(client: &AgentdClient, root: &Path, archive: Vec<u8>) -> (u16, String) {
    match put(client, root, archive).await.unwrap_err() {
        ClientError::Refused { status, detail, .. } => (status, detail),
        other => panic!("{other:?}"),
    }
}

async fn get(client: &AgentdClient, root: &Path) -> Bytes {
    let download = client.read_tree(root.to_str().unwrap()).await.unwrap();
    download.collect(1 << 30).await.unwrap()
}

/// Every path below a folder, with what it is, its permissions and its content.
fn tree(root: &Path) -> BTreeMap<String, (char, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let data = path.symlink_metadata().unwrap();
            let mode = data.mode() & 0o777;
            let (kind, mode, content) = if data.is_symlink() {
                let target = std::fs::read_link(&path).unwrap();
                ('l', 0, target.to_str().unwrap().as_bytes().to_vec())
            } else if data.is_dir() {
                ('d', mode, vec![])
            } else if !data.is_file() {
                ('?', mode, vec![])
            } else {
                ('f', mode, std::fs::read(&path).unwrap())
            };
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            found.insert(name.to_owned(), (kind, mode, content));
            if data.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

#[tokio::test]
async fn a_tree_survives_the_way_down_and_up_again() {
    let (_guest, client) = Guest::start().await;
    let source = tempfile::tempdir().unwrap();
    let at = |path: &str| source.path().join(path);
    let long = "long".repeat(60);
    std::fs::create_dir_all(at(&format!("a/{long}/deep"))).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::write(at("a/text"), "text").unwrap();
    std::fs::write(at(&format!("a/{long}/deep/{long}")), vec![7; 70_000]).unwrap();
    std::fs::write(at("program"), "#!").unwrap();
    std::fs::set_permissions(at("program"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(at("a/text"), PermissionsExt::from_mode(0o400)).unwrap();
    std::fs::set_permissions(at("empty"), PermissionsExt::from_mode(0o500)).unwrap();
    symlink("a//./text", at("link")).unwrap();
    symlink(format!("nowhere/{long}"), at("dangling")).unwrap();
    std::fs::hard_link(at("program"), at("same")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();

    let archive = get(&client, source.path()).await;
    let names: Vec<Vec<u8>> = tar::Archive::new(&archive[..])
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path_bytes().into_owned())
        .collect();
    assert!(
        names.iter().all(|name| name.starts_with(b"./")),
        "{names:?}"
    );
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("made");
    put(&client, &target, archive.to_vec()).await.unwrap();
    let mut expected = tree(source.path());
    expected.remove("pipe");
    assert_eq!(tree(&target), expected);
    let time = |path: &Path| path.metadata().unwrap().mtime();
    assert_eq!(time(&target.join("a/text")), time(&at("a/text")));
    // Again over what is there: the same.
    put(&client, &target, archive.to_vec()).await.unwrap();
    assert_eq!(tree(&target), expected);
}

#[tokio::test]
async fn a_member_that_is_refused_is_named_with_its_reason() {
    let (_guest, client) = Guest::start().await;
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    for (kind, name, target) in [
        (Regular, "/etc/x", ""),
        (Regular, "../x", ""),
        (Regular, "a/../../x", ""),
        (Directory, "..", ""),
        (Regular, ".", ""),
        (Symlink, "./", "a"),
        (Symlink, "a/..", "b"),
        (Symlink, "l", "/etc"),
        (Symlink, "d/l", "../../x"),
        (Symlink, "l", ""),
        (Link, "h", "/etc/passwd"),
        (Link, "h", "../x"),
        (Char, "c", ""),
        (Block, "b", ""),
        (Fifo, "f", ""),
        (EntryType::new(b'V'), "v", ""),
    ] {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        let (status, said) = refused(&client, &root, archive(&[(kind, name, target, "")])).await;
        assert_eq!(status, 400, "{kind:?} {name} {target}: {said}");
        let named = format!("refused tar member {name}: ");
        assert!(
            said.starts_with(&named) && said.len() > named.len(),
            "{said}"
        );
        assert_eq!(tree(&root), BTreeMap::new());
    }
}

#[tokio::test]
async fn a_link_cannot_lead_a_later_member_anywhere_else() {
    let (_guest, client) = Guest::start().await;
    use EntryType::{Directory, Link, Regular, Symlink};
    let outer = tempfile::tempdir().unwrap();
    let outside = outer.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "kept").unwrap();
    let cases: [&[(EntryType, &str, &str, &str)]; 5] = [
        // `a/b` is harmless by its text; the link moves what is reached through it.
        &[
            (Directory, "d/e", "", ""),
            (Symlink, "d/e/up", "../..", ""),
            (Regular, "d/e/up/x", "", "x"),
        ],
        &[(Regular, "planted/x", "", "x")],
        &[(Directory, "planted", "", "")],
        &[(Directory, "planted/x", "", "")],
        &[(Link, "h", "planted/file", "")],
    ];
    for members in cases {
        let root = outer.path().join("root");
        std::fs::create_dir_all(&root).unwrap();
        symlink(&outside, root.join("planted")).unwrap();
        let (status, said) = refused(&client, &root, archive(members)).await;
        assert_eq!(status, 400, "{members:?}: {said}");
        assert!(said.starts_with("refused tar member "), "{said}");
        assert_eq!(tree(&outside).len(), 1);
        std::fs::remove_dir_all(&root).unwrap();
    }
    // A member in a link's own place takes the link away, and not what it leads to.
    let root = outer.path().join("root");
    std::fs::create_dir_all(&root).unwrap();
    symlink(outside.join("file"), root.join("planted")).unwrap();
    put(&client, &root, archive(&[(Regular, "planted", "", "new")]))
        .await
        .unwrap();
    assert_eq!(std::fs::read(root.join("planted")).unwrap(), b"new");
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"kept");
    // The root's own path may lead over links.
    symlink(&root, outer.path().join("alias")).unwrap();
    let through = outer.path().join("alias");
    put(&client, &through, archive(&[(Regular, "more", "", "m")]))
        .await
        .unwrap();
    assert!(root.join("more").exists());
}

#[tokio::test]
async fn a_file_replaces_the_old_one_and_leaves_its_other_names_alone() {
    let (_guest, client) = Guest::start().await;
    use EntryType::{Link, Regular, Symlink};
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    std::fs::write(at("file"), "old").unwrap();
    std::fs::set_permissions(at("file"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::hard_link(at("file"), at("other")).unwrap();
    let members = [
        (Regular, "file", "", "new"),
        (Link, "hard", "file", ""),
        (Symlink, "soft", "file", ""),
    ];
    for _ in 0..2 {
        put(&client, root.path(), archive(&members)).await.unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"new");
        assert_eq!(std::fs::read(at("other")).unwrap(), b"old");
        assert_eq!(at("other").metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read(at("hard")).unwrap(), b"new");
        assert_eq!(std::fs::read(at("soft")).unwrap(), b"new");
    }
    // No write bit for others, whatever the archive asks for.
    assert_eq!(at("file").metadata().unwrap().mode() & 0o7777, 0o755);
}

#[tokio::test]
async fn what_is_no_archive_is_500_and_what_is_cut_off_is_400() {
    let (guest, client) = Guest::start().await;
    let root = tempfile::tempdir().unwrap();
    put(&client, root.path(), vec![]).await.unwrap();
    let gzip = [&[0x1f, 0x8b, 8, 0][..], &[7; 2000]].concat();
    for garbage in [vec![b'x'; 10_000], gzip] {
        let (status, said) = refused(&client, root.path(), garbage).await;
        assert_eq!(status, 500);
        assert!(said.starts_with("tar operation failed"), "{said}");
    }
    let whole = archive(&[(EntryType::Regular, "file", "", &"x".repeat(5000))]);
    let (status, _) = refused(&client, root.path(), whole[..3000].to_vec()).await;
    assert_eq!(status, 400);
    let missing = archive(&[(EntryType::Link, "hard", "absent", "")]);
    let (status, said) = refused(&client, root.path(), missing).await;
    assert_eq!(status, 500);
    assert!(said.starts_with("tar operation failed"), "{said}");
    let relative = guest.http("PUT", "/v1/fs/tar?path=tmp", &bearer(), "");
    assert_eq!(relative.status(), 400);
    let file = root.path().join("plain");
    std::fs::write(&file, "").unwrap();
    assert_eq!(refused(&client, &file, vec![]).await.0, 400);
}

#[tokio::test]
async fn remarks_of_other_writers_are_no_members() {
    let (_guest, client) = Guest::start().await;
    let root = tempfile::tempdir().unwrap();
    let remark = "52 comment=0123456789012345678901234567890123456789\n";
    let members = [
        (EntryType::XGlobalHeader, "pax_global_header", "", remark),
        (EntryType::Directory, "./", "", ""),
        (EntryType::Regular, "old-style-folder/", "", ""),
        (EntryType::Regular, "old-style-folder/file", "", "x"),
    ];
    put(&client, root.path(), archive(&members)).await.unwrap();
    let names: Vec<String> = tree(root.path()).into_keys().collect();
    assert_eq!(names, ["old-style-folder", "old-style-folder/file"]);
}

#[tokio::test]
async fn an_archive_passes_through_in_little_memory() {
    let (guest, client) = Guest::start().await;
    let root = tempfile::tempdir().unwrap();
    let large = "x".repeat(48 * 1024 * 1024);
    let sent = archive(&[(EntryType::Regular, "large", "", &large)]);
    put(&client, root.path(), sent).await.unwrap();
    assert!(get(&client, root.path()).await.len() > large.len());
    let peak = guest.peak_memory_kib();
    assert!(peak < 16 * 1024, "{peak} KiB");
}
