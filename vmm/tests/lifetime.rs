//! From creation to removal, with a crash at any point in between.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Lab, Traces, assert_no_guest_daemon_of, root_or_skip, sh};
use fluxvm_vmm::{AdoptError, Backend, CreateFault, ExitReason, Procbox, SandboxId, SandboxSpec};

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_sandbox_leaves_nothing_and_removing_it_again_says_so() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let id = *sandbox.id();
    sh(
        sandbox.guest(),
        "setsid sleep 1000 >/dev/null 2>&1 & mkdir -p /a/b && chmod 0 /a/b /a",
    )
    .await;
    let traces = Traces::of(&lab, sandbox.as_ref());
    assert_eq!(lab.engine.list().await.unwrap(), [id]);
    let removal = sandbox.destroy().await.unwrap();
    assert!(removal.existed && removal.was_running);
    assert_eq!(sandbox.exited().await, ExitReason::Killed { signal: 9 });
    traces.assert_gone();
    assert!(lab.engine.list().await.unwrap().is_empty());
    let again = lab.engine.remove(&id).await.unwrap();
    assert!(!again.existed && !again.was_running);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_is_not_made_twice_and_the_first_lives_on() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let again = lab
        .engine
        .create(SandboxSpec::new(*sandbox.id()))
        .await
        .unwrap_err();
    assert!(matches!(again.source, CreateFault::AlreadyExists(id) if id == *sandbox.id()));
    assert_eq!(sh(sandbox.guest(), "echo alive").await.ok(), "alive");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_nobody_waits_for_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    for patience_ms in 0..8 {
        let spec = SandboxSpec::new(SandboxId::random());
        let create = lab.engine.create(spec);
        let _ = tokio::time::timeout(Duration::from_millis(patience_ms * 2), create).await;
    }
    // Those that were in time are whole and listed; of the others nothing stays.
    let settled = async {
        loop {
            let mut half_made = 0;
            for id in lab.engine.list().await.unwrap() {
                match lab.engine.adopt(&id).await {
                    Ok(sandbox) => drop(sandbox.destroy().await.unwrap()),
                    Err(_) => half_made += 1,
                }
            }
            if half_made == 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settled)
        .await
        .unwrap();
    assert_no_guest_daemon_of(&lab);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_first_process_is_noticed() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let pid = i32::try_from(sandbox.inspect().pid).unwrap();
    let id = *sandbox.id();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(sandbox.exited().await, ExitReason::Killed { signal: 9 });
    assert!(!sandbox.inspect().alive);
    assert!(matches!(
        lab.engine.adopt(&id).await,
        Err(AdoptError::Dead { .. })
    ));
    let removal = sandbox.destroy().await.unwrap();
    assert!(removal.existed && !removal.was_running);
    assert!(matches!(
        lab.engine.adopt(&id).await,
        Err(AdoptError::Missing(_))
    ));
}

/// Not a test by itself: the daemon that is killed in the one below.
#[tokio::test(flavor = "multi_thread")]
async fn helper_that_makes_a_sandbox_and_waits() {
    let Some(state) = std::env::var_os("FLUXVM_TEST_STATE") else {
        return;
    };
    let engine = Procbox::new(common::options(Path::new(&state))).unwrap();
    let sandbox = engine
        .create(SandboxSpec::new(SandboxId::random()))
        .await
        .unwrap();
    sh(
        sandbox.guest(),
        "echo kept > /workspace/file; sleep 1000 >/dev/null 2>&1 &",
    )
    .await;
    fs::write(Path::new(&state).join("made"), sandbox.id().to_string()).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_outlives_a_killed_daemon_and_is_taken_over() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let mut daemon = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_makes_a_sandbox_and_waits"])
        .env("FLUXVM_TEST_STATE", lab.state.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let made = lab.state.path().join("made");
    let wait = async {
        while !made.exists() || fs::read_to_string(&made).unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let id: SandboxId = fs::read_to_string(&made).unwrap().parse().unwrap();
    let sandbox = lab.engine.adopt(&id).await.unwrap();
    assert_eq!(
        sh(sandbox.guest(), "cat /workspace/file; pgrep -c sleep")
            .await
            .ok(),
        "kept\n1"
    );
    let traces = Traces::of(&lab, sandbox.as_ref());
    assert!(sandbox.destroy().await.unwrap().was_running);
    assert!(matches!(
        sandbox.exited().await,
        ExitReason::Killed { .. } | ExitReason::Unknown
    ));
    traces.assert_gone();
}

/// Not a test by itself: a daemon that makes and removes until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn helper_that_makes_and_removes() {
    let Some(state) = std::env::var_os("FLUXVM_TEST_CHURN") else {
        return;
    };
    fs::write(Path::new(&state).join("started"), "").unwrap();
    let engine = Procbox::new(common::options(Path::new(&state))).unwrap();
    loop {
        let spec = SandboxSpec::new(SandboxId::random());
        let sandbox = engine.create(spec).await.unwrap();
        sandbox.destroy().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_at_any_moment_leaves_only_what_the_next_one_finds() {
    if !root_or_skip() {
        return;
    }
    for round in 0..12 {
        let lab = Lab::new();
        let mut daemon = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper_that_makes_and_removes"])
            .env("FLUXVM_TEST_CHURN", lab.state.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let started = lab.state.path().join("started");
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Whenever it is hit, the outcome must be the same.
        tokio::time::sleep(Duration::from_millis(11 * round)).await;
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let found = lab.engine.list().await.unwrap();
        for id in &found {
            lab.engine.remove(id).await.unwrap();
        }
        assert!(lab.engine.list().await.unwrap().is_empty());
        for path in found.iter().flat_map(|id| Traces::paths(&lab, id)) {
            assert!(
                path.symlink_metadata().is_err(),
                "{} is left",
                path.display()
            );
        }
        // A launcher without its daemon ends by itself.
        let ends = async {
            while common::guest_daemon_of(&lab).is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ends)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_names_somebody_elses_process_kills_nobody() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let id = *sandbox.id();
    sandbox.destroy().await.unwrap();
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    // The number is the bystander's, the beginning is not.
    let folder = lab.folder(&id);
    fs::create_dir(&folder).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = serde_json::json!({
        "format": 1, "id": id, "image": "host_root", "uid_base": 100_000, "skeleton": "x",
        "grafts": [], "cgroups": [], "boot_id": boot.trim(), "created_at_unix_ms": 0,
        "process": { "pid": bystander.id(), "start_time_ticks": 1 }
    });
    fs::write(folder.join("sandbox.json"), record.to_string()).unwrap();
    let removal = lab.engine.remove(&id).await.unwrap();
    assert!(removal.existed && !removal.was_running);
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_a_guest_planted_are_not_followed() {
    if !root_or_skip() {
        return;
    }
    let victim = tempfile::tempdir_in("/opt").unwrap();
    fs::write(victim.path().join("kept"), "x").unwrap();
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let target = victim.path().display();
    let script = format!("ln -s {target} /link; mkdir -p /d/e; ln -s {target} /d/e/link; ls /d/e");
    assert_eq!(sh(sandbox.guest(), &script).await.ok(), "link");
    let id = *sandbox.id();
    sandbox.destroy().await.unwrap();
    let trash = lab
        .state
        .path()
        .join("sandboxes")
        .join(format!(".trash-{id}"));
    let gone = async {
        while trash.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .unwrap();
    assert!(victim.path().join("kept").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_interrupted_removal_left_is_swept_at_the_next_start() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandboxes = lab.state.path().join("sandboxes");
    let trash = sandboxes.join(format!(".trash-{}", SandboxId::random()));
    fs::create_dir_all(trash.join("upper/deep")).unwrap();
    fs::create_dir_all(sandboxes.join(".skeleton-of-an-older-daemon/etc")).unwrap();
    let _next = Procbox::new(common::options(lab.state.path())).unwrap();
    let older = sandboxes.join(".skeleton-of-an-older-daemon");
    let gone = async {
        while trash.exists() || older.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), gone)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_are_made_at_once() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let mut making = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let engine = lab.engine.clone();
        making.spawn(async move {
            let sandbox = engine
                .create(SandboxSpec::new(SandboxId::random()))
                .await
                .unwrap();
            let name = sh(sandbox.guest(), "hostname").await.ok().to_owned();
            assert!(sandbox.id().to_string().starts_with(&name));
            sandbox
        });
    }
    let sandboxes = making.join_all().await;
    assert_eq!(lab.engine.list().await.unwrap().len(), 20);
    for sandbox in &sandboxes {
        let traces = Traces::of(&lab, sandbox.as_ref());
        sandbox.destroy().await.unwrap();
        traces.assert_gone();
    }
}
