//! Having a whole sandbox stand still for a moment, so that its files are captured as of one
//! instant.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a sandbox may take to stand still. It takes a fraction of a millisecond; a process that
/// waits for a slow disk is waited for.
const FREEZE_WAIT_MAX: Duration = Duration::from_secs(5);
const LOOK_PAUSE: Duration = Duration::from_micros(100);

/// The files of one kind of freezer.
struct Words {
    file: &'static str,
    freeze: &'static str,
    thaw: &'static str,
    /// Where it says that everything stands still, and how.
    state_file: &'static str,
    frozen: &'static str,
}

const KINDS: [Words; 2] = [
    Words {
        file: "cgroup.freeze",
        freeze: "1",
        thaw: "0",
        state_file: "cgroup.events",
        frozen: "frozen 1",
    },
    Words {
        file: "freezer.state",
        freeze: "FROZEN",
        thaw: "THAWED",
        state_file: "freezer.state",
        frozen: "FROZEN",
    },
];

fn freezer(groups: &[PathBuf]) -> Option<(&Path, &'static Words)> {
    groups.iter().find_map(|group| {
        let words = KINDS.iter().find(|words| group.join(words.file).exists())?;
        Some((group.as_path(), words))
    })
}

/// A sandbox that stands still until this is dropped.
pub(super) struct Frozen<'a> {
    group: &'a Path,
    words: &'static Words,
}

/// Has everything in these groups stand still. `None` where no group can do that.
pub(super) fn freeze(groups: &[PathBuf]) -> io::Result<Option<Frozen<'_>>> {
    let Some((group, words)) = freezer(groups) else {
        return Ok(None);
    };
    let frozen = Frozen { group, words };
    fs::write(group.join(words.file), words.freeze)?;
    let started = Instant::now();
    loop {
        let state = fs::read_to_string(group.join(words.state_file))?;
        if state.lines().any(|line| line == words.frozen) {
            return Ok(Some(frozen));
        }
        if started.elapsed() > FREEZE_WAIT_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Lets these groups run again, whoever stopped them. Harmless for those that run.
pub(super) fn thaw(groups: &[PathBuf]) -> io::Result<()> {
    match freezer(groups) {
        Some((group, words)) => fs::write(group.join(words.file), words.thaw),
        None => Ok(()),
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.group.join(self.words.file), self.words.thaw) {
            let group = self.group.display();
            tracing::error!(%error, %group, "a sandbox cannot be let run again");
        }
    }
}
