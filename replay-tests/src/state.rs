//! A throw-away state folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::census::Census;

/// A state folder that goes when the test ends, with everything that lives in it.
#[derive(Debug)]
pub struct State {
    folder: TempDir,
}

impl State {
    /// A fresh one. The daemon makes the folder itself.
    ///
    /// # Panics
    ///
    /// When there is no room for it.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "making a folder is no default")]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("fluxvm-test-").tempdir();
        Self {
            folder: folder.expect("a temporary folder"),
        }
    }

    /// One in which an ordinary user's daemon can work.
    ///
    /// # Panics
    ///
    /// When it cannot be given to that user.
    #[must_use]
    pub fn of_user(uid: u32) -> Self {
        let state = Self::new();
        fs::set_permissions(state.folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        fs::create_dir(state.root()).expect("a state folder");
        std::os::unix::fs::chown(state.root(), Some(uid), Some(uid)).expect("an owner");
        state
    }

    /// The state folder.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A place beside the state folder, for what a test needs.
    #[must_use]
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The daemon's log.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.beside("fluxvmd.log")
    }

    /// The end of the daemon's log, for a test that fails.
    #[must_use]
    pub fn last_words(&self) -> String {
        last_lines(&self.log())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let left = Census::take(&self.root(), None);
        left.sweep();
        let removed = fs::remove_dir_all(self.folder.path());
        if !std::thread::panicking() {
            assert!(left.is_empty(), "the test left this behind: {left:#?}");
            removed.expect("nothing holds the state folder");
        }
    }
}

/// The last lines of a log: enough to see what went wrong, not so many that they hide the test.
pub(crate) fn last_lines(path: &Path) -> String {
    const LINES: usize = 60;
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
