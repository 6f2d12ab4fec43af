//! Where the built programs are.

use std::path::Path;
use std::path::PathBuf;

/// A program of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The daemon.
    Daemon,
    /// The daemon, built so that it ends at `FLUXVM_CRASH_AT`.
    CrashDaemon,
    /// The command line.
    Ctl,
    /// What builds a sandbox's namespaces.
    Launcher,
    /// The guest daemon.
    Agentd,
}

impl Program {
    /// Its place below the folder of the built programs.
    fn place(self) -> &'static str {
        match self {
            Self::Daemon => "fluxvmd",
            Self::CrashDaemon => "crash/fluxvmd",
            Self::Ctl => "fluxctl",
            Self::Launcher => "fluxvm-procbox",
            Self::Agentd => "guest/microvms-agentd",
        }
    }
}

/// Where a program is.
///
/// # Panics
///
/// When it was not built.
#[must_use]
pub fn program(program: Program) -> PathBuf {
    let path = folder().join(program.place());
    assert!(
        path.is_file(),
        "{} is missing: run `make build`",
        path.display()
    );
    path
}

/// Copies the programs that a daemon needs to where an ordinary user may run them, and answers with
/// the daemon's place there.
///
/// # Panics
///
/// When they cannot be copied.
#[must_use]
pub fn copy_programs(to: &Path) -> PathBuf {
    for which in [Program::Daemon, Program::Launcher, Program::Agentd] {
        let copy = to.join(which.place());
        std::fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder for programs");
        std::fs::copy(program(which), &copy).expect("a copy of a program");
    }
    to.join(Program::Daemon.place())
}

/// `FLUXVM_BIN_DIR`, or else the folder above the test program's own, which is where cargo builds.
fn folder() -> PathBuf {
    if let Some(named) = std::env::var_os("FLUXVM_BIN_DIR") {
        return PathBuf::from(named);
    }
    let test = std::env::current_exe().expect("the test's own path");
    test.ancestors()
        .nth(2)
        .expect("target/<profile>/deps/<test>")
        .to_owned()
}
