//! Bodies of requests.
//!
//! A `null` is the same as leaving an optional field out: clients in languages without optional fields
//! send it.

use chrono::DateTime;
use chrono::Utc;
use serde::Deserialize;
use uuid::Uuid;

use crate::number::Milliseconds;
use crate::number::WholeSeconds;
use crate::object;
use crate::object::Object;
use crate::policy::Budget;
use crate::policy::Policy;
use crate::time;

/// `POST /v1/agents/sessions`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSessionRequest {
    /// A free label for who works in the session.
    pub agent: String,
    /// Where the agent's files are.
    #[serde(default, deserialize_with = "object::optional")]
    pub workspace: Option<WorkspaceRequest>,
    /// The machine.
    #[serde(default, deserialize_with = "object::optional")]
    pub runtime: Option<RuntimeRequest>,
    /// What is allowed.
    #[serde(default, deserialize_with = "object::optional")]
    pub policy: Option<Policy>,
    /// How much is allowed.
    #[serde(default, deserialize_with = "object::optional")]
    pub budget: Option<Budget>,
    /// When the session ends by itself.
    #[serde(default)]
    pub ttl_seconds: Option<WholeSeconds>,
    /// Whether outputs are kept.
    #[serde(default)]
    pub record: Option<RecordRequest>,
}

/// `workspace`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceRequest {
    /// A repository to clone into it.
    #[serde(default)]
    pub git: Option<String>,
    /// Where it lies in the sandbox.
    #[serde(default)]
    pub path: Option<String>,
    /// How it is made. Which ways there are is a rule.
    #[serde(default)]
    pub mode: Option<String>,
    /// What an overlay lies over.
    #[serde(default)]
    pub lower: Option<String>,
    /// Whether a workspace that cannot be made ready fails the request.
    #[serde(default)]
    pub require_ready: Option<bool>,
}

/// `runtime`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeRequest {
    /// A named image.
    #[serde(default)]
    pub image: Option<String>,
    /// CPUs.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Memory, in MiB.
    #[serde(default)]
    pub memory_mb: Option<u64>,
    /// Whether the host's model server can be reached.
    #[serde(default)]
    pub host_gpu: Option<bool>,
    /// Volumes to attach.
    #[serde(default)]
    pub volumes: Option<Vec<Object<VolumeRequest>>>,
}

/// One of `runtime.volumes`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    /// The volume.
    pub name: String,
    /// Where it is attached.
    pub path: String,
}

/// `record`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordRequest {
    /// Outputs are kept.
    Full,
    /// Only their lengths and digests are kept.
    Digest,
}

/// `POST …/exec`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// A line for the shell.
    pub command: String,
    /// When the command is ended.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
    /// The approval that this command was given.
    #[serde(default)]
    pub approval_id: Option<String>,
    /// How long to wait for an approval.
    #[serde(default)]
    pub approval_wait_seconds: Option<u64>,
    /// What it reads, as text. Without it and its twin it reads nothing.
    #[serde(default)]
    pub stdin: Option<String>,
    /// What it reads, as bytes.
    #[serde(default)]
    pub stdin_base64: Option<String>,
}

/// `POST …/jobs`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartJobRequest {
    /// A line for the shell.
    pub command: String,
    /// Its standard input can be written to.
    #[serde(default)]
    pub stdin: Option<bool>,
    /// How long nobody may be writing to its standard input before that counts as broken off, and the job
    /// is ended; for ever where this is left out.
    #[serde(default)]
    pub stdin_lost_seconds: Option<Milliseconds>,
    /// Bytes of each output stream that are kept.
    #[serde(default)]
    pub max_output_bytes: Option<u64>,
    /// When it is ended; never by itself where this is left out.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
    /// The approval that this job was given.
    #[serde(default)]
    pub approval_id: Option<String>,
    /// How long to wait for an approval.
    #[serde(default)]
    pub approval_wait_seconds: Option<u64>,
}

/// `POST …/jobs/{job}/stdin`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobStdinRequest {
    /// Text to write.
    #[serde(default)]
    pub text: Option<String>,
    /// Bytes to write.
    #[serde(default)]
    pub data_base64: Option<String>,
    /// How many bytes were written before them: what of them was taken before is not written again.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Whether its standard input is closed after them.
    #[serde(default)]
    pub close: Option<bool>,
}

/// `POST /v1/ledger/redact`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedactRequest {
    /// The event, by its ledger number.
    pub seq: u64,
    /// Why.
    pub reason: String,
}

/// `POST /v1/ledger/shred`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShredRequest {
    /// The session.
    pub session: Uuid,
    /// Why.
    pub reason: String,
}

/// `POST /v1/ledger/retention`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionRequest {
    /// The size of a signed checkpoint.
    pub before: u64,
    /// Why.
    pub reason: String,
}

/// `POST /v1/ledger/holds`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The session that it covers; left out, the whole ledger.
    #[serde(default)]
    pub session: Option<Uuid>,
    /// Why.
    pub reason: String,
}

/// `POST …/replay`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The session in which the commands run again.
    #[serde(default)]
    pub target: Option<Uuid>,
    /// Only say what would be run.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// Only commands after this time.
    #[serde(default, deserialize_with = "time::deserialize_option")]
    pub since: Option<DateTime<Utc>>,
    /// Only commands until this time.
    #[serde(default, deserialize_with = "time::deserialize_option")]
    pub until: Option<DateTime<Utc>>,
    /// Only what was done since this checkpoint; left without a target, in a child that starts from it.
    #[serde(default)]
    pub checkpoint: Option<String>,
    /// Only what was recorded from this event on.
    #[serde(default)]
    pub from: Option<u64>,
    /// Only what was recorded up to this event, itself included.
    #[serde(default)]
    pub to: Option<u64>,
    /// Whether the first command that fails ends the replay.
    #[serde(default)]
    pub stop_on_failure: Option<bool>,
    /// When each command is ended.
    #[serde(default)]
    pub timeout_seconds: Option<Milliseconds>,
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use expect_test::Expect;
    use expect_test::expect;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::parse;

    fn check<T: DeserializeOwned + Debug>(bodies: &[&str], expected: Expect) {
        let mut lines = String::new();
        for body in bodies {
            let line = match parse::<T>(body.as_bytes()) {
                Ok(_) => "ok".to_owned(),
                Err(error) => {
                    format!("{} {}: {error}", error.code(), error.field().unwrap_or("-"))
                }
            };
            lines.push_str(&format!("{body}\n    {line}\n"));
        }
        expected.assert_eq(&lines);
    }

    #[test]
    fn every_field_of_the_contract_is_known() {
        let full = r#"{"agent":"codex","workspace":{"git":"https://h/r","path":"/w","mode":"overlay",
            "lower":"/srv","require_ready":true},"runtime":{"image":"micro","cpus":2,"memory_mb":512,
            "host_gpu":false,"volumes":[{"name":"d","path":"/mnt/d"}]},"policy":{"preset":"open",
            "network":{"default":"deny","allow":["example.org",{"host":"github.com","methods":["GET"],
            "paths":["/o/*"]}],"enforcement":"best-effort"},"process":{"allow":["git *"],"deny":[],
            "ask":["a",{"match":"b","approvers":2}],"enforce":"exec",
            "enforcement":"best-effort"},"filesystem":{"read":["/opt/**"],"write":[],
            "enforcement":"strict"}},"budget":{"max_execs":1,"max_exec_seconds":1,"max_jobs":1,
            "max_concurrent_jobs":1,"max_children":1,"max_compute_seconds":1,"max_output_bytes":1,
            "max_workspace_bytes":1,"max_input_tokens":1,"max_output_tokens":1,"max_cost_usd":0.5,"max_processes":1,
            "max_memory":1,
            "on_exhaust":"refuse-next"},"ttl_seconds":60,"record":"digest"}"#;
        let request = parse::<CreateSessionRequest>(full.as_bytes()).expect("all known");
        assert_eq!(request.budget.expect("budget").max_execs, Some(1));
        let policy = request.policy.expect("policy");
        assert!(policy.process.expect("process").enforce.is_some());
        assert_eq!(policy.network.expect("network").allow.len(), 2);
    }

    #[test]
    fn a_field_that_is_wrong_is_named_by_its_path() {
        check::<CreateSessionRequest>(
            &[
                r#"{"agent":"a"}"#,
                r#"{}"#,
                r#"{"agent":null}"#,
                r#"{"agent":7}"#,
                r#"{"agent":"a","tenant":"other"}"#,
                r#"{"agent":"a","ttl":5}"#,
                r#"{"agent":"a","workspace":{"path":5}}"#,
                r#"{"agent":"a","workspace":{"pth":"/w"}}"#,
                r#"{"agent":"a","workspace":[]}"#,
                r#"{"agent":"a","runtime":{"cpus":-1}}"#,
                r#"{"agent":"a","runtime":{"volumes":[{"name":"d"}]}}"#,
                r#"{"agent":"a","runtime":{"vcpus":2}}"#,
                r#"{"agent":"a","policy":{"network":{"allow":[5]}}}"#,
                r#"{"agent":"a","policy":{"network":{"allow":[{"host":"h","method":[]}]}}}"#,
                r#"{"agent":"a","policy":{"network":{"default":"allow"}}}"#,
                r#"{"agent":"a","policy":{"process":{"ask":[{"match":"b","approver":2}]}}}"#,
                r#"{"agent":"a","policy":{"process":{"ask":[5]}}}"#,
                r#"{"agent":"a","budget":{"max_tokens":5}}"#,
                r#"{"agent":"a","budget":{"max_execs":"5"}}"#,
                r#"{"agent":"a","record":"none"}"#,
            ],
            expect![[r#"
                {"agent":"a"}
                    ok
                {}
                    missing_field agent: agent: this field is required
                {"agent":null}
                    invalid_field agent: agent: invalid type: null, expected a string
                {"agent":7}
                    invalid_field agent: agent: invalid type: integer `7`, expected a string
                {"agent":"a","tenant":"other"}
                    unknown_field tenant: tenant: unknown field; known here: `agent`, `workspace`, `runtime`, `policy`, `budget`, `ttl_seconds`, `record`
                {"agent":"a","ttl":5}
                    unknown_field ttl: ttl: unknown field; known here: `agent`, `workspace`, `runtime`, `policy`, `budget`, `ttl_seconds`, `record`
                {"agent":"a","workspace":{"path":5}}
                    invalid_field workspace.path: workspace.path: invalid type: integer `5`, expected a string
                {"agent":"a","workspace":{"pth":"/w"}}
                    unknown_field workspace.pth: workspace.pth: unknown field; known here: `git`, `path`, `mode`, `lower`, `require_ready`
                {"agent":"a","workspace":[]}
                    invalid_field workspace: workspace: invalid type: sequence, expected an object
                {"agent":"a","runtime":{"cpus":-1}}
                    invalid_field runtime.cpus: runtime.cpus: invalid value: integer `-1`, expected u32
                {"agent":"a","runtime":{"volumes":[{"name":"d"}]}}
                    missing_field runtime.volumes[0].path: runtime.volumes[0].path: this field is required
                {"agent":"a","runtime":{"vcpus":2}}
                    unknown_field runtime.vcpus: runtime.vcpus: unknown field; known here: `image`, `cpus`, `memory_mb`, `host_gpu`, `volumes`
                {"agent":"a","policy":{"network":{"allow":[5]}}}
                    invalid_field policy.network.allow[0]: policy.network.allow[0]: invalid type: integer `5`, expected a host, or an object with host, methods and paths
                {"agent":"a","policy":{"network":{"allow":[{"host":"h","method":[]}]}}}
                    unknown_field policy.network.allow[0].method: policy.network.allow[0].method: unknown field; known here: `host`, `methods`, `paths`
                {"agent":"a","policy":{"network":{"default":"allow"}}}
                    invalid_field policy.network.default: policy.network.default: unknown variant `allow`, expected `deny`
                {"agent":"a","policy":{"process":{"ask":[{"match":"b","approver":2}]}}}
                    unknown_field policy.process.ask[0].approver: policy.process.ask[0].approver: unknown field; known here: `match` or `approvers`
                {"agent":"a","policy":{"process":{"ask":[5]}}}
                    invalid_field policy.process.ask[0]: policy.process.ask[0]: invalid type: integer `5`, expected a pattern, or an object with match and approvers
                {"agent":"a","budget":{"max_tokens":5}}
                    unknown_field budget.max_tokens: budget.max_tokens: unknown field; known here: `max_execs`, `max_exec_seconds`, `max_jobs`, `max_concurrent_jobs`, `max_children`, `max_compute_seconds`, `max_output_bytes`, `max_workspace_bytes`, `max_input_tokens`, `max_output_tokens`, `max_cost_usd`, `max_processes`, `max_memory`, `on_exhaust`
                {"agent":"a","budget":{"max_execs":"5"}}
                    invalid_field budget.max_execs: budget.max_execs: invalid type: string "5", expected u64
                {"agent":"a","record":"none"}
                    invalid_field record: record: unknown variant `none`, expected `full` or `digest`
            "#]],
        );
    }

    #[test]
    fn a_time_to_live_is_a_whole_number_of_seconds_from_one() {
        check::<CreateSessionRequest>(
            &[
                r#"{"agent":"a","ttl_seconds":1}"#,
                r#"{"agent":"a","ttl_seconds":null}"#,
                r#"{"agent":"a","ttl_seconds":0}"#,
                r#"{"agent":"a","ttl_seconds":-1}"#,
                r#"{"agent":"a","ttl_seconds":1e18}"#,
                r#"{"agent":"a","ttl_seconds":NaN}"#,
                r#"{"agent":"a","ttl_seconds":"10"}"#,
                r#"{"agent":"a","ttl_seconds":1.5}"#,
                r#"{"agent":"a","ttl_seconds":99999999999999999999999}"#,
            ],
            expect![[r#"
                {"agent":"a","ttl_seconds":1}
                    ok
                {"agent":"a","ttl_seconds":null}
                    ok
                {"agent":"a","ttl_seconds":0}
                    invalid_field ttl_seconds: ttl_seconds: must be a whole number of seconds, 1 or more
                {"agent":"a","ttl_seconds":-1}
                    invalid_field ttl_seconds: ttl_seconds: invalid type: integer `-1`, expected a whole number of seconds, 1 or more
                {"agent":"a","ttl_seconds":1e18}
                    invalid_field ttl_seconds: ttl_seconds: invalid type: floating point `1e+18`, expected a whole number of seconds, 1 or more
                {"agent":"a","ttl_seconds":NaN}
                    invalid_field ttl_seconds: ttl_seconds: expected value
                {"agent":"a","ttl_seconds":"10"}
                    invalid_field ttl_seconds: ttl_seconds: invalid type: string "10", expected a whole number of seconds, 1 or more
                {"agent":"a","ttl_seconds":1.5}
                    invalid_field ttl_seconds: ttl_seconds: invalid type: floating point `1.5`, expected a whole number of seconds, 1 or more
                {"agent":"a","ttl_seconds":99999999999999999999999}
                    invalid_field ttl_seconds: ttl_seconds: invalid type: floating point `1e+23`, expected a whole number of seconds, 1 or more
            "#]],
        );
    }

    #[test]
    fn an_exec_takes_whole_or_decimal_seconds_above_zero() {
        check::<ExecRequest>(
            &[
                r#"{"command":"true","timeout_seconds":0.5}"#,
                r#"{"command":"true","timeout_seconds":0}"#,
                r#"{"command":"true","timeout_seconds":-2}"#,
                r#"{"command":"true","timeout_seconds":1e999}"#,
                r#"{"command":"true","timeout_seconds":Infinity}"#,
                r#"{"command":"true","timeout_seconds":"5"}"#,
                r#"{"command":["true"]}"#,
                r#"{"timeout_seconds":5}"#,
                r#"{"command":"true","cwd":"/"}"#,
                r#"{"command":"\ud800"}"#,
            ],
            expect![[r#"
                {"command":"true","timeout_seconds":0.5}
                    ok
                {"command":"true","timeout_seconds":0}
                    invalid_field timeout_seconds: timeout_seconds: must be a number of seconds above 0, whole or decimal
                {"command":"true","timeout_seconds":-2}
                    invalid_field timeout_seconds: timeout_seconds: invalid type: integer `-2`, expected a number of seconds above 0, whole or decimal
                {"command":"true","timeout_seconds":1e999}
                    invalid_field timeout_seconds: timeout_seconds: number out of range
                {"command":"true","timeout_seconds":Infinity}
                    invalid_field timeout_seconds: timeout_seconds: expected value
                {"command":"true","timeout_seconds":"5"}
                    invalid_field timeout_seconds: timeout_seconds: invalid type: string "5", expected a number of seconds above 0, whole or decimal
                {"command":["true"]}
                    invalid_field command: command: invalid type: sequence, expected a string
                {"timeout_seconds":5}
                    missing_field command: command: this field is required
                {"command":"true","cwd":"/"}
                    unknown_field cwd: cwd: unknown field; known here: `command`, `timeout_seconds`, `approval_id`, `approval_wait_seconds`, `stdin`, `stdin_base64`
                {"command":"\ud800"}
                    invalid_field command: command: unexpected end of hex escape
            "#]],
        );
    }

    #[test]
    fn a_replay_takes_a_session_and_times() {
        check::<ReplayRequest>(
            &[
                r#"{"dry_run":true,"since":"2026-12-01T10:00:00+01:00"}"#,
                r#"{"target":"nope"}"#,
                r#"{"since":"yesterday"}"#,
                r#"{"until":1700000000}"#,
                r#"{"stop_on_failure":"no"}"#,
                r#"{"keep_going":true}"#,
            ],
            expect![[r#"
                {"dry_run":true,"since":"2026-12-01T10:00:00+01:00"}
                    ok
                {"target":"nope"}
                    invalid_field target: target: UUID parsing failed: invalid character: found `n` at 0
                {"since":"yesterday"}
                    invalid_field since: since: must be an RFC 3339 time such as 2026-12-01T10:00:00Z
                {"until":1700000000}
                    invalid_field until: until: invalid type: integer `1700000000`, expected a string
                {"stop_on_failure":"no"}
                    invalid_field stop_on_failure: stop_on_failure: invalid type: string "no", expected a boolean
                {"keep_going":true}
                    unknown_field keep_going: keep_going: unknown field; known here: `target`, `dry_run`, `since`, `until`, `checkpoint`, `from`, `to`, `stop_on_failure`, `timeout_seconds`
            "#]],
        );
    }
}
