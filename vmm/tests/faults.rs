//! A failure or a crash at any step of a creation.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use common::{Lab, Traces, assert_no_guest_daemon_of, launcher, root_or_skip};
use fluxvm_vmm::{Backend, CreateFault, CreateStage, ProbeError, Procbox, SandboxId, SandboxSpec};

/// Every stage that the launcher goes through.
const LAUNCHER_STAGES: [&str; 14] = [
    "join_cgroup",
    "launcher_namespace",
    "sandbox_namespace",
    "user_map",
    "idmapped_mount",
    "lower_layers",
    "root_overlay",
    "devices",
    "mount_namespace",
    "kernel_filesystems",
    "pivot_root",
    "identity",
    "workspace",
    "exec",
];

/// A launcher that has a fault. The trial at start must not have it: it is switched on by a file.
fn faulty_launcher(dir: &Path, fault: &str) -> PathBuf {
    let path = dir.join("launcher");
    let script = format!(
        "#!/bin/sh\n[ -e '{0}/armed' ] && export FLUXVM_PROCBOX_FAULT={fault}\nexec '{1}'\n",
        dir.display(),
        launcher().display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_at_any_stage_is_named_and_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    for stage in LAUNCHER_STAGES {
        for kind in ["fail", "die"] {
            let dir = tempfile::tempdir().unwrap();
            let faulty = faulty_launcher(dir.path(), &format!("{kind}:{stage}"));
            let lab = Lab::with(|options| options.launcher = faulty);
            fs::write(dir.path().join("armed"), "").unwrap();
            let spec = SandboxSpec::new(SandboxId::random());
            let id = spec.id;
            let error = lab.engine.create(spec).await.unwrap_err();
            if kind == "fail" {
                let named = serde_json::to_string(&error.stage).unwrap();
                assert_eq!(named, format!("\"{stage}\""), "{error}");
                assert_eq!(error.source.errno(), Some(libc::EIO));
            }
            for path in Traces::paths(&lab, &id) {
                assert!(
                    path.symlink_metadata().is_err(),
                    "{kind}:{stage}: {}",
                    path.display()
                );
            }
            assert!(lab.engine.list().await.unwrap().is_empty());
            assert_no_guest_daemon_of(&lab);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_daemon_that_ends_at_once_is_reported_with_its_last_words() {
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let agentd = dir.path().join("agentd");
    fs::write(&agentd, "#!/bin/sh\necho no luck today >&2\nexit 3\n").unwrap();
    let lab = Lab::with(|options| options.agentd = agentd);
    let spec = SandboxSpec::new(SandboxId::random());
    let paths = Traces::paths(&lab, &spec.id);
    let error = lab.engine.create(spec).await.unwrap_err();
    assert_eq!(error.stage, CreateStage::Bootstrap);
    let CreateFault::GuestDied { log } = &error.source else {
        panic!("{error}")
    };
    assert_eq!(log, "no luck today");
    assert!(paths.iter().all(|path| path.symlink_metadata().is_err()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_said_when_the_engine_is_opened() {
    if !root_or_skip() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut options = common::options(state.path());
    options.launcher = "/nonexistent/launcher".into();
    let error = Procbox::new(options.clone()).unwrap_err();
    assert!(
        matches!(
            error,
            ProbeError::Program {
                what: "the launcher",
                ..
            }
        ),
        "{error}"
    );
    options.launcher = launcher();
    options.agentd = "/nonexistent/agentd".into();
    let error = Procbox::new(options).unwrap_err();
    assert!(
        matches!(
            error,
            ProbeError::Program {
                what: "the guest daemon",
                ..
            }
        ),
        "{error}"
    );
}
