//! An opening that is refused leaves the ledger's files as they were, byte for byte.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fluxvm_eventstore::*;
use support::*;

/// How many bytes are damaged, one at a time.
const DAMAGES: usize = 24;

/// Everything below the folder, by its path.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = tree(&path).into_iter();
            files.extend(below.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            files.insert(name, fs::read(path).unwrap());
        }
    }
    files
}

fn flip(file: &Path, at: usize) {
    let file = fs::OpenOptions::new().read(true).write(true).open(file);
    let file = file.unwrap();
    let at = u64::try_from(at).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x55], at).unwrap();
}

/// A closed ledger, and its export.
async fn closed_ledger() -> (tempfile::TempDir, String) {
    let (dir, ledger) = new_ledger();
    fill(&ledger, "session/a", 60).await;
    let many = (0..100).map(event).collect();
    let many = append(vec![to("host", ExpectedVersion::Any, many)]);
    ledger.append(many).await.unwrap();
    let text = export(&ledger, ExportScope::WholeLedger);
    ledger.close().await;
    drop(ledger);
    (dir, text)
}

/// Puts a closed ledger's files back into `dir` as `files` has them.
fn write_tree(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    fs::remove_dir_all(dir).unwrap();
    fs::create_dir_all(dir.join("blobs")).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

#[tokio::test]
async fn a_damaged_byte_stays_the_only_one_and_flipped_back_the_ledger_opens() {
    let (dir, text) = closed_ledger().await;
    let place = dir.path().join("ledger");
    let good = tree(&place);
    let written = good["db"].iter().rposition(|byte| *byte != 0).unwrap();
    let mut refused = 0;
    for n in 0..DAMAGES {
        let at = written * n / DAMAGES + n;
        flip(&place.join("db"), at);
        let damaged = tree(&place);
        if try_open(dir.path()).is_ok() {
            // The byte was part of an older version of a page.
            write_tree(&place, &good);
            continue;
        }
        refused += 1;
        assert!(tree(&place) == damaged, "byte {at}");
        assert!(try_open(dir.path()).is_err());
        assert!(tree(&place) == damaged, "byte {at} the second time");
        flip(&place.join("db"), at);
        let ledger = open(dir.path());
        assert!(export(&ledger, ExportScope::WholeLedger) == text, "{at}");
        drop(ledger);
        assert!(!place.join("before-open").exists());
        write_tree(&place, &good);
    }
    assert!(refused > 2, "only {refused} damages were noticed");
}

#[tokio::test]
async fn a_whole_copy_that_a_cut_off_opening_left_is_put_back_and_a_part_of_one_is_not() {
    let (dir, text) = closed_ledger().await;
    let place = dir.path().join("ledger");
    let good = tree(&place);
    let copy = place.join("before-open");
    let names: Vec<_> = good.keys().filter(|name| is_stores(name)).collect();
    let list: String = names.iter().map(|name| format!("{name}\n")).collect();
    for (complete, is_whole) in [("end\n", true), ("en", false)] {
        // One file was put back already, the others are ruined.
        fs::create_dir(&copy).unwrap();
        for name in names.iter().filter(|name| **name != "conf") {
            fs::write(copy.join(name), &good[*name]).unwrap();
            fs::write(place.join(name), b"ruined").unwrap();
        }
        fs::write(place.join("snap.00000000FFFFFFFF"), b"of the ruins").unwrap();
        fs::create_dir_all(place.join("store-7")).unwrap();
        fs::write(copy.join("complete"), format!("store 0\n{list}{complete}")).unwrap();
        let opened = try_open(dir.path());
        assert_eq!(opened.is_ok(), is_whole);
        if let Ok(ledger) = opened {
            assert_eq!(export(&ledger, ExportScope::WholeLedger), text);
        }
        assert!(!copy.exists());
        write_tree(&place, &good);
    }
}

fn is_stores(name: &str) -> bool {
    name == "db" || name == "conf" || name.starts_with("snap.")
}
