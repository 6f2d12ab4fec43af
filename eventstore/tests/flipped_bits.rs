//! One flipped bit anywhere in the store's files is an error or changes nothing: never another
//! ledger.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fluxvm_eventstore::*;
use support::*;

/// How many bits are flipped, one at a time, each in a fresh copy: in `make test`, and half as many
/// as there are images in `make crash-lab`.
const FLIPS: usize = 240;

fn flips() -> usize {
    let images = std::env::var("CRASH_LAB_IMAGES");
    images.map_or(FLIPS, |images| images.parse::<usize>().unwrap() / 2)
}

/// The files of the store by name. The tail of zeros that preallocation leaves is cut off.
fn read_files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    files.map(read).filter(|(name, _)| name != "lock").collect()
}

/// Every byte position that is worth a flip: all of the small files, the written part of the large
/// one.
fn positions(files: &BTreeMap<String, Vec<u8>>) -> Vec<(String, usize)> {
    let mut positions = Vec::new();
    for (name, bytes) in files {
        let written = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        positions.extend((0..written).map(|at| (name.clone(), at)));
    }
    positions
}

fn write_files(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    fs::create_dir_all(dir.join("ledger/blobs")).unwrap();
    for (name, bytes) in files {
        // Zeros at the end become a hole: copying them anew each time would take most of the test.
        let written = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        let file = fs::File::create(dir.join("ledger").join(name)).unwrap();
        file.write_all_at(&bytes[..written], 0).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
    }
}

/// Whether flipping the bit is noticed at opening; panics if it gives another ledger in silence.
fn is_noticed(
    good: &BTreeMap<String, Vec<u8>>,
    key: &Path,
    flip: (&str, usize, u8),
    expected: &str,
) -> bool {
    let (name, at, bit) = flip;
    let dir = tempfile::tempdir().unwrap();
    let mut files = good.clone();
    files.get_mut(name).unwrap()[at] ^= 1 << bit;
    write_files(dir.path(), &files);
    let mut options = options(dir.path());
    options.signing_key_file = key.to_owned();
    let Ok(ledger) = Ledger::open(options, Box::new(|_| {})) else {
        return true;
    };
    let same = export(&ledger, ExportScope::WholeLedger) == expected;
    assert!(same, "bit {bit} of byte {at} of {name} gave another ledger");
    false
}

/// A ledger that was closed, or one that was cut off as a crash does.
fn sweep(closed: bool) {
    let (dir, ledger) = new_ledger();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let text = runtime.block_on(async {
        fill(&ledger, "session/a", 60).await;
        let many = (0..100).map(event).collect();
        ledger
            .append(append(vec![to("host", ExpectedVersion::Any, many)]))
            .await
            .unwrap();
        fill(&ledger, "session/b", 40).await;
        export(&ledger, ExportScope::WholeLedger)
    });
    let files = if closed {
        runtime.block_on(ledger.close());
        drop(ledger);
        read_files(&dir.path().join("ledger"))
    } else {
        read_files(&dir.path().join("ledger"))
    };
    let key = options(dir.path()).signing_key_file;
    let positions = positions(&files);
    assert!(positions.len() > 50_000);
    let flips = flips();
    let step = positions.len() / flips;
    let mut noticed = 0;
    for n in 0..flips {
        // The step walks over the bits as well as over the bytes.
        let (name, at) = &positions[n * step + n % step];
        noticed += usize::from(is_noticed(&files, &key, (name, *at, (n % 8) as u8), &text));
    }
    // Most of the file is older versions of pages, which the store rightly no longer looks at.
    assert!(
        noticed > flips / 10,
        "only {noticed} of {flips} were noticed: is the sweep blind?"
    );
    println!("crash lab, flipped bits: {flips} flips, {noticed} errors, the rest changed nothing");
}

#[test]
fn a_flipped_bit_in_a_closed_ledger_is_never_another_ledger() {
    sweep(true);
}

#[test]
fn a_flipped_bit_in_a_ledger_after_a_crash_is_never_another_ledger() {
    sweep(false);
}
