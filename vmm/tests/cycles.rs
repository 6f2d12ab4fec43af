//! Making and removing again and again costs nothing that stays. Alone in its program: it counts the
//! program's own descriptors.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::time::Duration;

use common::{Lab, root_or_skip, sh};

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
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
    let script = "su -s /bin/sh nobody -c 'cat /etc/hostname >/dev/null && ls / /etc /usr /workspace' && umask";
    let ran = sh(sandbox.guest(), script).await;
    assert!(ran.ok().ends_with("0022"), "{ran:?}");
    sandbox.destroy().await.unwrap();
    drop(sandbox);
    let settle = || async {
        // Launchers and files go in the background.
        let mut seen = (open_descriptors(), children());
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let now = (open_descriptors(), children());
            if now == seen && now.1 == 0 {
                break;
            }
            seen = now;
        }
        seen
    };
    let before = settle().await;
    for _ in 0..50 {
        lab.create().await.destroy().await.unwrap();
    }
    assert_eq!(settle().await, before);
}
