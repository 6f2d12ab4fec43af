//! Limits hold what is inside, and only that.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use common::{Lab, root_or_skip, sh};
use fluxvm_vmm::{Backend, SandboxId, SandboxSpec};

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_limit_kills_the_hog_and_the_guest_daemon_answers_on() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    if !lab.engine.capabilities().memory_limit {
        eprintln!("skipped: no memory limit on this host");
        return;
    }
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.memory_mb = Some(64);
    let sandbox = lab.engine.create(spec).await.unwrap();
    let before = sandbox.inspect();
    assert!(
        before.memory_bytes.unwrap() < 64 * 1024 * 1024,
        "{before:?}"
    );
    let ran = sh(sandbox.guest(), "tail /dev/zero; echo ended with $?").await;
    assert!(ran.output.contains("ended with 137"), "{ran:?}");
    assert_eq!(
        sh(sandbox.guest(), "echo still here").await.ok(),
        "still here"
    );
    let after = sandbox.inspect();
    assert!(
        after.alive && after.oom_kills > before.oom_kills,
        "{after:?}"
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_processes_end_before_the_guest_daemon_does() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    if !lab.engine.capabilities().memory_limit {
        eprintln!("skipped: no memory limit on this host");
        return;
    }
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.memory_mb = Some(64);
    let sandbox = lab.engine.create(spec).await.unwrap();
    let crowd = "for i in $(seq 400); do sleep 5 & done; wait";
    // However that ends, it is not the sandbox that does.
    let _ = sh(sandbox.guest(), crowd).await;
    assert_eq!(
        sh(sandbox.guest(), "echo still here").await.ok(),
        "still here"
    );
    let after = sandbox.inspect();
    assert!(after.alive && after.oom_kills > Some(0), "{after:?}");
    sandbox.destroy().await.unwrap();
}

/// Whether this process may have the kernel's killer spare another (`CAP_SYS_RESOURCE`).
fn may_spare() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(effective.unwrap().trim(), 16).unwrap() & (1 << 24) != 0
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_takes_half_of_a_limit_and_the_guest_daemon_answers_on() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    if !lab.engine.capabilities().memory_limit {
        eprintln!("skipped: no memory limit on this host");
        return;
    }
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.memory_mb = Some(32);
    let sandbox = lab.engine.create(spec).await.unwrap();
    let guest = sandbox.guest();
    let fill = "head -c 200M /dev/zero > /dev/shm/x; echo ended with $?; stat -c %s /dev/shm/x";
    let ran = sh(guest, fill).await;
    assert!(ran.output.contains("ended with 1\n16777216"), "{ran:?}");
    let scores = "cat /proc/1/oom_score_adj /proc/$PPID/oom_score_adj /proc/self/oom_score_adj";
    let spared = if may_spare() { "-900" } else { "0" };
    assert_eq!(sh(guest, scores).await.ok(), format!("{spared}\n500\n500"));
    let ran = sh(guest, "tail /dev/zero; echo ended with $?").await;
    assert!(ran.output.contains("ended with 137"), "{ran:?}");
    let ran = sh(guest, "rm /dev/shm/x; echo still here").await;
    assert_eq!(ran.ok(), "still here");
    // Whatever the guest daemon's own value is, its commands do not have it.
    sh(guest, "echo 300 > /proc/1/oom_score_adj").await.ok();
    assert_eq!(sh(guest, scores).await.ok(), "300\n500\n500");
    assert!(sandbox.inspect().alive);
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_limit_shared_memory_has_a_size_and_nobody_is_spared() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    let sandbox = lab.create().await;
    let script = "df -B1 --output=size /dev/shm | tail -n 1; cat /proc/1/oom_score_adj";
    let ran = sh(sandbox.guest(), script).await;
    assert_eq!(ran.ok(), "1073741824\n0");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_limit_stops_a_fork_bomb() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    if !lab.engine.capabilities().process_limit {
        eprintln!("skipped: no process limit on this host");
        return;
    }
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.processes_max = Some(40);
    let sandbox = lab.engine.create(spec).await.unwrap();
    let bomb = "for i in $(seq 200); do sleep 100 & done; true";
    let ran = sh(
        sandbox.guest(),
        &format!("bash -c '{bomb}' >/dev/null 2>&1 & sleep 0.3; true"),
    )
    .await;
    assert!(ran.signal.is_none(), "{ran:?}");
    let seen = sandbox.inspect().processes.unwrap();
    assert!((10..=40).contains(&seen), "{seen}");
    let removal = sandbox.destroy().await.unwrap();
    assert!(removal.was_running);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_that_nobody_asked_for_are_not_set() {
    let lab = if root_or_skip() { Lab::new() } else { return };
    let sandbox = lab.create().await;
    let ran = sh(sandbox.guest(), "ulimit -c; ulimit -n").await;
    let open_files: u64 = ran.ok().lines().nth(1).unwrap().parse().unwrap();
    assert!(ran.ok().starts_with("0\n") && open_files >= 1024, "{ran:?}");
    sandbox.destroy().await.unwrap();
}
