//! Keeping processes: what is asked of CRIU, and what is remembered for bringing them back.
//!
//! The tree is stopped by CRIU, the disk is captured while it stands still, and then it runs on: so
//! memory and disk are of one instant. CRIU is never asked to stop a control group, for that waits
//! for ever on a process that waits for its child to run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;

use super::engine::Engine;
use super::launch::Launch;
use super::members;
use super::process::Process;
use super::record::Record;
use super::wire::{CriuRequest, DEVICE_NODES, HOOK_CAPTURED, HOOK_STOPPED, Request};
use crate::error::SnapshotError;
use crate::layers::{MemoryRecord, digest_of_file, os};
use crate::snapshot::ContentDigest;

/// The folder of the images, in a snapshot's.
pub(super) const IMAGES: &str = "memory";
const LOG: &str = "dump.log";
/// How long a dump may take: a hundred gigabytes a second are not to be had, ten minutes are enough
/// for what fits into a host.
const DUMP_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often a tree is tried that changed while it was looked at.
const TRIES_MAX: u32 = 3;
/// What CRIU says of its failure is passed on up to this length.
const COMPLAINT_BYTES_MAX: usize = 400;

/// What CRIU must be told of the outside.
#[derive(Debug, Default)]
struct Outside {
    /// Mapped files, by what CRIU calls them, and where they lie inside.
    mapped: BTreeMap<String, String>,
    log: String,
    /// Commands that run under limits that only a fresh start gives: they are not kept.
    confined: BTreeSet<String>,
}

/// The programs that are alive beside the guest daemon.
pub(super) fn alive_beside(process: &Process, record: &Record) -> io::Result<Vec<u32>> {
    let mut pids = members::of(process.pid, &record.cgroups)?;
    pids.retain(|pid| *pid != process.pid);
    Ok(pids)
}

/// Dumps a tree into the images folder of `snapshot`, and calls `capture` while it stands still.
///
/// An inner error is CRIU's: nothing of the tree was harmed, and what `capture` made is worthless.
pub(super) fn dump<T>(
    engine: &Engine,
    process: &Process,
    record: &Record,
    snapshot: &Path,
    mut capture: impl FnMut() -> Result<T, SnapshotError>,
) -> Result<Result<(T, MemoryRecord), String>, SnapshotError> {
    let program = match &engine.criu {
        Ok(program) => program,
        Err(reason) => return Ok(Err(reason.clone())),
    };
    let mut complaint = String::new();
    for _ in 0..TRIES_MAX {
        let outside = look(process, record)
            .map_err(os(|| "looking at what the programs have open".to_owned()))?;
        // The kernel gives nobody his Landlock domain back. And one that is cut off from sockets
        // outside stops CRIU half-way, with the process's code already changed.
        if let Some(name) = outside.confined.first() {
            let reason = "what confines it would be lost with it, so it is not kept";
            return Ok(Err(format!("the command {name} is confined: {reason}")));
        }
        let images = snapshot.join(IMAGES);
        prepare(&images).map_err(os(|| format!("making {}", images.display())))?;
        let dumped = run(engine, program, process, &images, &outside, &mut capture)?;
        match dumped {
            Ok(captured) => {
                let record = remember(record, &images, outside, process.pid)?;
                return Ok(Ok((captured, record)));
            }
            Err(said) => complaint = said,
        }
        crate::layers::remove_tree(&images)
            .map_err(os(|| format!("removing {}", images.display())))?;
        // A program was started meanwhile: what it mapped was not named.
        if !complaint.contains("Can't lookup mount") || !process.alive() {
            break;
        }
    }
    Ok(Err(complaint))
}

fn prepare(images: &Path) -> io::Result<()> {
    fs::create_dir(images)?;
    // CRIU reads them as the sandbox's root, over an open folder. Those above let nobody in.
    fs::set_permissions(images, fs::Permissions::from_mode(0o755))?;
    for pipe in [HOOK_STOPPED, HOOK_CAPTURED] {
        nix::unistd::mkfifo(&images.join(pipe), Mode::S_IRUSR | Mode::S_IWUSR)?;
    }
    Ok(())
}

/// Finds what lies on mounts that the sandbox's own namespace does not have: mapped files of the
/// lower layers, which an overlay on an overlay shows under the inner one, and the log.
fn look(process: &Process, record: &Record) -> io::Result<Outside> {
    let mountinfo = fs::read_to_string(format!("/proc/{}/mountinfo", process.pid))?;
    let first = |line: &str| line.split(' ').next().and_then(|id| id.parse::<u64>().ok());
    let known: BTreeSet<u64> = mountinfo.lines().filter_map(first).collect();
    let mut outside = Outside::default();
    let fd = |number: i32| format!("/proc/{}/fd/{number}", process.pid);
    outside.log = key(Path::new(&fd(1)))?.1;
    for pid in members::of(process.pid, &record.cgroups)? {
        let folder = format!("/proc/{pid}/map_files");
        // One that ends meanwhile has nothing open any more.
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok((mount, key)) = key(&entry.path()) else {
                continue;
            };
            if known.contains(&mount) {
                continue;
            }
            if let Ok(path) = fs::read_link(entry.path()) {
                outside.mapped.insert(key, path.display().to_string());
            }
        }
        if pid != process.pid
            && let Some(name) = confined(pid)
        {
            outside.confined.insert(name);
        }
    }
    Ok(outside)
}

/// The mount that a file was opened on, and what CRIU calls the file.
fn key(path: &Path) -> io::Result<(u64, String)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_PATH).open(path)?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let mount = line.and_then(|text| text.trim().parse::<u64>().ok());
    let mount = mount.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let inode = file.metadata()?.ino();
    Ok((mount, format!("file[{mount:x}:{inode:x}]")))
}

/// The name of a process that gave up rights for good, as every confined one has.
fn confined(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    (field("NoNewPrivs:")? == "1").then(|| field("Name:"))?
}

fn arguments(process: &Process, images: &Path, outside: &Outside) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "dump",
        "--leave-running",
        "-v2",
        "--manage-cgroups=ignore",
        "--network-lock",
        "skip",
        "--file-locks",
        "--link-remap",
        "--ghost-limit",
        "64M",
        "--ext-unix-sk",
        "--tcp-established",
        "--force-irmap",
        "--irmap-scan-path",
        "/tmp",
        "--empty-ns",
        "net",
        "-o",
        LOG,
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.extend(["-t".to_owned(), process.pid.to_string()]);
    arguments.extend(["-D".to_owned(), images.display().to_string()]);
    let devices = DEVICE_NODES.map(|node| format!("mnt[/dev/{node}]:dev-{node}"));
    let files = outside.mapped.keys().chain([&outside.log]).cloned();
    for external in devices.into_iter().chain(files) {
        arguments.extend(["--external".to_owned(), external]);
    }
    arguments
}

/// One run. The outer error is the capture's or the system's, the inner one CRIU's.
fn run<T>(
    engine: &Engine,
    program: &Path,
    process: &Process,
    images: &Path,
    outside: &Outside,
    capture: &mut impl FnMut() -> Result<T, SnapshotError>,
) -> Result<Result<T, String>, SnapshotError> {
    let what = || "running CRIU".to_owned();
    let log = File::create(images.join("launcher.log")).map_err(os(what))?;
    let pipe = |name: &str, read: bool| {
        let mut options = OpenOptions::new();
        options.read(true).write(!read);
        options
            .custom_flags(libc::O_NONBLOCK)
            .open(images.join(name))
    };
    let mut stopped = pipe(HOOK_STOPPED, true).map_err(os(what))?;
    let mut answer = pipe(HOOK_CAPTURED, false).map_err(os(what))?;
    let request = Request::Criu(CriuRequest {
        program: program.to_owned(),
        arguments: arguments(process, images, outside),
        cache: engine.criu_cache(),
    });
    let launch = Launch::start_with_hooks(&engine.options.launcher, log, images);
    let failed = |error: crate::error::CreateError| SnapshotError::Os {
        what: error.to_string(),
        source: io::Error::other("the launcher"),
    };
    let mut launch = launch.map_err(failed)?;
    let none = File::open("/dev/null").map_err(os(what))?;
    launch.request(&request, &none).map_err(failed)?;
    let began = Instant::now();
    let mut captured = None;
    while began.elapsed() < DUMP_WAIT_MAX {
        if captured.is_none() && readable(&stopped).map_err(os(what))? {
            let mut byte = [0_u8; 1];
            if matches!(stopped.read(&mut byte), Ok(1)) {
                let done = capture();
                let word: &[u8] = if done.is_ok() { b"y" } else { b"n" };
                answer.write_all(word).map_err(os(what))?;
                captured = Some(done);
            }
        }
        if let Some(success) = launch.ended() {
            return match (success, captured) {
                (true, Some(captured)) => captured.map(Ok),
                (false, Some(Err(error))) => Err(error),
                _ => Ok(Err(complaint(&images.join(LOG)))),
            };
        }
    }
    Ok(Err("CRIU takes too long".to_owned()))
}

/// Waits a millisecond for something to read.
fn readable(pipe: &File) -> io::Result<bool> {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::from(1_u8)) {
        Ok(_) => {
            let events = fds.first().and_then(PollFd::revents);
            let told = events.is_some_and(|events| events.contains(PollFlags::POLLIN));
            if !told {
                std::thread::sleep(Duration::from_micros(500));
            }
            Ok(told)
        }
        Err(nix::errno::Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// What CRIU said of its failure.
fn complaint(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let errors = text
        .lines()
        .filter_map(|line| line.split_once("Error ").map(|(_, rest)| rest));
    let told: Vec<&str> = errors
        .filter(|line| !line.contains("RLIMIT_NOFILE"))
        .collect();
    let mut said = format!("CRIU refused: {}", told.join("; "));
    while said.len() > COMPLAINT_BYTES_MAX {
        said.pop();
    }
    said
}

/// Hashes the images, and writes down what they need.
fn remember(
    record: &Record,
    images: &Path,
    outside: Outside,
    pid: u32,
) -> Result<MemoryRecord, SnapshotError> {
    let what = || format!("reading {}", images.display());
    for pipe in [HOOK_STOPPED, HOOK_CAPTURED, "launcher.log"] {
        let _ = fs::remove_file(images.join(pipe));
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(images).map_err(os(what))? {
        let entry = entry.map_err(os(what))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == LOG {
            continue;
        }
        let file = File::open(entry.path()).map_err(os(what))?;
        let (bytes, digest) = digest_of_file(&file).map_err(os(what))?;
        found.push((name, bytes, digest));
    }
    found.sort();
    Ok(MemoryRecord {
        skeleton: record.skeleton.clone(),
        boot_id: record.boot_id.clone(),
        images: found,
        mapped: outside.mapped.into_iter().collect(),
        log: outside.log,
        confined: outside.confined.into_iter().collect(),
        pid,
    })
}

/// The bytes of all images, and their digest.
pub(super) fn total(record: &MemoryRecord) -> (u64, ContentDigest) {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"fluxvm memory 1\n");
    let mut all = 0_u64;
    for (name, bytes, digest) in &record.images {
        hasher.update(&u64::try_from(name.len()).unwrap_or(0).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&bytes.to_le_bytes());
        hasher.update(digest.as_bytes());
        all = all.saturating_add(*bytes);
    }
    (all, ContentDigest::new(*hasher.finalize().as_bytes()))
}

/// Inode and time of change of each image when its content was last checked.
pub(super) type Checked = Vec<(u64, i64, i64)>;

/// Checks that the images are what was kept; content only of those that changed since `before`. An
/// error is a sentence.
pub(super) fn verify(
    images: &Path,
    record: &MemoryRecord,
    before: Option<&Checked>,
) -> Result<Checked, String> {
    let mut checked = Checked::new();
    for (number, (name, bytes, digest)) in record.images.iter().enumerate() {
        let unreadable = |error| format!("the memory image {name} cannot be read: {error}");
        let file = File::open(images.join(name)).map_err(unreadable)?;
        let facts = file.metadata().map_err(unreadable)?;
        let now = (facts.ino(), facts.ctime(), facts.ctime_nsec());
        let known = before.and_then(|before| before.get(number)) == Some(&now);
        if !known && digest_of_file(&file).map_err(unreadable)? != (*bytes, *digest) {
            return Err(format!("the memory image {name} has other content"));
        }
        checked.push(now);
    }
    Ok(checked)
}

/// How long the tree stood still, from CRIU's own count.
pub(super) fn pause(images: &Path) -> Option<Duration> {
    /// Two magic numbers and the length of the message.
    const HEAD_BYTES: usize = 12;
    let bytes = fs::read(images.join("stats-dump")).ok()?;
    // Field 1 is the message about the dump; in it field 1 is the time that stopping took, and field
    // 2 the time that everything stood still, in microseconds.
    let (mut rest, outer) = field(bytes.get(HEAD_BYTES..)?)?;
    if outer.0 != 1 {
        return None;
    }
    let mut micros = 0_u64;
    while let Some((after, (number, value))) = field(rest) {
        rest = after;
        if number == 1 || number == 2 {
            micros = micros.saturating_add(value);
        }
    }
    (micros > 0).then(|| Duration::from_micros(micros))
}

/// The next field of a message: its number and value. Of one that holds bytes, the value is their
/// number, and they come next.
fn field(bytes: &[u8]) -> Option<(&[u8], (u64, u64))> {
    let (rest, key) = varint(bytes)?;
    let (rest, value) = varint(rest)?;
    matches!(key & 7, 0 | 2).then_some((rest, (key >> 3, value)))
}

fn varint(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * at).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((bytes.get(at + 1..)?, value));
        }
    }
    None
}

impl Engine {
    /// Where CRIU's knowledge of this kernel is kept while the machine is up.
    pub(super) fn criu_cache(&self) -> PathBuf {
        self.options.snapshots_dir.join(".criu-kernel")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_read_from_the_statistics() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = vec![0_u8; 12];
        // dump { freezing_time: 300, frozen_time: 70_000, memdump_time: 5 }
        bytes.extend([0x0a, 9, 0x08, 0xac, 0x02, 0x10, 0xf0, 0xa2, 0x04, 0x18, 5]);
        fs::write(dir.path().join("stats-dump"), &bytes).unwrap();
        assert_eq!(pause(dir.path()), Some(Duration::from_micros(70_300)));
        fs::write(dir.path().join("stats-dump"), &bytes[..13]).unwrap();
        assert_eq!(pause(dir.path()), None);
    }
}
