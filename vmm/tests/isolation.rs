//! What a sandbox on the host's root sees, may change, and cannot reach.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, and says what it skips"
)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use common::{Lab, root_or_skip, sh};
use fluxvm_vmm::{
    Backend, CreateFault, CreateStage, ImageRef, SandboxId, SandboxSpec, UserNamespace,
};

/// Files of the host that others may not read, or that lie where others may not go.
fn private_files(dir: &Path, closed: bool, found: &mut Vec<PathBuf>) {
    const SAMPLE_MAX: usize = 300;
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let mode = metadata.mode();
        if metadata.is_dir() && found.len() < SAMPLE_MAX {
            private_files(&path, closed || mode & 0o001 == 0, found);
        } else if metadata.is_file() && (closed || mode & 0o004 == 0) && found.len() < SAMPLE_MAX {
            found.push(path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_reads_nothing_that_an_ordinary_user_could_not() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let mut files = vec![PathBuf::from("/etc/shadow")];
    for dir in ["/etc", "/var", "/usr", "/opt", "/srv", "/root"] {
        private_files(Path::new(dir), false, &mut files);
    }
    files.retain(|path| !path.to_string_lossy().contains('\''));
    assert!(
        files.len() > 3,
        "this host has private files to try: {files:?}"
    );
    for chunk in files.chunks(50) {
        let tries: Vec<String> = chunk
            .iter()
            .map(|path| {
                format!(
                    "cat '{0}' >/dev/null 2>&1 && echo 'READ {0}'",
                    path.display()
                )
            })
            .collect();
        let ran = sh(sandbox.guest(), &format!("{}; true", tries.join("\n"))).await;
        assert_eq!(ran.ok(), "");
    }
    // Not by changing the mode either: a copy would have to be read first.
    let ran = sh(sandbox.guest(), "chmod 666 /etc/shadow; cat /etc/shadow").await;
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.output.contains("root:"), "{ran:?}");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn masked_paths_and_the_state_folder_are_not_there() {
    if !root_or_skip() {
        return;
    }
    // Outside /tmp, which is private anyway.
    let state = tempfile::Builder::new()
        .prefix("fluxvm-test-")
        .tempdir_in("/var/lib")
        .unwrap();
    fs::set_permissions(state.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = tempfile::tempdir_in("/opt").unwrap();
    fs::set_permissions(secret.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(secret.path().join("key"), "secret").unwrap();
    let later = PathBuf::from("/opt").join(format!("later-{}", SandboxId::random()));
    let masks = vec![
        state.path().to_owned(),
        secret.path().join("key"),
        later.clone(),
    ];
    let lab = Lab::at(state, |options| options.masked_paths = masks);
    let sandbox = lab.create().await;
    fs::write(&later, "secret").unwrap();
    let script = format!(
        "ls -A /root /home /tmp /var/tmp /run/lock /mnt; ls -A '{}'; ls '{}' '{}' '{}'; true",
        secret.path().display(),
        lab.state.path().display(),
        later.display(),
        "/var/lib/docker",
    );
    let ran = sh(sandbox.guest(), &script).await;
    fs::remove_file(&later).unwrap();
    let lines: Vec<&str> = ran
        .ok()
        .lines()
        .filter(|l| !l.is_empty() && !l.ends_with(':'))
        .collect();
    assert_eq!(lines.len(), 3, "{ran:?}");
    assert!(
        lines
            .iter()
            .all(|line| line.ends_with("No such file or directory")),
        "{ran:?}"
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn etc_is_writable_inside_and_the_hosts_is_untouched() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    assert!(lab.engine.capabilities().host_root_writable);
    let before = fs::read("/etc/passwd").unwrap();
    let sandbox = lab.create().await;
    let script = "echo 'x:x:7:7::/:/bin/sh' >> /etc/passwd && echo y > /etc/fluxvm-new && \
                  rm /etc/hosts && mkdir /usr/fluxvm && chown 5:5 /usr/fluxvm && \
                  stat -c %U:%a /etc/passwd && tail -1 /etc/passwd";
    let ran = sh(sandbox.guest(), script).await;
    assert_eq!(ran.ok(), "root:644\nx:x:7:7::/:/bin/sh");
    assert_eq!(fs::read("/etc/passwd").unwrap(), before);
    assert!(!Path::new("/etc/fluxvm-new").exists() && !Path::new("/usr/fluxvm").exists());
    let upper = lab.folder(sandbox.id()).join("upper");
    assert_eq!(
        fs::metadata(upper.join("usr/fluxvm")).unwrap().uid(),
        100_005
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_is_loopback_and_nothing_else() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    assert_eq!(
        sh(
            guest,
            "ls /sys/class/net; tail -n +3 /proc/net/dev | cut -d: -f1"
        )
        .await
        .ok(),
        "lo\n    lo"
    );
    assert_eq!(sh(guest, "tail -n +2 /proc/net/route").await.ok(), "");
    let script =
        "bash -c 'echo > /dev/tcp/192.0.2.1/80' 2>&1 | grep -o 'Network is unreachable' | head -1";
    assert_eq!(sh(guest, script).await.ok(), "Network is unreachable");
    // Loopback is up: nobody listens, and that is the answer.
    let script =
        "bash -c 'echo > /dev/tcp/127.0.0.1/9' 2>&1 | grep -o 'Connection refused' | head -1";
    assert_eq!(sh(guest, script).await.ok(), "Connection refused");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_its_own_name_workspace_processes_and_users() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.hostname = "box-1.test".to_owned();
    spec.workspace = "/srv/deep/er".parse().unwrap();
    spec.env.insert("GREETING".to_owned(), "hello".to_owned());
    let sandbox = lab.engine.create(spec).await.unwrap();
    let guest = sandbox.guest();
    assert_eq!(
        sh(guest, "hostname; cat /etc/hostname; pwd; ls -d /workspace")
            .await
            .ok(),
        "box-1.test\nbox-1.test\n/srv/deep/er\n/workspace"
    );
    assert_eq!(
        sh(guest, "echo $HOME $LANG $GREETING; cd; pwd").await.ok(),
        "/root C.UTF-8 hello\n/root"
    );
    assert_eq!(
        sh(guest, "getent hosts box-1.test | cut -d' ' -f1")
            .await
            .ok(),
        "127.0.0.1"
    );
    let pid = sandbox.inspect().pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |name: &str| {
        status
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    assert_eq!(line("Uid:"), "Uid:\t100000\t100000\t100000\t100000");
    assert_eq!(line("Gid:"), "Gid:\t100000\t100000\t100000\t100000");
    assert_eq!(line("Groups:").trim_end(), "Groups:");
    assert_eq!(line("NSpid:"), format!("NSpid:\t{pid}\t1"));
    assert_eq!(
        sh(guest, "id -u; cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l")
            .await
            .ok()
            .lines()
            .next(),
        Some("0")
    );
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/exe")).unwrap(),
        Path::new("/.fluxvm/microvms-agentd")
    );
    assert_eq!(
        lab.engine.capabilities().user_namespace,
        UserNamespace::ShiftedRange {
            base: 100_000,
            count: 65_536
        }
    );
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn root_inside_cannot_make_devices_or_take_the_masks_apart() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    for script in [
        "mknod /tmp/disk b 254 0",
        "mount -o remount,bind,dev /",
        "umount /dev/null",
        "mount -t ext4 /dev/vda /mnt",
        "echo b > /proc/sysrq-trigger",
        "echo 1 > /proc/sys/vm/drop_caches",
        "mount -o remount,rw /sys && echo 0 > /sys/kernel/mm/ksm/run",
    ] {
        let ran = sh(guest, script).await;
        assert_ne!(ran.code, Some(0), "{script}: {ran:?}");
    }
    // What an ordinary machine can do works: other users, set-user-id programs, a mount of one's
    // own.
    let ran = sh(
        guest,
        "su -s /bin/sh nobody -c 'id -u; cat /dev/null; cat /root' 2>&1; true",
    )
    .await;
    assert!(ran.ok().starts_with("65534\n"), "{ran:?}");
    let script =
        "mount -t tmpfs x /mnt && touch /mnt/y && umount /mnt && echo z > /dev/shm/z && ls /mnt";
    assert_eq!(sh(guest, script).await.ok(), "");
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_cannot_shift_owners_still_keeps_its_secrets_and_says_what_is_missing() {
    if !root_or_skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lacking = dir.path().join("launcher");
    let script = format!(
        "#!/bin/sh\nFLUXVM_PROCBOX_FAULT=lack:idmapped_mount exec '{}'\n",
        common::launcher().display()
    );
    fs::write(&lacking, script).unwrap();
    fs::set_permissions(&lacking, fs::Permissions::from_mode(0o755)).unwrap();
    let lab = Lab::with(|options| options.launcher = lacking);
    let capabilities = lab.engine.capabilities();
    assert!(!capabilities.host_root_writable);
    assert!(
        capabilities
            .degraded
            .iter()
            .any(|text| text.contains("belong to nobody"))
    );
    let sandbox = lab.create().await;
    let guest = sandbox.guest();
    assert_eq!(
        sh(guest, "stat -c %U /etc/passwd; id -u").await.ok(),
        "nobody\n0"
    );
    for script in [
        "cat /etc/shadow",
        "echo x >> /etc/passwd",
        "ls /etc/ssl/private",
    ] {
        assert_ne!(sh(guest, script).await.code, Some(0), "{script}");
    }
    sandbox.destroy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_image_is_its_own_root() {
    if !root_or_skip() {
        return;
    }
    let lab = Lab::new();
    let mut spec = SandboxSpec::new(SandboxId::random());
    spec.image = ImageRef::Named("small".parse().unwrap());
    let refused = lab.engine.create(spec.clone()).await.unwrap_err();
    assert_eq!(refused.stage, CreateStage::Image);
    assert!(
        matches!(refused.source, CreateFault::ImageMissing { .. }),
        "{refused}"
    );
    let root = lab.state.path().join("images/small/rootfs");
    for dir in ["bin", "etc", "home/someone"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::write(root.join("etc/secret"), "the image's own").unwrap();
    fs::set_permissions(root.join("etc/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    for program in ["sh", "cat", "ls", "id"] {
        copy_program(&root, program);
    }
    let sandbox = lab.engine.create(spec).await.unwrap();
    let ran = sh(
        sandbox.guest(),
        "cat /etc/secret; echo; ls /home; echo x > /etc/secret; ls /usr 2>&1",
    )
    .await;
    assert!(
        ran.output.starts_with("the image's own\nsomeone\n"),
        "{ran:?}"
    );
    assert_eq!(
        fs::read_to_string(root.join("etc/secret")).unwrap(),
        "the image's own"
    );
    sandbox.destroy().await.unwrap();
}

/// Copies a program of the host and the libraries that it needs.
fn copy_program(root: &Path, program: &str) {
    let source = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
    let source = source.iter().find(|path| path.exists()).unwrap();
    fs::copy(source, root.join("bin").join(program)).unwrap();
    let needed = std::process::Command::new("ldd")
        .arg(source)
        .output()
        .unwrap();
    for path in String::from_utf8_lossy(&needed.stdout).split_whitespace() {
        if path.starts_with('/') {
            let target = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(path, target).unwrap();
        }
    }
}
