//! When the disk takes no more, the ledger is poisoned and nothing that was answered for is lost.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod support;

use std::process::Command;

use fluxvm_eventstore::*;
use serde_json::json;
use support::*;

/// Names the ledger's folder to the child that is to run out of disk.
const CHILD_DIR: &str = "FLUXVM_TEST_FULL_CHILD_DIR";

/// Not a test by itself: the child of the test below, whose files must not grow beyond a limit.
#[tokio::test]
async fn child_that_appends_until_the_disk_is_full() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let ledger = open(dir.as_ref());
    let kind = EventKind::parse("test.large").unwrap();
    let large = NewEvent::new(kind, 1, &json!("x".repeat(60_000))).unwrap();
    for acked in 0..5000 {
        let streams = vec![to("host", ExpectedVersion::Any, vec![large.clone()])];
        match ledger.append(append(streams)).await {
            Ok(_) => assert_eq!(ledger.head().position, Position::new(acked + 1)),
            Err(AppendError::Poisoned { reason }) => {
                println!("poisoned {acked} {reason}");
                // A second try must not get through, whatever the disk says by then.
                let again = ledger.append(one("host", 1)).await;
                assert!(matches!(again, Err(AppendError::Poisoned { .. })));
                return;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the limit was never met");
}

#[test]
fn a_full_disk_poisons_the_ledger_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // The limit makes writing fail as a full disk does; the signal that would come with it is
    // ignored.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 60000; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_that_appends_until_the_disk_is_full",
            "--nocapture",
        ])
        .env(CHILD_DIR, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let words = said.split("poisoned ").nth(1).unwrap();
    let acked: u64 = words.split(' ').next().unwrap().parse().unwrap();
    assert!(acked > 50, "{said}");

    let ledger = open(dir.path());
    assert!(ledger.head().position >= Position::new(acked));
    assert!(verify(&export(&ledger, ExportScope::WholeLedger)).is_clean());
}
