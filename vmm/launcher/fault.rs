//! A failure that names its stage, and the crash tests' way to cause one.

use std::ffi::OsString;

use fluxvm_vmm::CreateStage;
use fluxvm_vmm::procbox::wire::{FAULT_VARIABLE, LaunchFailure};
use nix::errno::Errno;

/// What failed, where, with which answer of the system.
#[derive(Debug)]
pub(crate) struct Failure {
    stage: CreateStage,
    what: String,
    errno: Errno,
}

impl Failure {
    pub(crate) fn new(stage: CreateStage, what: impl Into<String>, errno: Errno) -> Self {
        Self {
            stage,
            what: what.into(),
            errno,
        }
    }
}

impl From<Failure> for LaunchFailure {
    fn from(failure: Failure) -> Self {
        Self {
            stage: failure.stage,
            what: failure.what,
            errno: failure.errno as i32,
        }
    }
}

impl From<LaunchFailure> for Failure {
    fn from(failure: LaunchFailure) -> Self {
        let errno = Errno::from_raw(failure.errno);
        Self {
            stage: failure.stage,
            what: failure.what,
            errno,
        }
    }
}

/// Gives the system's answer its place.
pub(crate) trait Context<T> {
    fn stage(self, stage: CreateStage, what: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T> Context<T> for Result<T, Errno> {
    fn stage(self, stage: CreateStage, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(stage, what(), errno))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn stage(self, stage: CreateStage, what: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Failure::new(stage, what(), errno)
        })
    }
}

/// Whether a crash test asked for a host that lacks what this stage needs (`lack:<stage>`).
pub(crate) fn lacks(stage: CreateStage) -> bool {
    asked_for("lack", stage)
}

fn asked_for(kind: &str, stage: CreateStage) -> bool {
    let Some(wish) = std::env::var_os(FAULT_VARIABLE) else {
        return false;
    };
    let name = serde_json::to_string(&stage).unwrap_or_default();
    wish == OsString::from(format!("{kind}:{}", name.trim_matches('"')))
}

/// Stands at the beginning of each stage: does nothing unless a crash test asked to stop there.
pub(crate) fn at(stage: CreateStage) -> Result<(), Failure> {
    if asked_for("die", stage) {
        std::process::abort();
    }
    if asked_for("fail", stage) {
        return Err(Failure::new(stage, "asked to fail here", Errno::EIO));
    }
    if asked_for("full", stage) {
        return Err(Failure::new(
            stage,
            "asked to find no space here",
            Errno::ENOSPC,
        ));
    }
    Ok(())
}
