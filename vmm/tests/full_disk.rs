//! A disk without space: the engine still opens, because somebody has to delete something.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Lab, launcher, root_or_skip, sh};
use fluxvm_vmm::{Backend, CreateStage, ProbeError, Procbox, SandboxId, SandboxSpec};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Holds a few guest daemons and skeletons.
const DISK: &str = "size=256m";

/// A launcher with a fault.
fn faulty(dir: &Path, fault: &str) -> std::path::PathBuf {
    let path = dir.join(format!("launcher-{fault}"));
    let real = launcher();
    let script = format!(
        "#!/bin/sh\nFLUXVM_PROCBOX_FAULT={fault} exec '{}'\n",
        real.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs a test where a small disk is mounted that nobody else sees.
fn on_a_small_disk(test: impl AsyncFnOnce(tempfile::TempDir) + Send + 'static) {
    let alone = move || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).unwrap();
        let point = tempfile::tempdir().unwrap();
        let flags = MsFlags::empty();
        mount(none, point.path(), Some("tmpfs"), flags, Some(DISK)).unwrap();
        let state = tempfile::tempdir_in(point.path()).unwrap();
        // Its threads are made by this one, and so see what this one sees.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test(state));
        umount2(point.path(), MntFlags::MNT_DETACH).unwrap();
    };
    std::thread::spawn(alone).join().unwrap();
}

/// Writes until nothing more fits.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for bytes in [1024 * 1024, 1] {
        let block = vec![0_u8; bytes];
        while file.write_all(&block).is_ok() {}
    }
}

fn says_no_space(engine: &Procbox) -> bool {
    let said = engine.capabilities().degraded;
    said.iter()
        .any(|text| text.contains("no space") && text.contains("delete sessions"))
}

#[test]
fn an_engine_opens_on_a_full_disk_and_takes_over_and_deletes() {
    if !root_or_skip() {
        return;
    }
    on_a_small_disk(async |state| {
        let lab = Lab::at(state, |_| {});
        assert!(!says_no_space(&lab.engine));
        let sandbox = lab.create().await;
        let filler = lab.state.path().join("filler");
        fill(&filler);

        let options = common::options(lab.state.path());
        let second = Procbox::new(options.clone()).unwrap();
        assert!(says_no_space(&second), "{:?}", second.capabilities());
        assert_eq!(second.list().await.unwrap(), [*sandbox.id()]);
        let spec = SandboxSpec::new(SandboxId::random());
        let refused = second.create(spec.clone()).await.unwrap_err();
        assert!(refused.is_out_of_space(), "{refused}");
        let taken = second.adopt(sandbox.id()).await.unwrap();
        assert_eq!(sh(taken.guest(), "echo here").await.ok(), "here");

        // Not even the layer of a new guest daemon fits.
        let mut newer = options.clone();
        let program = tempfile::NamedTempFile::new_in("/tmp").unwrap();
        let mut bytes = fs::read(&newer.agentd).unwrap();
        bytes.push(0);
        fs::write(program.path(), bytes).unwrap();
        newer.agentd = program.path().to_owned();
        let third = Procbox::new(newer).unwrap();
        assert!(says_no_space(&third), "{:?}", third.capabilities());
        let refused = third.create(spec.clone()).await.unwrap_err();
        assert!(refused.is_out_of_space(), "{refused}");
        let removal = third.remove(sandbox.id()).await.unwrap();
        assert!(removal.existed && removal.was_running);

        // Once there is space, the same engine makes sandboxes.
        fs::remove_file(&filler).unwrap();
        let made = second.create(spec).await.unwrap();
        made.destroy().await.unwrap();
    });
}

#[test]
fn only_a_full_disk_is_forgiven() {
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |fault: &str| {
        let mut options = common::options(dir.path());
        options.launcher = faulty(dir.path(), fault);
        Procbox::new(options)
    };
    assert!(says_no_space(&open("full:root_overlay").unwrap()));
    // There the same answer means that no more namespaces are allowed.
    for fault in ["full:sandbox_namespace", "fail:root_overlay"] {
        let error = open(fault).unwrap_err();
        let ProbeError::Trial(error) = error else {
            panic!("{fault}: {error}")
        };
        let stage = [CreateStage::SandboxNamespace, CreateStage::RootOverlay];
        assert!(stage.contains(&error.stage), "{error}");
    }
}
