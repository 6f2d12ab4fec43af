//! Recording the real ledger: a child process with a shim in front of the C library.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use super::trace::Image;
use super::trace::Op;

/// Names the folder to the child that is recorded.
pub const ROOT: &str = "CRASH_LAB_ROOT";
/// The file below it to which the child writes what writers were answered.
pub const ANSWERS: &str = "answers";

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crash_lab/shim.c");

/// Memory-backed where there is such a folder: the lab writes gigabytes, and none need to last.
pub fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory)
            .or_else(|_| tempfile::tempdir())
            .unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// Compiles the shim. `None` where there is no C compiler; the caller says so.
pub fn compile(dir: &Path) -> Option<PathBuf> {
    let library = dir.join("shim.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(compiler)
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .args([SOURCE, "-lpthread"])
        .status();
    match compiled {
        Ok(status) => {
            assert!(status.success(), "the shim does not compile");
            Some(library)
        }
        Err(_) => None,
    }
}

/// Runs the named test of this program as a child below the shim and returns what it did to the
/// files under `root`. `fail_sync` is the number of the first sync that fails.
pub fn record(shim: &Path, test: &str, root: &Path, fail_sync: Option<u64>) -> Vec<Op> {
    let trace = root.with_extension("trace");
    fs::create_dir_all(root).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", test, "--nocapture"])
        .env("LD_PRELOAD", shim)
        .env(ROOT, root)
        .env("CRASH_LAB_TRACE", &trace);
    if let Some(number) = fail_sync {
        child.env("CRASH_LAB_FAIL_SYNC", number.to_string());
    }
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    parse(&fs::read(&trace).unwrap(), root)
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take(8).try_into().unwrap())
    }

    fn u32(&mut self) -> usize {
        u32::from_ne_bytes(self.take(4).try_into().unwrap()) as usize
    }
}

fn parse(trace: &[u8], root: &Path) -> Vec<Op> {
    let mut fields = Fields(trace);
    let mut ops = Vec::new();
    let mut answers = None;
    while !fields.0.is_empty() {
        let kind = fields.take(1)[0];
        let (inode, offset) = (fields.u64(), fields.u64());
        let (a_bytes, b_bytes) = (fields.u32(), fields.u32());
        let (a, b) = (fields.take(a_bytes), fields.take(b_bytes));
        let relative = |bytes: &[u8]| {
            let path = Path::new(std::str::from_utf8(bytes).unwrap());
            path.strip_prefix(root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        if kind == 2 && relative(a) == ANSWERS {
            answers = Some(inode);
        }
        let op = match kind {
            _ if kind == 3 && Some(inode) == answers => Op::Answer {
                text: String::from_utf8(a.to_vec()).unwrap(),
            },
            _ if kind == 2 && Some(inode) == answers => continue,
            1 => Op::MakeDir { path: relative(a) },
            2 => Op::Create {
                path: relative(a),
                inode,
            },
            3 => Op::Write {
                inode,
                offset,
                bytes: a.to_vec(),
            },
            4 => Op::Truncate {
                inode,
                bytes: offset,
            },
            5 => Op::Rename {
                from: relative(a),
                to: relative(b),
            },
            6 => Op::Link {
                from: relative(a),
                to: relative(b),
            },
            7 => Op::Remove { path: relative(a) },
            8 => Op::SyncFile { inode },
            9 => Op::SyncDir { path: relative(a) },
            other => panic!("the shim wrote an operation of kind {other}"),
        };
        ops.push(op);
    }
    with_fresh_inodes(ops)
}

/// The file system gives the number of a removed file to the next one: tells the two apart.
fn with_fresh_inodes(ops: Vec<Op>) -> Vec<Op> {
    let mut current: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0;
    let renumber = |mut op: Op| {
        match &mut op {
            Op::Create { inode, .. } => {
                next += 1;
                current.insert(*inode, next);
                *inode = next;
            }
            Op::Write { inode, .. } | Op::Truncate { inode, .. } | Op::SyncFile { inode } => {
                *inode = current.get(inode).copied().unwrap_or(0);
            }
            _ => {}
        }
        op
    };
    ops.into_iter().map(renumber).collect()
}

/// Lays an image down in a folder. Zeros become holes.
pub fn write_image(image: &Image, root: &Path) {
    const PIECE: usize = 4096;
    for dir in &image.dirs {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for (path, bytes) in &image.files {
        let file = fs::File::create(root.join(path)).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (at, piece) in bytes.chunks(PIECE).enumerate() {
            if piece.iter().any(|byte| *byte != 0) {
                file.write_all_at(piece, (at * PIECE) as u64).unwrap();
            }
        }
    }
}
