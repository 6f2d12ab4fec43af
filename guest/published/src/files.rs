//! Files and trees, and a folder that is kept in step.

use std::time::Duration;

use microvms_core::WireKind;
use microvms_core::workspace::DiskTree;

use crate::Guest;
use crate::holds;

const ROOM_TO_DELETE: Duration = Duration::from_secs(20);

pub async fn hold(guest: &Guest) {
    let session = &guest.session;
    let path = guest.path("made/file");
    session
        .upload_file(&path, b"1\n2\n3\n", Some("0600"))
        .await
        .unwrap();
    holds(
        "upload_file",
        std::fs::read(&path).unwrap() == b"1\n2\n3\n",
        (),
    );
    let whole = session.download_file(&path).await.unwrap();
    holds("download_file", whole == b"1\n2\n3\n", whole);
    let line = session
        .download_file_lines(&path, Some(2), Some(2))
        .await
        .unwrap();
    holds("download_file_lines", line == b"2\n", line);
    let absent = format!("{path}-absent");
    let there = session.file_exists(&path).await.unwrap();
    let nowhere = session.file_exists(&absent).await.unwrap();
    holds("file_exists", there && !nowhere, (there, nowhere));
    let error = session.download_file(&absent).await.unwrap_err();
    let missing = error.wire_kind() == Some(WireKind::NotFound);
    holds("an absent file", missing, error.to_string());

    let tree = guest.path("tree");
    session
        .upload_file(&format!("{tree}/a/b.txt"), b"text", None)
        .await
        .unwrap();
    session
        .upload_file(&format!("{tree}/c"), b"other", None)
        .await
        .unwrap();
    let archive = session.download_tar(&tree).await.unwrap();
    let again = guest.path("again");
    session.upload_tar(&again, &archive).await.unwrap();
    let text = session
        .download_file(&format!("{again}/a/b.txt"))
        .await
        .unwrap();
    holds("download_tar and upload_tar", text == b"text", text);
    let error = session.upload_tar(&again, &[b'x'; 7000]).await.unwrap_err();
    let told = error.to_string().contains("tar operation failed");
    holds("what is no archive", told, error.to_string());
    let local = guest.scratch.join("local");
    std::fs::create_dir(&local).unwrap();
    let globs = ["**/*.txt".to_owned()];
    let brought = session
        .download_dir(&DiskTree, &tree, &globs, &local)
        .await
        .unwrap();
    let text = std::fs::read(local.join("a/b.txt")).unwrap();
    holds(
        "download_dir",
        brought.len() == 1 && text == b"text",
        brought,
    );
}

/// The client keeps a manifest in the guest's `/workspace`: what changed goes up, what is gone
/// is deleted, and a folder that has not changed costs nothing.
pub async fn are_synced(guest: &Guest) {
    let session = &guest.session;
    let folder = guest.scratch.join("synced");
    std::fs::create_dir_all(folder.join("deep/er")).unwrap();
    std::fs::write(folder.join("deep/er/file"), "one").unwrap();
    std::fs::write(folder.join("stays"), "stays").unwrap();
    std::os::unix::fs::symlink("stays", folder.join("link")).unwrap();
    let sync = |full| session.sync_dir(&DiskTree, &folder, full, ROOM_TO_DELETE);
    let pass = sync(false).await.unwrap();
    holds(
        "sync_dir, the first time",
        pass.full && pass.uploaded_members > 0,
        pass,
    );
    let seen = session.download_file("/workspace/link").await.unwrap();
    holds("a synced link", seen == b"stays", seen);
    let pass = sync(false).await.unwrap();
    holds("sync_dir, unchanged", pass.unchanged, pass);
    std::fs::write(folder.join("stays"), "changed").unwrap();
    std::fs::remove_dir_all(folder.join("deep")).unwrap();
    let pass = sync(false).await.unwrap();
    holds(
        "sync_dir, a difference",
        pass.deleted > 0 && !pass.full,
        pass,
    );
    let gone = !session
        .file_exists("/workspace/deep/er/file")
        .await
        .unwrap();
    let seen = session.download_file("/workspace/stays").await.unwrap();
    holds("the guest is in step", gone && seen == b"changed", seen);
    let baseline = session.sync_manifest().await.unwrap();
    let known = baseline
        .as_ref()
        .is_some_and(|known| known.files.contains_key("stays"));
    holds("sync_manifest", known, &baseline);
    let pass = session
        .sync_pass(&DiskTree, &folder, baseline, ROOM_TO_DELETE)
        .await;
    holds("sync_pass", pass.unwrap().unchanged, ());
    holds("sync_dir, all anew", sync(true).await.unwrap().full, ());
}
