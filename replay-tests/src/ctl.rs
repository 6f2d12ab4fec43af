//! fluxctl, run as a person or a script runs it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::binaries::Program;
use crate::binaries::program;

/// fluxctl beside one state folder.
#[derive(Clone, Debug)]
pub struct Ctl {
    state: PathBuf,
}

/// How it ended.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
}

impl Ran {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Standard output as JSON, of a run that must have ended with this code.
    ///
    /// # Panics
    ///
    /// When it has not.
    #[must_use]
    pub fn json(&self, code: i32) -> Value {
        assert_eq!(self.code, code, "{}{}", self.text(), self.errors());
        serde_json::from_slice(&self.stdout).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }
}

impl Ctl {
    /// fluxctl that finds the daemon of this state folder by itself.
    #[must_use]
    pub fn new(state: PathBuf) -> Self {
        Self { state }
    }

    /// The command, not started yet, in an environment that says nothing but where the state is.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(program(Program::Ctl));
        command
            .env_clear()
            .env("FLUXVM_STATE_DIR", &self.state)
            .env("HOME", "/nonexistent");
        command.env("PATH", "/usr/bin:/bin").args(words);
        command
    }

    /// Runs it to its end.
    ///
    /// # Panics
    ///
    /// When it cannot be run, or a signal ended it.
    #[must_use]
    pub fn run(&self, words: &[&str]) -> Ran {
        let output = self.command(words).output().expect("fluxctl runs");
        let code = output.status.code().expect("fluxctl ends by itself");
        Ran {
            code,
            stdout: output.stdout,
            stderr: output.stderr,
        }
    }
}
