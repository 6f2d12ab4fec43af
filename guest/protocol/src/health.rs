//! The body of the health route. Fields that an older daemon omits have honest defaults.

use serde::Deserialize;
use serde::Serialize;

/// Liveness, bootstrap state and activity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// The daemon's version.
    pub version: String,
    /// Whether a token is installed.
    pub bootstrapped: bool,
    /// The file system of the daemon's working directory.
    #[serde(default)]
    pub disk: Option<DiskHealth>,
    /// Whether a step of identity repair failed.
    #[serde(default)]
    pub identity_degraded: bool,
    /// Whether identity repair ran in this guest.
    #[serde(default)]
    pub identity_repaired: bool,
    /// What each step of the repair did.
    #[serde(default)]
    pub identity_steps: Vec<IdentityStep>,
    /// Whether some exec has no result yet.
    #[serde(default)]
    pub busy: bool,
    /// Registered execs, in any phase.
    #[serde(default)]
    pub execs: u64,
    /// The first hook requests, oldest first.
    #[serde(default)]
    pub hooks: Vec<HookRecord>,
    /// Hook requests after those.
    #[serde(default)]
    pub hooks_dropped: u64,
    /// Variables in the snapshot of the daemon's startup environment.
    #[serde(default)]
    pub image_env_keys: Option<u64>,
}

/// Room on the file system of the daemon's working directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskHealth {
    /// Bytes available to an unprivileged writer.
    pub available_bytes: u64,
    /// Bytes that writes must leave free.
    pub reserve_bytes: u64,
    /// Whether fewer than that are left.
    pub under_pressure: bool,
}

/// A hook request that the daemon saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HookRecord {
    /// The hook's name.
    pub hook: String,
    /// Whole seconds since the epoch on the daemon's clock.
    pub fired_at: u64,
    /// What the workload's handler did; absent when the image has none for this hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<HandlerOutcome>,
}

/// How a workload's hook handler ended. It never changes the hook's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandlerOutcome {
    /// Its exit code, unless a signal ended it or it never ran.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether it was stopped at the end of its time.
    #[serde(default)]
    pub timed_out: bool,
    /// From its start to its end.
    pub duration_ms: u64,
    /// Why it could not run at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One step of identity repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityStep {
    /// The step's name.
    pub name: String,
    /// What it did.
    pub outcome: IdentityStepOutcome,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a step of identity repair did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdentityStepOutcome {
    /// It did its work.
    Repaired,
    /// There was nothing to do.
    NotApplicable,
    /// It could not do its work.
    Failed,
}
