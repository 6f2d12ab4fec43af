//! Payloads of budgets and of what is counted against them.

use serde::Deserialize;
use serde::Serialize;

/// What a session may use. A limit that is not there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetRecord {
    /// Commands through exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_execs: Option<u64>,
    /// Summed time of commands through exec, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_exec_seconds: Option<u64>,
    /// Jobs started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u64>,
    /// Jobs running at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrent_jobs: Option<u64>,
    /// Children made by forking.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_children: Option<u64>,
    /// Summed time of commands and jobs, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_compute_seconds: Option<u64>,
    /// Bytes kept of one output stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_bytes: Option<u64>,
    /// Bytes that the workspace may hold when a command starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_workspace_bytes: Option<u64>,
    /// Tokens that models read, as they are reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// Tokens that models wrote, as they are reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// What models cost, as it is reported, in millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_microusd: Option<u64>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_processes: Option<u64>,
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<u64>,
    /// What happens to what runs when the time runs out.
    #[serde(default, skip_serializing_if = "OnExhaust::is_stop")]
    pub on_exhaust: OnExhaust,
}

/// What happens to what runs when the time of a budget runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExhaust {
    /// Time is reserved when a command starts: what runs together never uses more than there is.
    #[default]
    Stop,
    /// Time is looked at when a command starts: what runs together may use more, and the next is refused.
    RefuseNext,
}

impl OnExhaust {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature that serde asks for"
    )]
    fn is_stop(&self) -> bool {
        *self == Self::Stop
    }
}

/// `usage.report`: what a model's client or gateway says that it used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReported {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens that it read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// What it cost, in millionths of a US dollar.
    pub cost_microusd: u64,
}
