//! A ledger that cannot be trusted does not open, and says what is wrong.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use fluxvm_eventstore::*;
use support::*;

/// Names the ledger's folder to the child that is to find it locked.
const CHILD_DIR: &str = "FLUXVM_TEST_LOCK_CHILD_DIR";

#[tokio::test]
async fn an_ordinary_ledger_reopens_with_the_same_identity() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 2).await;
    let before = ledger.info();
    drop(ledger);
    let mut options = options(dir.path());
    options.origin = "another.example".to_owned();
    let after = Ledger::open(options, Box::new(|_| {})).unwrap().info();
    assert_eq!(after.ledger_id, before.ledger_id);
    assert_eq!((&after.vkey, &after.origin), (&before.vkey, &before.origin));
    assert_eq!(
        (after.created_at, after.head),
        (before.created_at, before.head)
    );
    assert!(before.vkey.starts_with("flux.example/ledger+"));
    assert!(before.bytes_on_disk > 0 && before.sync_micros_p99 >= before.sync_micros_p50);
}

#[test]
fn a_ledger_that_is_open_does_not_open_a_second_time() {
    let (dir, ledger) = new_ledger();
    assert!(matches!(
        try_open(dir.path()),
        Err(OpenError::Locked { .. })
    ));
    let other_process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_finds_the_ledger_locked",
            "--nocapture",
        ])
        .env(CHILD_DIR, dir.path())
        .output()
        .unwrap();
    assert!(other_process.status.success(), "{other_process:?}");
    drop(ledger);
    open(dir.path());
}

/// Not a test by itself: the other process of the test above.
#[test]
fn child_that_finds_the_ledger_locked() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    assert!(matches!(
        try_open(dir.as_ref()),
        Err(OpenError::Locked { .. })
    ));
}

#[test]
fn an_origin_that_no_checkpoint_could_carry_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.origin = "two words".to_owned();
    let key = options.signing_key_file.clone();
    let refused = Ledger::open(options, Box::new(|_| {}));
    assert!(matches!(refused, Err(OpenError::Genesis(_))));
    assert!(!key.exists());
    open(dir.path());
}

#[test]
fn the_key_is_private_and_has_to_be_the_one_of_the_genesis() {
    let (dir, ledger) = new_ledger();
    drop(ledger);
    let key = options(dir.path()).signing_key_file;
    assert_eq!(
        fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );

    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(
        try_open(dir.path()),
        Err(OpenError::SigningKey { .. })
    ));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();

    let kept = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    assert!(matches!(
        try_open(dir.path()),
        Err(OpenError::SigningKey { .. })
    ));
    assert!(!key.exists(), "a new key was made for an old ledger");

    let (other_dir, other) = new_ledger();
    drop(other);
    fs::copy(options(other_dir.path()).signing_key_file, &key).unwrap();
    assert!(matches!(
        try_open(dir.path()),
        Err(OpenError::SigningKeyDiffers { .. })
    ));

    fs::write(&key, kept).unwrap();
    open(dir.path());
}

#[test]
fn a_founding_that_was_cut_off_behind_the_key_is_completed_with_that_key() {
    let (other_dir, other) = new_ledger();
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("secrets")).unwrap();
    let key = options(dir.path()).signing_key_file;
    fs::copy(options(other_dir.path()).signing_key_file, &key).unwrap();
    fs::create_dir(dir.path().join("ledger")).unwrap();
    fs::write(dir.path().join("ledger/founding"), b"").unwrap();
    let ledger = open(dir.path());
    assert_eq!(ledger.info().vkey, other.info().vkey);
    assert_ne!(ledger.info().ledger_id, other.info().ledger_id);
}

#[test]
fn a_key_without_its_ledger_is_refused_and_nothing_is_founded() {
    let (dir, ledger) = new_ledger();
    let first = ledger.info().ledger_id;
    drop(ledger);
    let (place, away) = (dir.path().join("ledger"), dir.path().join("away"));
    fs::rename(&place, &away).unwrap();
    let missing = |result| matches!(result, Err(OpenError::LedgerMissing { .. }));
    assert!(missing(try_open(dir.path())));
    assert!(!place.exists());
    // An empty folder, such as one that nothing was mounted on, is no ledger either.
    fs::create_dir(&place).unwrap();
    assert!(missing(try_open(dir.path())));
    fs::remove_dir(&place).unwrap();
    fs::rename(&away, &place).unwrap();
    assert_eq!(open(dir.path()).info().ledger_id, first);

    fs::remove_dir_all(&place).unwrap();
    fs::remove_file(options(dir.path()).signing_key_file).unwrap();
    assert_ne!(open(dir.path()).info().ledger_id, first);
}

#[tokio::test]
async fn a_ledger_without_its_head_file_opens_and_gets_a_new_one() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    let head_file = dir.path().join("ledger/head");
    fs::remove_file(&head_file).unwrap();
    let ledger = open(dir.path());
    assert_eq!(ledger.head().position, Position::new(5));
    assert!(head_file.exists());
}

#[tokio::test]
async fn a_ledger_that_lost_its_end_does_not_open() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    let old = tempfile::tempdir().unwrap();
    copy_dir(&dir.path().join("ledger"), old.path());
    let ledger = open(dir.path());
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    // The store as it was five events ago: a valid chain, and yet not the ledger.
    for name in ["db", "conf"] {
        fs::copy(old.path().join(name), dir.path().join("ledger").join(name)).unwrap();
    }
    remove_snapshots(&dir.path().join("ledger"));
    let lost = try_open(dir.path());
    let Err(OpenError::TailMissing { recorded, found }) = lost else {
        panic!("{:?}", lost.err())
    };
    assert_eq!((recorded, found), (Position::new(10), Position::new(5)));
}

#[tokio::test]
async fn a_ledger_whose_store_is_gone_is_not_founded_anew() {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "host", 5).await;
    ledger.close().await;
    fs::remove_file(dir.path().join("ledger/db")).unwrap();
    remove_snapshots(&dir.path().join("ledger"));
    assert!(try_open(dir.path()).is_err());
}

fn remove_snapshots(dir: &std::path::Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("snap.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
