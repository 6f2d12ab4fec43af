//! Every event that was answered for survives `kill -9`, round after round on the same ledger.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test may fail loudly"
)]

mod support;

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;

use fluxvm_eventstore::*;
use support::*;

/// Names the ledger's folder to the child that is to be killed.
const CHILD_DIR: &str = "FLUXVM_TEST_CRASH_CHILD_DIR";
/// How often it is killed in `make test`, and in `make crash-lab`.
const ROUNDS: u64 = 6;
const ROUNDS_IN_THE_LAB: u64 = 30;

/// Not a test by itself: the child of the test below, which appends until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_appends_until_it_is_killed() {
    let Ok(dir) = std::env::var(CHILD_DIR) else {
        return;
    };
    let ledger = open(dir.as_ref());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        writers.spawn(append_for_ever(ledger.clone(), writer));
    }
    writers.join_all().await;
}

async fn append_for_ever(ledger: Ledger, writer: u8) {
    loop {
        let mut three = append(vec![
            to(
                &format!("session/{writer}"),
                ExpectedVersion::Any,
                vec![event(1), event(2)],
            ),
            to("host", ExpectedVersion::Any, vec![event(3)]),
        ]);
        three.streams[0].attachments = vec![bytes(2000, writer)];
        let events = ledger.append(three).await.unwrap();
        let mut out = std::io::stdout().lock();
        for event in events {
            writeln!(out, "acked {} {}", event.seq(), event.hash).unwrap();
        }
        out.flush().unwrap();
    }
}

#[test]
fn no_event_that_was_answered_for_is_lost_to_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acked: Vec<(u64, String)> = Vec::new();
    let in_the_lab = std::env::var_os("CRASH_LAB_IMAGES").is_some();
    let rounds = if in_the_lab {
        ROUNDS_IN_THE_LAB
    } else {
        ROUNDS
    };
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_appends_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = 30 + round % 8 * 70;
        let mut seen = 0;
        while let Some(Ok(line)) = lines.next() {
            if let Some(ack) = line.split("acked ").nth(1) {
                let (seq, hash) = ack.split_once(' ').unwrap();
                acked.push((seq.parse().unwrap(), hash.to_owned()));
                seen += 1;
            }
            if seen == wanted {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(
            seen >= wanted,
            "the child ended by itself after {seen} answers"
        );

        // The last line can be cut off by the kill; what was cut off is not counted as answered.
        acked.retain(|(_, hash)| hash.len() == 64);
        let ledger = open(dir.path());
        let events = all(&ledger);
        for (seq, hash) in &acked {
            let event = &events[usize::try_from(*seq).unwrap() - 1];
            assert_eq!(
                event.hash.to_string(),
                *hash,
                "event {seq} in round {round}"
            );
        }
        assert_eq!(events.len() % 3, 0, "an append was torn apart");
        let report = verify(&export(&ledger, ExportScope::WholeLedger));
        assert!(report.is_clean(), "{:?}", report.faults);
    }
    let answered = acked.len();
    println!("crash lab, kill -9: {rounds} rounds, {answered} events answered, none lost");
}
