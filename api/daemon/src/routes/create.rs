//! `POST /v1/agents/sessions`.

use axum::extract::State;
use axum::http::request::Parts;
use axum::response::Response;
use fluxvm_api_types::CreateSessionRequest;
use fluxvm_api_types::Policy;
use fluxvm_api_types::RecordRequest;
use fluxvm_commands::CreateSession;
use fluxvm_commands::PolicyRequest;
use fluxvm_commands::RuntimeRequest;
use fluxvm_commands::WorkspaceRequest;
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
        has_budget: request
            .budget
            .is_some_and(|budget| budget.limits_something()),
        ttl_seconds: request.ttl_seconds.map(fluxvm_api_types::WholeSeconds::get),
        record: match request.record {
            Some(RecordRequest::Digest) => Recording::Digest,
            Some(RecordRequest::Full) | None => Recording::Full,
        },
    }
}

fn policy(policy: Policy) -> PolicyRequest {
    let network = policy.network.unwrap_or_default();
    PolicyRequest {
        preset: policy.preset,
        offline_network: network.denies_everything(),
        has_network_rules: !network.allow.is_empty(),
        has_process: policy.process.is_some_and(|rules| rules.says_something()),
        has_filesystem: policy.filesystem.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> CreateSession {
        understood(fluxvm_api_types::parse(body.as_bytes()).expect("valid"))
    }

    #[test]
    fn a_policy_that_says_nothing_asks_for_nothing() {
        let policy = read(r#"{"agent":"a","policy":{"network":{},"process":{"allow":[]}}}"#).policy;
        let asks = [
            policy.offline_network,
            policy.has_network_rules,
            policy.has_process,
            policy.has_filesystem,
        ];
        assert_eq!(asks, [false; 4]);
        assert!(!read(r#"{"agent":"a","budget":{}}"#).has_budget);
    }

    #[test]
    fn what_is_asked_for_arrives() {
        let deny_all = read(r#"{"agent":"a","policy":{"network":{"default":"deny"}}}"#).policy;
        assert!(deny_all.offline_network && !deny_all.has_network_rules);
        let rules =
            read(r#"{"agent":"a","policy":{"network":{"default":"deny","allow":["h"]}}}"#).policy;
        assert!(!rules.offline_network && rules.has_network_rules);
        let request = read(
            r#"{"agent":"a","budget":{"max_execs":0},"ttl_seconds":9,"record":"digest",
                "runtime":{"volumes":[{"name":"d","path":"/mnt/d"}]},
                "policy":{"filesystem":{}}}"#,
        );
        assert!(request.has_budget && request.policy.has_filesystem);
        assert_eq!((request.runtime.volumes, request.ttl_seconds), (1, Some(9)));
        assert_eq!(request.record, Recording::Digest);
    }
}
