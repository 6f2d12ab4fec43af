//! Making and removing again and again costs nothing that stays. Alone in its program: it counts
//! the program's own descriptors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::time::Duration;

use common::{Lab, root_or_skip, sh};

/// What each descriptor stands for, without the numbers that differ from one to the next.
fn open_descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let kind = |target: std::path::PathBuf| {
        let text = target.to_string_lossy().into_owned();
        text.split(":[").next().unwrap_or_default().to_owned()
    };
    let mut kinds: Vec<String> = targets.map(kind).collect();
    kinds.sort();
    kinds
}

fn children() -> usize {
    let me = std::process::id();
    let list = std::fs::read_to_string(format!("/proc/{me}/task/{me}/children"));
    list.unwrap_or_default().split_whitespace().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_cycles_leave_no_descriptor_and_no_zombie() {
    if !root_or_skip() {
        return;
    }
    // A daemon keeps its own files private; the users inside must not suffer from that.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let script = "su -s /bin/sh nobody -c 'cat /etc/hostname && ls / /etc /workspace' && umask";
    let ran = sh(sandbox.guest(), script).await;
    assert!(ran.ok().ends_with("0022"), "{ran:?}");
    sandbox.destroy().await.unwrap();
    drop(sandbox);
    let sandboxes = lab.state.path().join("sandboxes");
    let settle = || async {
        // Launchers and files go in the background.
        let busy = || {
            let mut names = std::fs::read_dir(&sandboxes)
                .unwrap()
                .flatten()
                .map(|e| e.file_name());
            children() > 0 || names.any(|name| name.to_string_lossy().starts_with(".trash"))
        };
        let mut seen = open_descriptors();
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = open_descriptors();
            if now == seen && !busy() {
                return now;
            }
            seen = now;
        }
        panic!("it does not settle: {seen:?}, {} children", children());
    };
    let before = settle().await;
    for _ in 0..50 {
        lab.create().await.destroy().await.unwrap();
    }
    assert_eq!(settle().await, before);
}
