//! Trees in and out of the guest daemon: one large file, and many small ones.

use std::time::Duration;
use std::time::Instant;

use agentd_client::Download;
use bytes::Bytes;
use futures_util::stream;

use crate::Scale;
use crate::figures::Figure;
use crate::guest::Guest;

const LARGE_MEGABYTES: usize = 250;
const SMALL_FILES: usize = 10_000;
const SMALL_BYTES: usize = 100;

pub(crate) async fn measure(guest: &Guest, scale: Scale) -> Vec<Figure> {
    let megabytes = scale.of(LARGE_MEGABYTES);
    let large = archive((0..1).map(|_| "large".to_owned()), megabytes * 1_000_000);
    let [up, down] = there_and_back(guest, "large", large).await;
    let count = scale.of(SMALL_FILES);
    let names = (0..count).map(|number| format!("d{}/f{number}", number / 100));
    let [files_up, files_down] = there_and_back(guest, "small", archive(names, SMALL_BYTES)).await;
    vec![
        Figure::rate("guest: a tree of one file, up", megabytes, up, "MB"),
        Figure::rate("guest: a tree of one file, down", megabytes, down, "MB"),
        Figure::rate("guest: small files up", count, files_up, "files"),
        Figure::rate("guest: small files down", count, files_down, "files"),
    ]
}

fn archive(names: impl Iterator<Item = String>, bytes: usize) -> Vec<Bytes> {
    const PORTION_BYTES: usize = 256 * 1024;
    let content = vec![7; bytes];
    let mut archive = tar::Builder::new(Vec::new());
    for name in names {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes as u64);
        header.set_mode(0o644);
        let appended = archive.append_data(&mut header, name, content.as_slice());
        appended.expect("room in memory");
    }
    let whole = archive.into_inner().expect("room in memory");
    whole
        .chunks(PORTION_BYTES)
        .map(Bytes::copy_from_slice)
        .collect()
}

/// How long an archive takes to become a tree, and the tree to become an archive.
async fn there_and_back(guest: &Guest, name: &str, archive: Vec<Bytes>) -> [Duration; 2] {
    let tree = guest
        .folder
        .path()
        .join(name)
        .to_string_lossy()
        .into_owned();
    let began = Instant::now();
    let content = stream::iter(archive.into_iter().map(Ok));
    let written = guest.client.write_tree(&tree, content).await;
    written.expect("a tree");
    let up = began.elapsed();
    let began = Instant::now();
    let mut download: Download = guest.client.read_tree(&tree).await.expect("a tree");
    while let Some(portion) = download.next().await {
        portion.expect("a portion");
    }
    [up, began.elapsed()]
}
