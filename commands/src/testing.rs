//! Values that tests of decisions start from.

use chrono::DateTime;
use chrono::TimeDelta;
use chrono::Utc;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::StreamVersion;
use fluxvm_projections::Capabilities;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::PolicyRecord;
use fluxvm_projections::Recording;
use fluxvm_projections::RuntimeRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;
use fluxvm_projections::Usage;
use fluxvm_projections::WorkspaceMode;
use fluxvm_projections::WorkspaceRecord;
use uuid::Uuid;

/// The time at which tests decide.
pub(crate) fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

/// A running session that ends a minute from now.
pub(crate) fn session() -> Session {
    Session {
        id: SessionId(Uuid::nil()),
        version: StreamVersion::new(2).unwrap(),
        agent: "codex".into(),
        tenant: None,
        status: SessionStatus::Running,
        status_reason: None,
        revision: 1,
        created_at: now() - TimeDelta::minutes(1),
        expires_at: Some(now() + TimeDelta::minutes(1)),
        sandbox_id: SandboxId(Uuid::nil()),
        backend: "procbox".into(),
        workspace: WorkspaceRecord {
            path: "/workspace".into(),
            mode: WorkspaceMode::Clone,
            git: None,
        },
        workspace_note: None,
        runtime: RuntimeRecord::default(),
        policy: PolicyRecord::default(),
        record: Recording::Full,
        capabilities: Capabilities::default(),
        usage: Usage::default(),
        in_flight: Vec::new(),
        cleaned_up: false,
        interrupted_op: None,
    }
}

/// A session in this status.
pub(crate) fn session_that_is(status: SessionStatus) -> Session {
    Session {
        status,
        ..session()
    }
}

/// A session with this operation in flight.
pub(crate) fn session_with(kind: OperationKind) -> Session {
    let operation = Operation {
        seq: 3,
        intent: EventId::new(Uuid::nil()),
        kind,
        started_at: now(),
    };
    Session {
        in_flight: vec![operation],
        ..session()
    }
}
