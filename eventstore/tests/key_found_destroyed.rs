//! A seal key that was destroyed by hand erases what it sealed, and the opening says so.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use fluxvm_eventstore::*;
use support::*;

#[tokio::test]
async fn a_key_that_was_destroyed_by_hand_is_told_and_one_that_an_event_destroyed_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let seals = dir.path().join("secrets/seals");
    let sealing = LedgerOptions {
        seal: Some(SealOptions {
            keys_dir: seals.clone(),
            new_streams: NewStreams::Sealed,
        }),
        ..options(dir.path())
    };
    let open = || Ledger::open(sealing.clone(), Box::new(|_| {})).unwrap();
    let ledger = open();
    for name in ["session/a", "session/b"] {
        let mut sealed = to(name, ExpectedVersion::Any, vec![event(1)]);
        sealed.sealed_for = Some(stream(name));
        ledger.append(append(vec![sealed])).await.unwrap();
    }
    let shred = Shred {
        stream: stream("session/b"),
        append: one("ledger", 0),
    };
    ledger.shred(shred).await.unwrap();
    ledger.close().await;
    drop(ledger);
    for entry in fs::read_dir(&seals).unwrap() {
        let path = entry.unwrap().path();
        if fs::read_to_string(&path)
            .unwrap()
            .starts_with("SEAL+KEY+session/a+")
        {
            fs::write(&path, "SEAL+DESTROYED+session/a\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    let ledger = open();
    assert_eq!(ledger.info().keys_found_destroyed, [stream("session/a")]);
    assert_eq!(all(&ledger)[0].payload, Payload::Redacted);
    ledger.close().await;
}
