//! Values that tests of decisions start from.

use chrono::DateTime;
use chrono::TimeDelta;
use chrono::Utc;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::GlobalSeq;
use fluxvm_eventstore::StreamVersion;
use fluxvm_projections::Capabilities;
use fluxvm_projections::CheckpointTaken;
use fluxvm_projections::Checkpoints;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::MemoryRecord;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Origin;
use fluxvm_projections::PolicyRecord;
use fluxvm_projections::Recording;
use fluxvm_projections::RevivalRecord;
use fluxvm_projections::Rewind;
use fluxvm_projections::RuntimeRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;
use fluxvm_projections::Usage;
use fluxvm_projections::WorkspaceMode;
use fluxvm_projections::WorkspaceRecord;
use uuid::Uuid;

use crate::book::Entry;
use crate::error::CommandError;

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
        capabilities: Capabilities {
            snapshot: true,
            restore: true,
            fork: true,
            memory_checkpoint_reason: Some("no criu here".into()),
            ..Capabilities::default()
        },
        enforcement: None,
        budget: None,
        usage: Usage::default(),
        in_flight: Vec::new(),
        cleaned_up: false,
        interrupted_op: None,
        interrupted_resolution: None,
        hostname: None,
        origin: None,
        children: Vec::new(),
        checkpoints: Checkpoints::default(),
        rewind: Rewind::default(),
        erased: false,
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

/// A snapshot that was taken.
pub(crate) fn snapshot(number: u128) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId(Uuid::from_u128(number)),
        memory: MemoryRecord::NothingAlive,
        disk: "d".repeat(64),
        stored_paths: 1,
        stored_bytes: 1,
        layers: 1,
        pause_us: 1,
    }
}

/// An event with this number, of the session that tests start from.
pub(crate) fn envelope(number: u64, event: Event) -> Envelope {
    Envelope {
        seq: GlobalSeq::new(number).unwrap(),
        stream: session().id.stream(),
        version: StreamVersion::new(number).unwrap(),
        id: EventId::new(Uuid::from_u128(u128::from(number))),
        kind: event.kind().unwrap().to_owned(),
        at: now(),
        request: CorrelationId::new(Uuid::nil()),
        cause: None,
        event,
    }
}

/// Where a fork of this session comes from.
pub(crate) fn origin(parent: SessionId, snapshot: SnapshotRecord) -> Origin {
    Origin {
        parent,
        tag: None,
        snapshot,
        revival: RevivalRecord::default(),
        hostname: None,
    }
}

/// A session with these checkpoints.
pub(crate) fn checkpointed(tags: &[&str]) -> Session {
    let mut session = session();
    for (number, tag) in (10..).zip(tags) {
        let taken = Event::CheckpointTaken(CheckpointTaken {
            op: 1,
            tag: (*tag).to_owned(),
            snapshot: snapshot(u128::from(number - 10)),
            duration_ms: 1,
        });
        session.apply(&envelope(number, taken));
    }
    session
}

/// A decision as one line.
pub(crate) fn after(decision: Result<Entry, CommandError>) -> String {
    match decision {
        Ok(entry) => format!(
            "{} {}",
            entry.event.kind().unwrap(),
            entry.event.payload().unwrap()
        ),
        Err(error) => format!("{}: {error}", error.code()),
    }
}
