//! What the sandboxes of one state folder have on the host: processes, mounts, control groups,
//! network namespaces, sockets and files.
//!
//! A process belongs to them when it shares the process namespace of a sandbox's first process,
//! when its control group is a sandbox's, or when it is a launcher that was told the state folder.
//! Its mount namespace is the sandbox's own, so that all mounts there count; of the host's those
//! that name the state folder.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Everything that exists on the host for the sandboxes of a state folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Processes and their command lines.
    pub processes: BTreeMap<i32, String>,
    /// Mounts, in whatever mount namespace they are: the namespace and the line.
    pub mounts: BTreeSet<String>,
    /// Folders of control groups.
    pub cgroups: BTreeSet<PathBuf>,
    /// Network namespaces.
    pub network_namespaces: BTreeSet<PathBuf>,
    /// Unix sockets.
    pub sockets: BTreeSet<String>,
    /// Files and folders, down to where a sandbox's own begin.
    pub files: BTreeSet<PathBuf>,
}

impl Census {
    /// Looks at the host. `daemon` is not counted: what it holds is asked for by [`fd_count`].
    #[must_use]
    pub fn take(state: &Path, daemon: Option<u32>) -> Self {
        let mut census = Self::default();
        let folder = state.join("sandboxes");
        let sandboxes = names_in(&folder);
        for folder in [folder.clone(), state.join("secrets/agents")] {
            census.files.extend(tree(&folder, 2));
        }
        for sandbox in &sandboxes {
            census.cgroups.extend(cgroups_of(sandbox));
        }
        let state = state.display().to_string();
        let first = sandboxes
            .iter()
            .filter_map(|sandbox| first_process(&folder.join(sandbox)));
        let namespaces: BTreeSet<PathBuf> = first.filter_map(|pid| namespace(pid, "pid")).collect();
        for pid in pids().filter(|pid| Some(pid.cast_unsigned()) != daemon) {
            let inside = namespace(pid, "pid").is_some_and(|it| namespaces.contains(&it));
            let line = command_line(pid);
            let program = line.split(' ').next().unwrap_or_default();
            let launcher = program.ends_with("fluxvm-procbox") && line.contains(&state);
            if inside || launcher || names_one(&read(pid, "cgroup"), &sandboxes) {
                census.add(pid);
            }
        }
        let host = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        // A test may have mounted the state folder itself.
        let inside = |line: &&str| line.contains(&format!("{state}/"));
        let ours = host.lines().filter(inside);
        census
            .mounts
            .extend(ours.map(|line| format!("host: {line}")));
        census
    }

    /// What of an earlier census is still there, and what these sandboxes still have although their
    /// folders are gone.
    #[must_use]
    pub fn still_there(&self, sandboxes: &[String]) -> Self {
        let mut left = Self::default();
        for (pid, what) in &self.processes {
            if describe(*pid).as_ref() == Some(what) {
                left.processes.insert(*pid, what.clone());
            }
        }
        for sandbox in sandboxes {
            left.cgroups.extend(cgroups_of(sandbox));
        }
        left
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Ends and removes what a test that failed has left, as far as that can be done from outside.
    pub fn sweep(&self) {
        for pid in self.processes.keys() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        for folder in &self.cgroups {
            // A group is busy until the kernel has reaped its last process.
            for _ in 0..200 {
                if fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    fn add(&mut self, pid: i32) {
        let Some(what) = describe(pid) else { return };
        self.processes.insert(pid, what);
        self.network_namespaces.extend(namespace(pid, "net"));
        if namespace(pid, "mnt") != namespace(std::process::id().cast_signed(), "mnt") {
            let mounts = read(pid, "mountinfo");
            self.mounts
                .extend(mounts.lines().map(|line| format!("sandbox: {line}")));
        }
        let sockets = read(pid, "net/unix");
        let path = |line: &str| line.split_whitespace().nth(7).map(str::to_owned);
        self.sockets
            .extend(sockets.lines().skip(1).filter_map(path));
    }
}

/// The first process of a sandbox, as its record has it.
pub(crate) fn first_process(folder: &Path) -> Option<i32> {
    let record = fs::read(folder.join("sandbox.json")).ok()?;
    let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
    i32::try_from(record["process"]["pid"].as_i64()?).ok()
}

fn namespace(pid: i32, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// A process, told from a later one of the same number: when it began, and its command line. None
/// when it has ended, though its parent may not have noticed.
fn describe(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A command may hold spaces and parentheses; the fields behind it are counted from its end.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let (status, began) = (fields.first()?, fields.get(19)?);
    (*status != "Z").then(|| format!("{began} {}", command_line(pid)))
}

/// How many files a process has open.
///
/// # Panics
///
/// When it has ended.
#[must_use]
pub fn fd_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("a running process")
        .count()
}

/// A number of `/proc/<pid>/status`, in KiB.
///
/// # Panics
///
/// When there is no such number.
#[must_use]
pub fn status_kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .expect("a known name");
    line.trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

/// The processes of the whole host that are exactly this command line.
#[must_use]
pub fn processes_of(line: &str) -> Vec<i32> {
    pids().filter(|pid| command_line(*pid) == line).collect()
}

/// The processes of the whole host that have this among their arguments.
#[must_use]
pub fn processes_with(argument: &str) -> Vec<i32> {
    pids()
        .filter(|pid| command_line(*pid).split(' ').any(|word| word == argument))
        .collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A file of a process, empty when it has ended meanwhile or is another user's.
fn read(pid: i32, file: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn command_line(pid: i32) -> String {
    read(pid, "cmdline")
        .replace('\0', " ")
        .trim_end()
        .to_owned()
}

fn names_one(text: &str, names: &[String]) -> bool {
    names.iter().any(|name| text.contains(name.as_str()))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    folders
        .filter_map(name)
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// What lies below a folder, so many levels deep. What is hidden is the backend's own cache.
fn tree(folder: &Path, levels: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        found.push(path.clone());
        if levels > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&path, levels - 1));
        }
    }
    found
}

/// The control groups of a sandbox: folders of its name, wherever a hierarchy is mounted.
fn cgroups_of(sandbox: &str) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (point, kind) = (fields.nth(1)?, fields.next()?);
        kind.starts_with("cgroup").then(|| PathBuf::from(point))
    });
    points.flat_map(|point| below(&point, sandbox, 6)).collect()
}

fn below(folder: &Path, name: &str, levels: u32) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_string_lossy() == name {
            found.push(entry.path());
        } else if levels > 1 {
            found.extend(below(&entry.path(), name, levels - 1));
        }
    }
    found
}
