//! The same engine run by an ordinary user: weaker in what it can enforce, and honest about it.
//!
//! As root these tests run themselves again as a user that exists nowhere else.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{Lab, Traces, sh};
use fluxvm_vmm::{Backend, Disk, SandboxId, SandboxSpec, UserNamespace};

/// A user and group that nobody has.
const NOBODY_ELSE: u32 = 54_321;

/// Whether this process is the ordinary user. As root it runs the named test again as one, and
/// fails if that fails.
fn as_ordinary_user(test: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        let allowed = fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone");
        let refused = allowed.is_ok_and(|text| text.trim() == "0");
        if refused {
            eprintln!("skipped: this host gives ordinary users no user namespaces");
        }
        return !refused;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        to
    };
    let program = copy(&std::env::current_exe().unwrap(), "test");
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY_ELSE), Some(NOBODY_ELSE)).unwrap();
    let status = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env("FLUXVM_AGENTD", copy(&common::agentd(), "agentd"))
        .env(
            "FLUXVM_TEST_LAUNCHER",
            copy(&common::launcher(), "launcher"),
        )
        .env("HOME", &home)
        .env("TMPDIR", &home)
        .current_dir("/")
        .uid(NOBODY_ELSE)
        .gid(NOBODY_ELSE)
        .status()
        .unwrap();
    assert!(status.success(), "as an ordinary user: {status}");
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_users_sandbox_runs_and_hides_that_users_things() {
    if !as_ordinary_user("an_ordinary_users_sandbox_runs_and_hides_that_users_things") {
        return;
    }
    let home = std::env::var("HOME").unwrap();
    fs::create_dir_all(format!("{home}/.ssh")).unwrap();
    fs::write(format!("{home}/.ssh/id"), "secret").unwrap();
    let lab = Lab::new();
    let capabilities = lab.engine.capabilities();
    assert_eq!(capabilities.user_namespace, UserNamespace::SingleUser);
    assert!(!capabilities.host_root_writable);
    let limited = capabilities
        .degraded
        .iter()
        .any(|text| text.contains("limit on memory"));
    assert_eq!(limited, !capabilities.memory_limit, "{capabilities:?}");
    let rights = |text: &String| text.contains("supplementary groups");
    assert!(capabilities.degraded.iter().any(rights), "{capabilities:?}");

    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.hostname = "mine".to_owned();
    let sandbox = lab.engine.create(spec).await.unwrap();
    let guest = sandbox.guest();
    let ran = sh(
        guest,
        "id -u; hostname; pwd; cat /etc/hostname; ls /sys/class/net",
    )
    .await;
    assert_eq!(ran.ok(), "0\nmine\n/workspace\nmine\nlo");
    let pid = sandbox.inspect().pid;
    let me = nix::unistd::geteuid().as_raw();
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), me);
    for script in [
        format!("ls {home}"),
        "cat /etc/shadow".into(),
        "ls /run/user".into(),
    ] {
        let ran = sh(guest, &script).await;
        assert_ne!(ran.code, Some(0), "{script}: {ran:?}");
    }
    let state = lab.state.path().display();
    let ran = sh(
        guest,
        &format!("ls -A /home /root /tmp /run/lock; ls {state} 2>&1; true"),
    )
    .await;
    assert!(!ran.ok().contains("sandboxes"), "{ran:?}");
    let script = "echo x > /tmp/x; echo y > /workspace/y; mkdir /new; echo z > /etc/own; \
                  python3 -c 'print(6 * 7)'; echo w > /dev/null; ls /new; cat /tmp/x /etc/own";
    assert_eq!(sh(guest, script).await.ok(), "42\nx\nz");
    let script = "bash -c 'echo > /dev/tcp/192.0.2.1/80' 2>&1 | grep -o 'Network is unreachable'";
    assert_eq!(
        sh(guest, script).await.ok().lines().next(),
        Some("Network is unreachable")
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_user_removes_all_of_it() {
    if !as_ordinary_user("an_ordinary_user_removes_all_of_it") {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let script = "mkdir -p /opt/a/b /c/d && touch /c/d/e && chmod 0 /opt/a/b /opt/a /c/d /c; \
                  setsid sleep 1000 >/dev/null 2>&1 &";
    sh(sandbox.guest(), script).await;
    let again = lab.engine.adopt(sandbox.id()).await.unwrap();
    assert_eq!(sh(again.guest(), "echo here").await.ok(), "here");
    let traces = Traces::of(&lab, sandbox.as_ref());
    let removal = again.destroy().await.unwrap();
    assert!(removal.existed && removal.was_running);
    traces.assert_gone();
    let trash = lab
        .state
        .path()
        .join("sandboxes")
        .join(format!(".trash-{}", sandbox.id()));
    let gone = async {
        while trash.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), gone)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_users_disk_is_captured_too() {
    if !as_ordinary_user("an_ordinary_users_disk_is_captured_too") {
        return;
    }
    let lab = Lab::new();
    let capabilities = lab.engine.capabilities();
    assert!(
        capabilities.snapshot && capabilities.fork,
        "{capabilities:?}"
    );
    assert!(!capabilities.memory_checkpoint);
    let spec = || {
        let mut spec = SandboxSpec::new(SandboxId::random());
        spec.hostname = "same".to_owned();
        spec
    };
    let sandbox = lab.engine.create(spec()).await.unwrap();
    let wanted = || fluxvm_vmm::SnapshotSpec {
        id: fluxvm_vmm::SnapshotId::random(),
        memory: fluxvm_vmm::MemoryWanted::BestEffort,
    };
    let script = "cd /workspace; mkdir -p a/b; echo one > a/b/file; ln a/b/file hard; \
                  chmod 555 a/b; ln -s a link; mkfifo pipe; echo own > /etc/own; mkdir /etc/gone";
    sh(sandbox.guest(), script).await.ok();
    sandbox.checkpoint(wanted()).await.unwrap();
    let script = "rmdir /etc/gone; rm /workspace/link; mkdir /workspace/link";
    sh(sandbox.guest(), script).await.ok();
    let look = "cd /workspace; find . /etc/own -printf '%p %M %T@ %l\n' | sort; \
                cat a/b/file hard /etc/own; ls /etc/gone 2>&1; \
                stat -c %i a/b/file hard | uniq | wc -l";
    let before = sh(sandbox.guest(), look).await.output;
    let snapshot = sandbox.checkpoint(wanted()).await.unwrap();
    sandbox.destroy().await.unwrap();
    let keep = fluxvm_vmm::Identity::Keep;
    let revived = lab.engine.revive(spec(), &snapshot, keep).await.unwrap();
    let guest = revived.sandbox.guest();
    assert_eq!(sh(guest, look).await.output, before);
    let mut file = lab
        .engine
        .open_file(&Disk::Snapshot(snapshot.id), &"/etc/own".parse().unwrap())
        .await
        .unwrap();
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut file, &mut text)
        .await
        .unwrap();
    assert_eq!(text, "own\n");
    revived.sandbox.destroy().await.unwrap();
}
