//! Snapshots in bad times: a full disk, a daemon that is killed, many at once, a missing program.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Lab, root_or_skip, sh};
use fluxvm_vmm::{
    Backend, Identity, MemoryKept, MemoryWanted, Procbox, SandboxId, SandboxSpec, Snapshot,
    SnapshotError, SnapshotId, SnapshotSpec,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

fn disk_only() -> SnapshotSpec {
    SnapshotSpec {
        id: SnapshotId::random(),
        memory: MemoryWanted::Never,
    }
}

fn fresh() -> SandboxSpec {
    SandboxSpec::new(SandboxId::random())
}

/// Every name in the folders of layers and snapshots.
fn names(state: &Path) -> Vec<String> {
    let read = |dir: &str| fs::read_dir(state.join(dir)).unwrap();
    let all = ["layers", "snapshots"].map(read).into_iter().flatten();
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Waits until what is removed in the background is gone.
async fn settled(state: &Path) {
    let hidden = || {
        let mut names = names(state).into_iter();
        names.any(|name| name.starts_with('.') && name != ".criu-kernel")
    };
    let wait = async {
        while hidden() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap();
}

#[test]
fn a_disk_that_fills_up_during_a_checkpoint_costs_that_checkpoint_alone() {
    if !root_or_skip() {
        return;
    }
    let alone = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).unwrap();
        let point = tempfile::tempdir().unwrap();
        let flags = MsFlags::empty();
        mount(none, point.path(), Some("tmpfs"), flags, Some("size=256m")).unwrap();
        let state = tempfile::tempdir_in(point.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(full_disk(state));
        umount2(point.path(), MntFlags::MNT_DETACH).unwrap();
    };
    std::thread::spawn(alone).join().unwrap();
}

async fn full_disk(state: tempfile::TempDir) {
    let lab = Lab::at(state, |_| {});
    let sandbox = lab.create().await;
    let script = "cd /workspace; echo kept > small; head -c 80M /dev/urandom > large; cksum large";
    let sum = sh(sandbox.guest(), script).await.ok().to_owned();
    let filler = lab.state.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    let block = vec![0_u8; 1024 * 1024];
    while file.write_all(&block).is_ok() {}
    file.set_len(
        file.metadata()
            .unwrap()
            .len()
            .saturating_sub(40 * 1024 * 1024),
    )
    .unwrap();
    let refused = sandbox.checkpoint(disk_only()).await.unwrap_err();
    assert!(refused.is_out_of_space(), "{refused}");
    settled(lab.state.path()).await;
    assert_eq!(
        names(lab.state.path()),
        Vec::<String>::new(),
        "nothing is left"
    );
    assert_eq!(
        sh(sandbox.guest(), "cat /workspace/small").await.ok(),
        "kept"
    );

    drop(file);
    fs::remove_file(&filler).unwrap();
    let snapshot = sandbox.checkpoint(disk_only()).await.unwrap();
    sandbox.destroy().await.unwrap();
    let revived = lab.engine.revive(fresh(), &snapshot, Identity::Renew).await;
    let guest = revived.unwrap().sandbox;
    let again = sh(guest.guest(), "cd /workspace; cksum large").await;
    assert_eq!(again.ok(), sum);
}

/// Not a test by itself: the daemon that takes snapshots until it is killed in the one below.
#[tokio::test(flavor = "multi_thread")]
async fn helper_that_takes_snapshots() {
    let Some(state) = std::env::var_os("FLUXVM_TEST_SNAPSHOTS") else {
        return;
    };
    let state = Path::new(&state);
    let engine = Procbox::new(common::options(state)).unwrap();
    let mut sandbox = engine.create(fresh()).await.unwrap();
    let mut taken = OpenOptions::new()
        .append(true)
        .create(true)
        .open(state.join("taken"))
        .unwrap();
    for number in 0_u32.. {
        let script = format!(
            "cd /workspace; setsid sleep 1000 >/dev/null 2>&1 & echo {number} > number; \
             rm -rf d; mkdir d; for n in $(seq 20); do echo {number} > d/$n; done"
        );
        sh(sandbox.guest(), &script).await.ok();
        let mut spec = disk_only();
        if number % 4 == 3 {
            spec.memory = MemoryWanted::BestEffort;
        }
        let snapshot = sandbox.checkpoint(spec).await.unwrap();
        let line = serde_json::to_string(&(number, &snapshot)).unwrap();
        taken.write_all(format!("{line}\n").as_bytes()).unwrap();
        if number % 3 == 2 {
            let revived = engine.revive(fresh(), &snapshot, Identity::Keep).await;
            let revived = revived.unwrap().sandbox;
            sandbox.destroy().await.unwrap();
            sandbox = revived;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_survives_a_killed_daemon_and_what_was_not_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let taken = lab.state.path().join("taken");
    for round in 0..6_u64 {
        fs::write(&taken, "").unwrap();
        let mut daemon = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_takes_snapshots"])
            .env("FLUXVM_TEST_SNAPSHOTS", lab.state.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let lines = || fs::read_to_string(&taken).unwrap().lines().count();
        let wait = async {
            while lines() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .unwrap();
        // Another moment of the work each time.
        tokio::time::sleep(Duration::from_millis(round * 37)).await;
        daemon.kill().unwrap();
        daemon.wait().unwrap();

        let engine = Procbox::new(common::options(lab.state.path())).unwrap();
        let text = fs::read_to_string(&taken).unwrap();
        let answered: Vec<(u32, Snapshot)> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let listed = engine.snapshots().await.unwrap();
        assert!(answered.iter().all(|(_, s)| listed.contains(&s.id)));
        for (number, snapshot) in answered.iter().rev().take(3) {
            let revived = engine.revive(fresh(), snapshot, Identity::Keep).await;
            let sandbox = revived.unwrap().sandbox;
            let script = "cd /workspace; cat number d/* | sort -u; ls d | wc -l";
            let ran = sh(sandbox.guest(), script).await;
            assert_eq!(ran.ok(), format!("{number}\n20"), "round {round}");
            sandbox.destroy().await.unwrap();
        }
        // Those that were being captured may stand still: they are ended all the same.
        for id in engine.list().await.unwrap() {
            assert!(engine.remove(&id).await.unwrap().existed);
        }
        for id in listed {
            assert!(engine.remove_snapshot(&id).await.unwrap());
        }
        settled(lab.state.path()).await;
        let left = names(lab.state.path());
        assert!(left.iter().all(|name| name == ".criu-kernel"), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_snapshot_is_restored_forked_and_forgotten_at_the_same_time() {
    if !root_or_skip() {
        return;
    }
    let lab = Arc::new(Lab::new());
    let sandbox = lab.create().await;
    sh(sandbox.guest(), "echo one > /workspace/file").await.ok();
    let snapshot = sandbox.checkpoint(disk_only()).await.unwrap();
    let mut work = tokio::task::JoinSet::new();
    for number in 0..6 {
        let (lab, snapshot) = (Arc::clone(&lab), snapshot.clone());
        work.spawn(async move {
            let identity = match number % 2 {
                0 => Identity::Keep,
                _ => Identity::Renew,
            };
            let revived = lab.engine.revive(fresh(), &snapshot, identity).await;
            let sandbox = revived.unwrap().sandbox;
            let script = format!("cat /workspace/file; echo {number} > /workspace/file");
            assert_eq!(sh(sandbox.guest(), &script).await.ok(), "one");
            sandbox
        });
    }
    let again = sandbox
        .checkpoint(SnapshotSpec {
            id: snapshot.id,
            ..disk_only()
        })
        .await;
    assert!(matches!(again, Err(SnapshotError::AlreadyExists(id)) if id == snapshot.id));
    let copies = work.join_all().await;
    assert!(lab.engine.remove_snapshot(&snapshot.id).await.unwrap());
    let gone = lab.engine.revive(fresh(), &snapshot, Identity::Keep).await;
    assert!(gone.is_err());
    for copy in copies {
        copy.destroy().await.unwrap();
    }
    assert_eq!(sh(sandbox.guest(), "cat /workspace/file").await.ok(), "one");
    sandbox.destroy().await.unwrap();
    let gone = sandbox.checkpoint(disk_only()).await;
    assert!(matches!(gone, Err(SnapshotError::SandboxGone)), "{gone:?}");
    settled(lab.state.path()).await;
    assert_eq!(names(lab.state.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_criu_snapshots_hold_the_disk_and_say_why() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::with(|options| options.criu = None);
    let capabilities = lab.engine.capabilities();
    assert!(capabilities.snapshot && !capabilities.memory_checkpoint);
    let why = capabilities.memory_checkpoint_reason.unwrap();
    let sandbox = lab.create().await;
    let script = "setsid sleep 1000 >/dev/null 2>&1 & while ! pgrep -x sleep; do :; done";
    sh(sandbox.guest(), script).await.ok();
    let spec = |memory| SnapshotSpec {
        memory,
        ..disk_only()
    };
    let refused = sandbox.checkpoint(spec(MemoryWanted::Required)).await;
    assert!(matches!(&refused, Err(SnapshotError::Memory(reason)) if *reason == why));
    let taken = sandbox.checkpoint(spec(MemoryWanted::BestEffort)).await;
    let reason = why.clone();
    assert_eq!(taken.unwrap().memory, MemoryKept::Impossible { reason });
    assert_eq!(sh(sandbox.guest(), "pgrep -c sleep").await.ok(), "1");
}
