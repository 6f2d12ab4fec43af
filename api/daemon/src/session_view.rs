//! The session record, out of the projection.

use bytes::Bytes;
use fluxvm_api_types::AskView;
use fluxvm_api_types::BudgetView;
use fluxvm_api_types::CapabilitiesView;
use fluxvm_api_types::EnforcementView;
use fluxvm_api_types::FilesystemView;
use fluxvm_api_types::InterruptedView;
use fluxvm_api_types::OperationView;
use fluxvm_api_types::PolicyView;
use fluxvm_api_types::ProcessView;
use fluxvm_api_types::RuntimeView;
use fluxvm_api_types::SessionView;
use fluxvm_api_types::UsageView;
use fluxvm_api_types::WorkspaceView;
use fluxvm_commands::status_name;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::Capabilities;
use fluxvm_projections::EnforcementRecord;
use fluxvm_projections::OnExhaust;
use fluxvm_projections::Operation;
use fluxvm_projections::ProcessRecord;
use fluxvm_projections::Recording;
use fluxvm_projections::Session;
use fluxvm_projections::WorkspaceMode;

use crate::time_travel_view;

/// The record as JSON.
pub(crate) fn to_json(session: &Session) -> Bytes {
    // Strings, numbers and times: nothing in a record can fail to serialise.
    serde_json::to_vec(&view(session))
        .unwrap_or_else(|_| b"null".to_vec())
        .into()
}

/// The record.
pub(crate) fn view(session: &Session) -> SessionView {
    SessionView {
        id: session.id.0,
        agent: session.agent.clone(),
        tenant: session.tenant.clone(),
        status: status_name(session.status),
        status_reason: session.status_reason.clone(),
        sandbox_id: session.sandbox_id.0,
        backend: session.backend.clone(),
        created_at: session.created_at,
        expires_at: session.expires_at,
        revision: session.revision,
        parent: session.origin.as_ref().map(|origin| origin.parent.0),
        origin: session.origin.as_ref().map(time_travel_view::origin),
        children: session.children.iter().map(|child| child.0).collect(),
        workspace: WorkspaceView {
            git: session.workspace.git.clone(),
            path: session.workspace.path.clone(),
            mode: match session.workspace.mode {
                WorkspaceMode::Clone => "clone",
                WorkspaceMode::Readonly => "readonly",
            },
            lower: None,
            note: session.workspace_note.clone(),
            baseline: None,
        },
        runtime: RuntimeView {
            image: session.runtime.image.clone(),
            cpus: session.runtime.cpus,
            memory_mb: session.runtime.memory_mb,
            host_gpu: false,
            volumes: Vec::new(),
        },
        policy: policy(session),
        capabilities: capabilities(&session.capabilities),
        checkpoints: session
            .checkpoints
            .iter()
            .map(time_travel_view::checkpoint)
            .collect(),
        budget: session.budget.as_ref().map(budget),
        usage: UsageView {
            execs: session.usage.execs,
            exec_ms: session.usage.exec_ms,
            jobs: session.usage.jobs,
            children: session.children.len() as u64,
            workspace_bytes: None,
            input_tokens: session.usage.input_tokens,
            output_tokens: session.usage.output_tokens,
            cost_usd: dollars(session.usage.cost_microusd),
        },
        record: match session.record {
            Recording::Full => "full",
            Recording::Digest => "digest",
        },
        http_unbound: false,
        in_flight: session.in_flight.iter().map(operation).collect(),
        interrupted_op: session
            .interrupted_op
            .as_ref()
            .map(|interrupted| InterruptedView {
                operation: operation(interrupted),
                resolution: session.interrupted_resolution.clone(),
            }),
    }
}

fn budget(budget: &BudgetRecord) -> BudgetView {
    BudgetView {
        max_execs: budget.max_execs,
        max_exec_seconds: budget.max_exec_seconds,
        max_jobs: budget.max_jobs,
        max_concurrent_jobs: budget.max_concurrent_jobs,
        max_children: budget.max_children,
        max_compute_seconds: budget.max_compute_seconds,
        max_output_bytes: budget.max_output_bytes,
        max_input_tokens: budget.max_input_tokens,
        max_output_tokens: budget.max_output_tokens,
        max_cost_usd: budget.max_cost_microusd.map(dollars),
        max_processes: budget.max_processes,
        max_memory: budget.max_memory,
        on_exhaust: match budget.on_exhaust {
            OnExhaust::Stop => "stop",
            OnExhaust::RefuseNext => "refuse-next",
        },
    }
}

/// Exact for every amount that a person would write down.
#[expect(
    clippy::cast_precision_loss,
    reason = "only beyond thousands of millions of dollars"
)]
fn dollars(microusd: u64) -> f64 {
    microusd as f64 / 1e6
}

/// What was compiled, and nothing else.
fn policy(session: &Session) -> PolicyView {
    let policy = &session.policy;
    PolicyView {
        preset: policy.preset.clone(),
        offline: policy.offline,
        allow_hosts: policy.allow_hosts.clone(),
        http_rules: policy.http_rules.clone(),
        network_unenforced: policy.network_unenforced.clone(),
        process: policy.process.as_ref().map(process),
        exec: policy.exec.as_ref().map(|rules| FilesystemView {
            read: rules.read.clone(),
            write: rules.write.clone(),
            enforcement: enforcement(!rules.best_effort),
        }),
        enforced: session.enforcement.as_deref().map(enforced),
    }
}

/// What a command was held to.
pub(crate) fn enforced(report: &EnforcementRecord) -> EnforcementView {
    EnforcementView {
        landlock_abi: report.landlock_abi,
        filesystem: report.filesystem,
        execute: report.execute,
        tcp_connect: report.tcp_connect,
        tcp_bind: report.tcp_bind,
        scope_abstract_unix: report.scope_abstract_unix,
        scope_signal: report.scope_signal,
        seccomp: report.seccomp,
        seccomp_sockets: report.seccomp_sockets,
        limits: report.limits,
        uid_dropped: report.uid_dropped,
        namespaces: report.namespaces,
        network_isolated: report.network_isolated,
        not_enforced: report.not_enforced.clone(),
        absent: report.absent.clone(),
    }
}

fn process(rules: &ProcessRecord) -> ProcessView {
    let ask = rules.ask.iter().map(|rule| match rule.approvers {
        1 => AskView::One(rule.pattern.clone()),
        approvers => AskView::Several {
            pattern: rule.pattern.clone(),
            approvers,
        },
    });
    ProcessView {
        allow: rules.allow.clone(),
        deny: rules.deny.clone(),
        ask: ask.collect(),
        enforce: (!rules.programs.is_empty()).then_some("exec"),
        programs: rules.programs.clone(),
        enforcement: enforcement(rules.strict),
    }
}

fn enforcement(strict: bool) -> &'static str {
    if strict { "strict" } else { "best-effort" }
}

/// Capabilities as records and the host's own answer show them.
pub(crate) fn capabilities(recorded: &Capabilities) -> CapabilitiesView {
    CapabilitiesView {
        snapshot: recorded.snapshot,
        restore: recorded.restore,
        fork: recorded.fork,
        pty: recorded.pty,
        memory_checkpoint: recorded.memory_checkpoint,
        memory_checkpoint_reason: recorded.memory_checkpoint_reason.clone(),
        confinement: recorded.confinement,
        exec_allowlist: recorded.exec_allowlist,
        landlock_abi: recorded.landlock_abi,
        http_policy: recorded.http_policy,
        memory_limit: recorded.memory_limit,
        process_limit: recorded.process_limit,
        cpu_limit: recorded.cpu_limit,
        user_namespace: recorded.user_namespace.clone(),
        host_root_writable: recorded.host_root_writable,
        network: recorded.network.clone(),
    }
}

fn operation(operation: &Operation) -> OperationView {
    OperationView {
        op: operation.kind.name(),
        seq: operation.seq,
        started_at: operation.started_at,
    }
}
