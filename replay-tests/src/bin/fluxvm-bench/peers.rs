//! The least that anybody could do: what figures are compared with.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;

use crate::figures::Figure;

/// Appending one event's worth of bytes to a file and waiting until they are durable.
pub(crate) fn fdatasync(count: usize) -> Figure {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut file = File::create(folder.path().join("file")).expect("a file");
    let bytes = [0x5a_u8; 1_024];
    let samples = (0..count).map(|_| {
        let began = Instant::now();
        file.write_all(&bytes).expect("space for a file");
        file.sync_data().expect("a disk that takes it");
        began.elapsed()
    });
    Figure::latency("write 1 KiB and fdatasync", samples.collect())
}

/// Starting a shell on the host, without any sandbox.
pub(crate) fn shell(count: usize) -> Figure {
    let samples = (0..count).map(|_| {
        let began = Instant::now();
        let status = Command::new("/bin/sh")
            .args(["-c", "true"])
            .stdin(Stdio::null())
            .status();
        assert!(status.expect("a shell").success());
        began.elapsed()
    });
    Figure::latency("sh -c true on the host", samples.collect())
}

/// Starting the smallest program on the host and waiting for its end.
pub(crate) fn program(count: usize) -> Figure {
    let samples = (0..count).map(|_| {
        let began = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status();
        assert!(status.expect("a program").success());
        began.elapsed()
    });
    Figure::latency("true on the host", samples.collect())
}

/// A shell in a bare sandbox of bubblewrap, where it is installed and works.
pub(crate) fn bubblewrap(count: usize) -> Option<Figure> {
    let run = || {
        Command::new("bwrap")
            .args([
                "--unshare-all",
                "--ro-bind",
                "/",
                "/",
                "--proc",
                "/proc",
                "--dev",
                "/dev",
            ])
            .args(["/bin/sh", "-c", "true"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !run() {
        eprintln!("  bubblewrap is not installed or does not work here: no peer for create");
        return None;
    }
    let samples = (0..count).map(|_| {
        let began = Instant::now();
        assert!(run(), "it ran a moment ago");
        began.elapsed()
    });
    Some(Figure::latency("bwrap sh -c true", samples.collect()))
}
