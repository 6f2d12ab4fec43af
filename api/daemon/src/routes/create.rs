//! `POST /v1/agents/sessions`.

use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use fluxvm_api_types::Budget;
use fluxvm_api_types::CreateSessionRequest;
use fluxvm_api_types::Dollars;
use fluxvm_api_types::Exhaust;
use fluxvm_api_types::Policy;
use fluxvm_api_types::ProcessRules;
use fluxvm_api_types::RecordRequest;
use fluxvm_commands::AskRequest;
use fluxvm_commands::CreateSession;
use fluxvm_commands::Enforcement;
use fluxvm_commands::FilesystemRequest;
use fluxvm_commands::HostRequest;
use fluxvm_commands::NetworkRequest;
use fluxvm_commands::PolicyRequest;
use fluxvm_commands::ProcessRequest;
use fluxvm_commands::RuntimeRequest;
use fluxvm_commands::WorkspaceRequest;
use fluxvm_projections::BudgetRecord;
use fluxvm_projections::OnExhaust;
use fluxvm_projections::Recording;

use super::StrictBody;
use super::no_parameters;
use crate::app::Admin;
use crate::app::App;
use crate::app::Ready;
use crate::idempotency;
use crate::idempotency::Reply;
use crate::idempotency::RequestKey;
use crate::session_view;
use crate::status::ApiError;

pub(super) async fn create(
    State(app): State<App>,
    Admin(caller): Admin,
    Ready(engine): Ready,
    head: Parts,
    body: StrictBody<CreateSessionRequest>,
) -> Result<Response, ApiError> {
    no_parameters(&head.uri)?;
    let key = RequestKey::of(&head, &caller, &body.bytes)?;
    let request = understood(body.value);
    let work = async move {
        let (maker, asking) = (engine.clone(), caller.clone());
        let make = async move {
            let session = maker.create_session(&asking, request).await?;
            Ok(Reply::Created(session.id, session_view::to_json(&session)))
        };
        idempotency::once(&engine, &caller, key, make).await
    };
    app.detached(work).await
}

/// The request in the engine's words. Whether it can be honoured is not decided here.
fn understood(request: CreateSessionRequest) -> CreateSession {
    let workspace = request.workspace.unwrap_or_default();
    let runtime = request.runtime.unwrap_or_default();
    CreateSession {
        agent: request.agent,
        workspace: WorkspaceRequest {
            path: workspace.path,
            mode: workspace.mode,
            git: workspace.git,
            lower: workspace.lower,
            require_ready: workspace.require_ready.unwrap_or(false),
        },
        runtime: RuntimeRequest {
            image: runtime.image,
            cpus: runtime.cpus,
            memory_mb: runtime.memory_mb,
            host_gpu: runtime.host_gpu.unwrap_or(false),
            volumes: runtime.volumes.map_or(0, |volumes| volumes.len()),
        },
        policy: policy(request.policy.unwrap_or_default()),
        budget: request.budget.map(budget),
        ttl_seconds: request.ttl_seconds.map(fluxvm_api_types::WholeSeconds::get),
        record: match request.record {
            Some(RecordRequest::Digest) => Recording::Digest,
            Some(RecordRequest::Full) | None => Recording::Full,
        },
    }
}

fn budget(budget: Budget) -> BudgetRecord {
    BudgetRecord {
        max_execs: budget.max_execs,
        max_exec_seconds: budget.max_exec_seconds,
        max_jobs: budget.max_jobs,
        max_concurrent_jobs: budget.max_concurrent_jobs,
        max_children: budget.max_children,
        max_compute_seconds: budget.max_compute_seconds,
        max_output_bytes: budget.max_output_bytes,
        max_workspace_bytes: budget.max_workspace_bytes,
        max_input_tokens: budget.max_input_tokens,
        max_output_tokens: budget.max_output_tokens,
        max_cost_microusd: budget.max_cost_usd.map(Dollars::microusd),
        max_processes: budget.max_processes,
        max_memory: budget.max_memory,
        on_exhaust: match budget.on_exhaust {
            None | Some(Exhaust::Stop) => OnExhaust::Stop,
            Some(Exhaust::RefuseNext) => OnExhaust::RefuseNext,
        },
    }
}

fn policy(policy: Policy) -> PolicyRequest {
    let network = policy.network.unwrap_or_default();
    let allow = network.allow.into_iter().map(|rule| HostRequest {
        host: rule.host,
        methods: rule.methods,
        paths: rule.paths,
    });
    PolicyRequest {
        preset: policy.preset,
        network: NetworkRequest {
            denies: network.default.is_some(),
            allow: allow.collect(),
            enforcement: enforcement(network.enforcement),
        },
        process: policy.process.map(process),
        filesystem: policy.filesystem.map(|rules| FilesystemRequest {
            read: rules.read,
            write: rules.write,
            enforcement: enforcement(rules.enforcement),
        }),
    }
}

fn process(rules: ProcessRules) -> ProcessRequest {
    let ask = rules.ask.into_iter().map(|rule| AskRequest {
        pattern: rule.pattern,
        approvers: rule.approvers,
    });
    ProcessRequest {
        allow: rules.allow,
        deny: rules.deny,
        ask: ask.collect(),
        enforce: rules.enforce.is_some(),
        enforcement: enforcement(rules.enforcement),
    }
}

fn enforcement(asked: Option<fluxvm_api_types::Enforcement>) -> Enforcement {
    match asked {
        None | Some(fluxvm_api_types::Enforcement::Strict) => Enforcement::Strict,
        Some(fluxvm_api_types::Enforcement::BestEffort) => Enforcement::BestEffort,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> CreateSession {
        understood(fluxvm_api_types::parse(body.as_bytes()).expect("valid"))
    }

    #[test]
    fn what_is_asked_for_arrives() {
        let denies = read(r#"{"agent":"a","policy":{"network":{"default":"deny"}}}"#).policy;
        assert!(denies.network.denies && denies.network.allow.is_empty());
        let policy = read(
            r#"{"agent":"a","policy":{"network":{"allow":["h",{"host":"g","methods":["GET"]}],
                "enforcement":"best-effort"},"process":{"deny":["rm *"],
                "ask":["x",{"match":"y","approvers":2}]},"filesystem":{"read":["/r"]}}}"#,
        )
        .policy;
        assert_eq!(policy.network.allow.len(), 2);
        assert_eq!(policy.network.enforcement, Enforcement::BestEffort);
        let process = policy.process.expect("rules");
        assert_eq!(process.ask.iter().map(|ask| ask.approvers).sum::<u32>(), 3);
        assert_eq!(
            (process.enforcement, process.enforce),
            (Enforcement::Strict, false)
        );
        assert_eq!(policy.filesystem.expect("rules").read, ["/r"]);
        let request = read(
            r#"{"agent":"a","budget":{"max_execs":0},"ttl_seconds":9,"record":"digest",
                "runtime":{"volumes":[{"name":"d","path":"/mnt/d"}]}}"#,
        );
        assert_eq!(request.budget.expect("a budget").max_execs, Some(0));
        assert_eq!((request.runtime.volumes, request.ttl_seconds), (1, Some(9)));
        assert_eq!(request.record, Recording::Digest);
    }
}
