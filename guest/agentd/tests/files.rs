//! One file, up and down.
// Helpers of tests may fall over as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use agentd_client::AgentdClient;
use agentd_client::LineRange;
use bytes::Bytes;
use futures_util::stream;
use support::*;

const MEBIBYTE: usize = 1024 * 1024;

async fn put(client: &AgentdClient, path: &Path, mode: Option<u32>, bytes: &[u8]) -> u16 {
    let portions: Vec<_> = bytes
        .chunks(100_000)
        .map(|portion| Ok(Bytes::copy_from_slice(portion)))
        .collect();
    let path = path.to_str().unwrap();
    match client.write_file(path, mode, stream::iter(portions)).await {
        Ok(()) => 204,
        Err(error) => refusal(&error).0,
    }
}

async fn get(client: &AgentdClient, path: &Path, lines: Option<LineRange>) -> Vec<u8> {
    let download = client.read_file(path.to_str().unwrap(), lines).await;
    download
        .unwrap()
        .collect(200 * MEBIBYTE)
        .await
        .unwrap()
        .to_vec()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_file_comes_back_byte_for_byte_in_folders_that_were_made_for_it() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/for it/näme+&.bin");
    let bytes: Vec<u8> = (0..3 * MEBIBYTE)
        .map(|n| u8::try_from(n % 253).unwrap())
        .collect();
    assert_eq!(put(&client, &path, None, &bytes).await, 204);
    assert_eq!(get(&client, &path, None).await, bytes);
    assert_eq!(mode(&path), 0o644);
    assert_eq!(mode(path.parent().unwrap()) & 0o777, 0o755);
    // An overwrite gets the permissions that it asks for.
    assert_eq!(put(&client, &path, Some(0o4711), b"short").await, 204);
    assert_eq!(
        (mode(&path), get(&client, &path, None).await),
        (0o4711, b"short".to_vec())
    );
    assert_eq!(put(&client, &path, None, b"").await, 204);
    assert_eq!(
        (mode(&path), get(&client, &path, None).await),
        (0o644, vec![])
    );
}

#[tokio::test]
async fn a_relative_path_starts_in_the_daemons_folder() {
    let (guest, client) = Guest::start().await;
    let cwd = std::fs::read_link(format!("/proc/{}/cwd", guest.pid())).unwrap();
    let name = format!("target-{}-relative", std::process::id());
    let path = Path::new(&name);
    assert_eq!(put(&client, path, None, b"x").await, 204);
    let found = std::fs::read(cwd.join(path));
    std::fs::remove_file(cwd.join(path)).unwrap();
    assert_eq!(found.unwrap(), b"x");
}

#[tokio::test]
async fn every_refusal_is_prose_with_its_status_and_nothing_is_left() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("file"), "text").unwrap();
    nix::unistd::mkfifo(&folder.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (method, target, status, said) in [
        (
            "GET",
            "/v1/fs/file".into(),
            400,
            "path query parameter is required",
        ),
        (
            "PUT",
            "/v1/fs/file?path=".into(),
            400,
            "path query parameter is required",
        ),
        (
            "GET",
            "/v1/fs/tar?other=1".into(),
            400,
            "path query parameter is required",
        ),
        (
            "PUT",
            "/v1/fs/tar".into(),
            400,
            "path query parameter is required",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}"),
            400,
            "is a folder",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/pipe"),
            400,
            "no regular file",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/absent"),
            404,
            "absent",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/file/below"),
            404,
            "below",
        ),
        ("GET", format!("/v1/fs/file?path={here}/a%00b"), 400, ""),
        (
            "GET",
            format!("/v1/fs/file?path={here}/file&start_line=x"),
            400,
            "not an integer",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/file&end_line="),
            400,
            "not an integer",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/file&start_line=0"),
            400,
            "counts from 1",
        ),
        (
            "GET",
            format!("/v1/fs/file?path={here}/file&start_line=3&end_line=2"),
            400,
            "before",
        ),
        (
            "PUT",
            format!("/v1/fs/file?path={here}/new&mode=rwx"),
            400,
            "mode is not",
        ),
        (
            "PUT",
            format!("/v1/fs/file?path={here}/new&mode=10000"),
            400,
            "mode is not",
        ),
        ("PUT", format!("/v1/fs/file?path={here}"), 400, ""),
        (
            "PUT",
            format!("/v1/fs/file?path={here}/file/below"),
            400,
            "",
        ),
        (
            "GET",
            format!("/v1/fs/tar?path={here}/file"),
            400,
            "is no folder",
        ),
        (
            "GET",
            format!("/v1/fs/tar?path={here}/absent"),
            404,
            "absent",
        ),
    ] {
        let answer = guest.http(method, &target, &bearer(), "");
        assert_eq!(answer.status(), status, "{method} {target}: {}", answer.0);
        assert!(
            answer.body().contains(said),
            "{method} {target}: {}",
            answer.0
        );
        let kind = answer.header("content-type");
        assert_eq!(kind, Some("text/plain; charset=utf-8"), "{target}");
    }
    let mut left: Vec<_> = std::fs::read_dir(here)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["file", "pipe"]);
    assert_eq!(
        get(&client, &folder.path().join("file"), None).await,
        b"text"
    );
}

#[tokio::test]
async fn a_range_of_lines_owns_its_newlines_and_ends_with_the_file() {
    let (_guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lines");
    std::fs::write(&path, "1\n2\n3\n4\nlast").unwrap();
    for (start, end, expected) in [
        (2, Some(3), "2\n3\n"),
        (1, Some(2), "1\n2\n"),
        (3, None, "3\n4\nlast"),
        (5, Some(1000), "last"),
        (6, Some(7), ""),
        (1, Some(1), "1\n"),
    ] {
        let lines = Some(LineRange { start, end });
        let found = get(&client, &path, lines).await;
        assert_eq!(
            String::from_utf8(found).unwrap(),
            expected,
            "{start} {end:?}"
        );
    }
}

#[tokio::test]
async fn the_window_of_a_large_file_costs_its_beginning_only() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(b"one\ntwo\n").unwrap();
    file.set_len(1 << 40).unwrap();
    let end = Some(2);
    let found = get(&client, &path, Some(LineRange { start: 1, end })).await;
    assert_eq!(found, b"one\ntwo\n");
    assert!(guest.peak_memory_kib() < 16 * 1024);
}

#[tokio::test]
async fn a_large_file_passes_through_and_stays_on_the_disk() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large");
    let bytes: Vec<u8> = (0..64 * MEBIBYTE)
        .map(|n| u8::try_from(n % 249).unwrap())
        .collect();
    assert_eq!(put(&client, &path, None, &bytes).await, 204);
    assert!(get(&client, &path, None).await == bytes);
    let peak = guest.peak_memory_kib();
    assert!(peak < 16 * 1024, "{peak} KiB");
}

#[tokio::test]
async fn a_body_over_the_cap_is_413_announced_or_not_and_leaves_nothing() {
    let (guest, client) = Guest::start_with(&[("AGENTD_MAX_BODY_BYTES", "1000")]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big");
    assert_eq!(put(&client, &path, None, &[0; 1001]).await, 413);
    let target = format!("/v1/fs/file?path={}", path.display());
    let answer = guest.http("PUT", &target, &bearer(), &"x".repeat(1001));
    assert_eq!(
        (answer.status(), answer.body()),
        (413, "length limit exceeded")
    );
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(!path.exists());
    assert_eq!(put(&client, &path, None, &[0; 1000]).await, 204);
}

#[tokio::test]
async fn a_disk_at_its_reserve_is_507_and_a_reserve_of_zero_asks_nothing() {
    let all = u64::MAX.to_string();
    let (_guest, client) = Guest::start_with(&[("AGENTD_DISK_RESERVE_BYTES", &all)]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made/file");
    assert_eq!(put(&client, &path, None, b"x").await, 507);
    assert!(!folder.path().join("made").exists());
    let tree = client
        .write_tree(folder.path().to_str().unwrap(), stream::iter([]))
        .await;
    assert_eq!(refusal(&tree.unwrap_err()).0, 507);
    assert!(client.health().await.unwrap().disk.unwrap().under_pressure);
    // Reading needs no room.
    std::fs::write(folder.path().join("there"), "x").unwrap();
    assert_eq!(get(&client, &folder.path().join("there"), None).await, b"x");

    let (_guest, client) = Guest::start_with(&[("AGENTD_DISK_RESERVE_BYTES", "0")]).await;
    assert_eq!(put(&client, &path, None, b"x").await, 204);
}

#[tokio::test]
async fn a_body_that_is_cut_off_leaves_no_half_file_and_disturbs_nobody() {
    let (guest, client) = Guest::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half");
    let mut stream = guest.connect();
    let target = format!("/v1/fs/file?path={}", path.display());
    let head = format!(
        "PUT {target} HTTP/1.1\r\nhost: g\r\n{}content-length: 1000\r\n\r\nhalf",
        bearer()
    );
    stream.write_all(head.as_bytes()).unwrap();
    until("the file appears", || path.exists()).await;
    drop(stream);
    until("the half file goes", || !path.exists()).await;
    assert_eq!(put(&client, &path, None, b"whole").await, 204);
}
