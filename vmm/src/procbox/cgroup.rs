//! Control groups: limits, counting, and finding what is left.
//!
//! Both versions are supported, side by side too, and found at start by looking at what is mounted
//! and trying to make a folder there. Each sandbox has one folder per hierarchy in use, named after
//! it below `fluxvm/`. Where nothing can be had (an ordinary user without delegation), nothing is
//! claimed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::spec::{SandboxId, SandboxSpec};

/// All sandboxes' groups lie below one of this name.
const PARENT: &str = "fluxvm";
/// One period of processor accounting, the kernel's own default.
const CPU_PERIOD_MICROS: u64 = 100_000;
/// How often an ended group that still counts as busy is tried, and the pause between: a second in
/// all.
const REMOVE_TRIES_MAX: u32 = 500;
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// What a group can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Controller {
    /// Memory limit and count.
    Memory,
    /// Processes limit.
    Pids,
    /// Processor time limit.
    Cpu,
    /// Standing still.
    Freezer,
}

const CONTROLLERS: [(Controller, &str); 4] = [
    (Controller::Memory, "memory"),
    (Controller::Pids, "pids"),
    (Controller::Cpu, "cpu"),
    (Controller::Freezer, "freezer"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// One mounted hierarchy in which groups can be made.
#[derive(Clone, Debug)]
struct Hierarchy {
    version: Version,
    /// The folder of all sandboxes.
    parent: PathBuf,
    controllers: BTreeSet<Controller>,
}

/// What this host offers.
#[derive(Clone, Debug, Default)]
pub(super) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

impl Cgroups {
    /// Looks at this process's groups and mounts.
    pub(super) fn detect() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        let mut hierarchies: Vec<Hierarchy> = Vec::new();
        let mut mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        // What is frozen in version 2 can still be killed.
        mounts.sort_by_key(|mount| mount.version == Version::One);
        for mount in mounts {
            let known = |c: &Controller| hierarchies.iter().any(|h| h.controllers.contains(c));
            let Some(mut hierarchy) = mount.usable(&own) else {
                continue;
            };
            hierarchy
                .controllers
                .retain(|controller| !known(controller));
            if !hierarchy.controllers.is_empty() {
                hierarchies.push(hierarchy);
            }
        }
        Self { hierarchies }
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        self.hierarchies
            .iter()
            .any(|hierarchy| hierarchy.controllers.contains(&controller))
    }

    /// The folders that a sandbox has, made or not.
    pub(super) fn folders(&self, id: &SandboxId) -> Vec<PathBuf> {
        self.hierarchies
            .iter()
            .map(|hierarchy| hierarchy.parent.join(id.to_string()))
            .collect()
    }

    /// Makes a sandbox's groups with its limits.
    pub(super) fn create(&self, spec: &SandboxSpec) -> Result<(), (String, io::Error)> {
        for hierarchy in &self.hierarchies {
            let folder = hierarchy.parent.join(spec.id.to_string());
            fs::create_dir(&folder).map_err(|e| (format!("making {}", folder.display()), e))?;
            for (file, value) in hierarchy.settings(spec) {
                let path = folder.join(file);
                match fs::write(&path, &value) {
                    Ok(()) => {}
                    // Swap limits exist only where swap is counted.
                    Err(error) if file.contains("swap") || file.contains("memsw") => {
                        tracing::debug!(%error, file, "no swap limit here");
                    }
                    Err(error) => {
                        return Err((format!("writing {value} to {}", path.display()), error));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Hierarchy {
    /// Which files to write what to.
    fn settings(&self, spec: &SandboxSpec) -> Vec<(&'static str, String)> {
        let mut settings = Vec::new();
        let has = |controller| self.controllers.contains(&controller);
        if let Some(bytes) = spec
            .memory_mb
            .map(|mb| mb.saturating_mul(1024 * 1024).to_string())
            && has(Controller::Memory)
        {
            match self.version {
                Version::One => {
                    settings.push(("memory.limit_in_bytes", bytes.clone()));
                    settings.push(("memory.memsw.limit_in_bytes", bytes));
                }
                Version::Two => {
                    settings.push(("memory.max", bytes));
                    settings.push(("memory.swap.max", "0".to_owned()));
                }
            }
        }
        if let Some(count) = spec.processes_max
            && has(Controller::Pids)
        {
            settings.push(("pids.max", count.to_string()));
        }
        if let Some(micros) = spec.cpus.map(|cpus| u64::from(cpus) * CPU_PERIOD_MICROS)
            && has(Controller::Cpu)
        {
            match self.version {
                Version::One => {
                    settings.push(("cpu.cfs_period_us", CPU_PERIOD_MICROS.to_string()));
                    settings.push(("cpu.cfs_quota_us", micros.to_string()));
                }
                Version::Two => settings.push(("cpu.max", format!("{micros} {CPU_PERIOD_MICROS}"))),
            }
        }
        settings
    }
}

/// One line of `mountinfo` that is about control groups.
struct Mount {
    version: Version,
    root: String,
    point: PathBuf,
    options: Vec<String>,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?.to_owned(), PathBuf::from(left.next()?));
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let options = right.nth(1)?.split(',').map(str::to_owned).collect();
        Some(Self {
            version,
            root,
            point,
            options,
        })
    }

    /// Makes the parent folder here, if this process may.
    fn usable(&self, own: &str) -> Option<Hierarchy> {
        let own = self.own_folder(own)?;
        match self.version {
            Version::One => {
                let named = CONTROLLERS
                    .iter()
                    .filter(|(_, n)| self.options.iter().any(|o| o == n));
                let controllers: BTreeSet<_> = named.map(|(controller, _)| *controller).collect();
                let parent = own.join(PARENT);
                (!controllers.is_empty() && writable_folder(&parent)).then_some(Hierarchy {
                    version: Version::One,
                    parent,
                    controllers,
                })
            }
            Version::Two => self.usable_unified(&own),
        }
    }

    /// Version 2: only a group without processes of its own hands controllers down, so the parent
    /// is made at the highest place that this process may change.
    fn usable_unified(&self, own: &Path) -> Option<Hierarchy> {
        let within = |path: &&Path| path.starts_with(&self.point);
        let may = |path: &&Path| {
            let flags = nix::unistd::AccessFlags::W_OK;
            nix::unistd::access(*path, flags).is_ok()
                && nix::unistd::access(&path.join("cgroup.procs"), flags).is_ok()
        };
        let top = own.ancestors().take_while(within).filter(may).last()?;
        let parent = top.join(PARENT);
        if !writable_folder(&parent) {
            return None;
        }
        let distributed = CONTROLLERS
            .iter()
            .filter(|(c, _)| *c != Controller::Freezer);
        for (_, name) in distributed {
            for folder in [top, parent.as_path()] {
                let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{name}"));
            }
        }
        let handed = fs::read_to_string(parent.join("cgroup.subtree_control")).ok()?;
        let handed: BTreeSet<&str> = handed.split_whitespace().collect();
        let named = CONTROLLERS.iter().filter(|(_, name)| handed.contains(name));
        let mut controllers: BTreeSet<_> = named.map(|(controller, _)| *controller).collect();
        // Each group of version 2 has it; it is not handed down.
        if parent.join("cgroup.freeze").exists() {
            controllers.insert(Controller::Freezer);
        }
        (!controllers.is_empty()).then_some(Hierarchy {
            version: Version::Two,
            parent,
            controllers,
        })
    }

    /// Where this process is in this hierarchy.
    fn own_folder(&self, own: &str) -> Option<PathBuf> {
        let mine = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            let matches = match self.version {
                Version::One => {
                    let mut names = names.split(',').filter(|name| !name.is_empty());
                    names.any(|name| self.options.iter().any(|option| option == name))
                }
                Version::Two => names.is_empty(),
            };
            matches.then(|| path.to_owned())
        })?;
        // Seen from a container, the mount shows only what lies below its root.
        let below = Path::new(&mine)
            .strip_prefix(&self.root)
            .unwrap_or(Path::new(""));
        Some(self.point.join(below))
    }
}

fn writable_folder(path: &Path) -> bool {
    let made = match fs::create_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
    };
    made && nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok()
}

/// Kills what is left in these groups, and removes them. Missing ones are no failure.
pub(super) fn remove(folders: &[PathBuf]) -> io::Result<()> {
    for folder in folders {
        for attempt in 0.. {
            match fs::remove_dir(folder) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                // Busy: something runs still, or the kernel has not noticed yet that it ended.
                Err(error) if attempt >= REMOVE_TRIES_MAX => return Err(error),
                Err(_) => {
                    kill_members(folder);
                    std::thread::sleep(REMOVE_PAUSE);
                }
            }
        }
    }
    Ok(())
}

fn kill_members(folder: &Path) {
    if fs::write(folder.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let members = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in members
        .lines()
        .filter_map(|line| line.parse::<i32>().ok())
        .filter(|pid| *pid > 0)
    {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// Memory charged to one of these groups.
pub(super) fn memory_bytes(folders: &[PathBuf]) -> Option<u64> {
    read_first(folders, &["memory.usage_in_bytes", "memory.current"])?
        .trim()
        .parse()
        .ok()
}

/// How often the kernel killed something in one of these groups.
pub(super) fn oom_kills(folders: &[PathBuf]) -> Option<u64> {
    let text = read_first(folders, &["memory.oom_control", "memory.events"])?;
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill "))?
        .trim()
        .parse()
        .ok()
}

/// Processes in one of these groups.
pub(super) fn processes(folders: &[PathBuf]) -> Option<u64> {
    let text = read_first(folders, &["cgroup.procs"])?;
    u64::try_from(text.lines().count()).ok()
}

fn read_first(folders: &[PathBuf], names: &[&str]) -> Option<String> {
    let paths = folders
        .iter()
        .flat_map(|folder| names.iter().map(|name| folder.join(name)));
    paths
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
    const V2: &str = "41 31 0:38 /pod /sys/fs/cgroup rw,relatime shared:1 - cgroup2 cgroup2 rw,x";

    #[test]
    fn the_own_folder_is_found_in_either_version() {
        let own = "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/pod/d\n";
        let place = |line| Mount::parse(line).unwrap().own_folder(own).unwrap();
        assert_eq!(place(V1), Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(place(V2), Path::new("/sys/fs/cgroup/d"));
        assert!(Mount::parse("22 27 0:21 / /proc rw - proc proc rw").is_none());
    }

    #[test]
    fn each_version_has_its_own_words_for_a_limit() {
        let mut spec = SandboxSpec::new(SandboxId::random());
        spec.memory_mb = Some(1);
        spec.cpus = Some(2);
        spec.processes_max = Some(9);
        let controllers: BTreeSet<_> = CONTROLLERS.iter().map(|(c, _)| *c).collect();
        let words = |version| {
            let parent = PathBuf::new();
            let hierarchy = Hierarchy {
                version,
                parent,
                controllers: controllers.clone(),
            };
            let settings = hierarchy.settings(&spec);
            settings
                .iter()
                .map(|(file, value)| format!("{file}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            words(Version::One),
            [
                "memory.limit_in_bytes=1048576",
                "memory.memsw.limit_in_bytes=1048576",
                "pids.max=9",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=200000"
            ]
        );
        assert_eq!(
            words(Version::Two),
            [
                "memory.max=1048576",
                "memory.swap.max=0",
                "pids.max=9",
                "cpu.max=200000 100000"
            ]
        );
    }
}
