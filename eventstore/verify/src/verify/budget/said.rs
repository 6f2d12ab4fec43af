//! The few fields of payloads that budgets are checked on. Whatever else a payload says is passed over,
//! so that events of later versions can be read.

use serde::Deserialize;

/// What a session may use. A limit that is not there is no limit.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Limits {
    pub(super) max_execs: Option<u64>,
    pub(super) max_exec_seconds: Option<u64>,
    pub(super) max_jobs: Option<u64>,
    pub(super) max_concurrent_jobs: Option<u64>,
    pub(super) max_children: Option<u64>,
    pub(super) max_compute_seconds: Option<u64>,
    pub(super) max_input_tokens: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) max_cost_microusd: Option<u64>,
    #[serde(default)]
    pub(super) on_exhaust: OnExhaust,
}

/// Whether time is reserved when a command starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OnExhaust {
    #[default]
    Stop,
    RefuseNext,
}

/// `session.create.started`.
#[derive(Deserialize)]
pub(super) struct Asked {
    pub(super) budget: Option<Limits>,
}

/// `session.create`. A fork says here what an intent says otherwise.
#[derive(Deserialize)]
pub(super) struct Created {
    pub(super) forked: Option<Forked>,
}

#[derive(Deserialize)]
pub(super) struct Forked {
    pub(super) asked: Asked,
    pub(super) origin: Origin,
}

#[derive(Deserialize)]
pub(super) struct Origin {
    /// The id of the session that it was forked from.
    pub(super) parent: String,
}

/// `exec.started` and `job.start`.
#[derive(Deserialize)]
pub(super) struct Started {
    pub(super) timeout_ms: Option<u64>,
}

/// `exec` and `job.exit`.
#[derive(Deserialize)]
pub(super) struct Ended {
    pub(super) duration_ms: u64,
}

/// `session.fork` and `session.branch_child`.
#[derive(Deserialize)]
pub(super) struct Children {
    pub(super) count: u64,
}

/// `usage.report`.
#[derive(Deserialize)]
pub(super) struct Reported {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cost_microusd: u64,
}
