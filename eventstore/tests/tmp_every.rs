#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    clippy::indexing_slicing
)]
mod crash_lab;
mod support;
use crash_lab::shim::*;
use crash_lab::trace::{Disk, Model, Op};
use crash_lab::*;
use fluxvm_eventstore::*;
use std::path::Path;
use support::*;
#[test]
fn child() {
    let Ok(root) = std::env::var(shim::ROOT) else {
        return;
    };
    let root = Path::new(&root);
    for round in 0..6u64 {
        let l = Ledger::open(options(root), Box::new(|_| {})).unwrap();
        runtime().block_on(workload::run(&l, 12, 7 + 50 * round, |_| {}));
        runtime().block_on(l.close());
    }
}
#[test]
fn every() {
    let dir = scratch();
    let shim = shim::compile(dir.path()).unwrap();
    let ops = shim::record(&shim, "child", &dir.path().join("run"), None);
    let mut disk = Disk::default();
    let mut names = std::collections::BTreeMap::new();
    let desc: Vec<String> = ops
        .iter()
        .map(|op| match op {
            Op::Create { path, inode } => {
                names.insert(*inode, path.clone());
                format!("create {path}")
            }
            Op::Write {
                inode,
                offset,
                bytes,
            } => format!("write {:?} @{offset} +{}", names.get(inode), bytes.len()),
            Op::Truncate { inode, bytes } => format!("trunc {:?} {bytes}", names.get(inode)),
            Op::SyncFile { inode } => format!("sync {:?}", names.get(inode)),
            Op::Rename { from, to } => {
                format!("rename {from} {to}")
            }
            o => format!("{o:?}"),
        })
        .collect();
    let models = [
        Model::KeepAll,
        Model::DropUnsynced,
        Model::RandomPieces(4096),
        Model::RandomPieces(4096),
    ];
    let mut random = Random::new(1);
    let mut bad = 0;
    for (at, op) in ops.iter().enumerate() {
        disk.play(op);
        for model in models {
            let image = disk.image(model, &mut random);
            let d = scratch();
            write_image(&image, d.path());
            if let Err(e) = try_open(d.path()) {
                bad += 1;
                println!("point {at} {model:?}: {e}");
                for n in at.saturating_sub(4)..(at + 3).min(ops.len()) {
                    println!("    {n} {}", desc[n]);
                }
            }
        }
    }
    println!("{} ops, {bad} bad", ops.len());
}
