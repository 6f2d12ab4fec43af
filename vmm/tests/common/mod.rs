//! What the tests of real sandboxes share: a state folder of their own, and a shell inside.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses its own part"
)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_client::protocol::{ExecId, ShellChoice, StartRequest};
use agentd_client::{AgentdClient, ExecEvent};
use fluxvm_vmm::procbox::{UID_BASE_DEFAULT, UID_COUNT_DEFAULT};
use fluxvm_vmm::{Backend, Procbox, ProcboxOptions, Sandbox, SandboxId, SandboxSpec};

/// An engine over a state folder that goes with it.
pub struct Lab {
    pub engine: Procbox,
    pub state: tempfile::TempDir,
}

/// What a command inside printed, both streams as one, and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub output: String,
}

impl Ran {
    /// The output of a command that must have succeeded.
    pub fn ok(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.output.trim_end()
    }
}

/// Whether sandboxes can be made here as root; says so when not.
pub fn root_or_skip() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: this test makes sandboxes with shifted users and needs root");
    }
    root
}

/// The guest daemon's static program. It is built before these tests, with another profile.
pub fn agentd() -> PathBuf {
    if let Some(path) = std::env::var_os("FLUXVM_AGENTD") {
        return PathBuf::from(path);
    }
    let mut places: Vec<PathBuf> = Vec::new();
    if let Some(bin) = std::env::var_os("FLUXVM_BIN_DIR") {
        places.push(Path::new(&bin).join("guest/microvms-agentd"));
    }
    let target = Path::new(env!("CARGO_BIN_EXE_fluxvm-procbox"))
        .parent()
        .and_then(Path::parent);
    let target = target.unwrap();
    places.push(target.join("x86_64-unknown-linux-gnu/guest/microvms-agentd"));
    places.push(target.join("release/guest/microvms-agentd"));
    places
        .iter()
        .find(|path| path.exists())
        .cloned()
        .unwrap_or_else(|| {
            panic!("the guest daemon is not built (run `make build` first); looked for {places:?}")
        })
}

/// The launcher; another user may need a copy.
pub fn launcher() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_BIN_EXE_fluxvm-procbox"));
    std::env::var_os("FLUXVM_TEST_LAUNCHER").map_or(built, PathBuf::from)
}

/// Options over a state folder.
pub fn options(state: &Path) -> ProcboxOptions {
    ProcboxOptions {
        sandboxes_dir: state.join("sandboxes"),
        layers_dir: state.join("layers"),
        snapshots_dir: state.join("snapshots"),
        images_dir: state.join("images"),
        secrets_dir: state.join("secrets"),
        masked_paths: vec![state.to_owned()],
        agentd: agentd(),
        launcher: launcher(),
        criu: fluxvm_vmm::procbox::find_criu(),
        uid_base: UID_BASE_DEFAULT,
        uid_count: UID_COUNT_DEFAULT,
    }
}

impl Lab {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut ProcboxOptions)) -> Self {
        Self::at(tempfile::tempdir().unwrap(), change)
    }

    pub fn at(state: tempfile::TempDir, change: impl FnOnce(&mut ProcboxOptions)) -> Self {
        fluxvm_vmm::become_subreaper().unwrap();
        let mut options = options(state.path());
        change(&mut options);
        Self {
            engine: Procbox::new(options).unwrap(),
            state,
        }
    }

    pub async fn create(&self) -> Arc<dyn Sandbox> {
        self.engine
            .create(SandboxSpec::new(SandboxId::random()))
            .await
            .unwrap()
    }

    pub fn folder(&self, id: &SandboxId) -> PathBuf {
        self.state.path().join("sandboxes").join(id.to_string())
    }
}

impl Drop for Lab {
    /// A test that fails half-way must not leave its sandboxes running.
    fn drop(&mut self) {
        let engine = self.engine.clone();
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                for id in engine.list().await.unwrap_or_default() {
                    let _ = engine.remove(&id).await;
                }
            });
        });
        let _ = removal.join();
    }
}

/// Runs a script inside with `/bin/sh`.
pub async fn sh(guest: &AgentdClient, script: &str) -> Ran {
    let id = ExecId::new(SandboxId::random().to_string()).unwrap();
    let mut request = StartRequest::new(id, [script]);
    request.shell = ShellChoice::Flag(true);
    let mut stream = guest.run(&request).await.unwrap();
    let mut output = Vec::new();
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ExecEvent::Output { bytes, .. } => output.extend_from_slice(&bytes),
            ExecEvent::Gap { from, to } => panic!("lost {from}..{to}"),
            ExecEvent::Exit(exit) => {
                let output = String::from_utf8_lossy(&output).into_owned();
                return Ran {
                    code: exit.exit_code,
                    signal: exit.signal,
                    output,
                };
            }
        }
    }
    panic!("the stream ended without an exit");
}

/// What must be gone once a sandbox is removed.
pub struct Traces {
    /// Each is held open: the kernel gives the number of one that is gone to the next one.
    namespaces: Vec<(&'static str, PathBuf, File)>,
    paths: Vec<PathBuf>,
}

impl Traces {
    /// Notes the namespaces of a running sandbox, and where its folders are.
    pub fn of(lab: &Lab, sandbox: &dyn Sandbox) -> Self {
        let pid = sandbox.inspect().pid;
        let held = |kind| {
            let path = format!("/proc/{pid}/ns/{kind}");
            let link = std::fs::read_link(&path).unwrap();
            (kind, link, File::open(path).unwrap())
        };
        Self {
            namespaces: ["pid", "net"].map(held).into(),
            paths: Self::paths(lab, sandbox.id()),
        }
    }

    /// Where a sandbox that may never have run could have left something.
    pub fn paths(lab: &Lab, id: &SandboxId) -> Vec<PathBuf> {
        let token = lab.state.path().join("secrets/agents").join(id.to_string());
        let mut paths = vec![lab.folder(id), token];
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, own) = (parts.next().unwrap(), parts.next().unwrap());
            let own = own.trim_start_matches('/');
            let name = if names.is_empty() { "" } else { names };
            let root = Path::new("/sys/fs/cgroup").join(name);
            paths.push(root.join(own).join("fluxvm").join(id.to_string()));
        }
        paths
    }

    /// Asserts that no process is in its namespaces, no folder or group has its name, and this
    /// process sees no mount that it did not see before.
    pub fn assert_gone(&self) {
        for path in &self.paths {
            assert!(
                path.symlink_metadata().is_err(),
                "{} is left",
                path.display()
            );
        }
        for (kind, namespace, _held) in &self.namespaces {
            for entry in std::fs::read_dir("/proc").unwrap().flatten() {
                let link = entry.path().join("ns").join(kind);
                let there = std::fs::read_link(&link).ok();
                assert_ne!(
                    there.as_ref(),
                    Some(namespace),
                    "{} is left",
                    entry.path().display()
                );
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !mounts.contains("fluxvm") && !mounts.contains(".skeleton"),
            "{mounts}"
        );
    }
}

/// A process of this lab: every launcher and every first process has its log in the lab's folder.
pub fn guest_daemon_of(lab: &Lab) -> Option<String> {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let Ok(fds) = std::fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        let targets = fds
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        let mut inside = targets.filter(|target| target.starts_with(lab.state.path()));
        if let Some(target) = inside.next()
            && pid != std::process::id()
        {
            return Some(format!("{pid} holds {}", target.display()));
        }
    }
    None
}

pub fn assert_no_guest_daemon_of(lab: &Lab) {
    assert_eq!(guest_daemon_of(lab), None);
}
