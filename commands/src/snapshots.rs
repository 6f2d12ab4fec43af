//! Snapshots: taking them, the words that record them, and letting go of them.
//!
//! Whether a snapshot is needed is a fold of the ledger (`Sessions::needed_snapshots`). Whoever records
//! that something is no longer needed hands its snapshot in here; what a crash leaves is swept at the
//! next start. A snapshot's intent is recorded before it exists, so that none is ever swept too early.

use std::sync::Arc;

use fluxvm_projections::IdentityMode;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::MemoryRecord;
use fluxvm_projections::Point;
use fluxvm_projections::RevivalRecord;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SnapshotId;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::ContentDigest;
use fluxvm_vmm::Identity;
use fluxvm_vmm::MemoryKept;
use fluxvm_vmm::MemoryWanted;
use fluxvm_vmm::RevivalReport;
use fluxvm_vmm::Snapshot;
use fluxvm_vmm::SnapshotError;
use fluxvm_vmm::SnapshotSpec;

use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::SNAPSHOT_TIME_MAX;

/// Captures a session's sandbox as it is now.
pub(crate) async fn take(
    inner: &Inner,
    session: SessionId,
    id: SnapshotId,
    memory: MemoryMode,
) -> Result<SnapshotRecord, CommandError> {
    let Some(sandbox) = inner.sandboxes.get(session) else {
        return Err(SnapshotError::SandboxGone.into());
    };
    let spec = SnapshotSpec {
        id: fluxvm_vmm::SnapshotId::new(id.0),
        memory: match memory {
            MemoryMode::Never => MemoryWanted::Never,
            MemoryMode::BestEffort => MemoryWanted::BestEffort,
            MemoryMode::Required => MemoryWanted::Required,
        },
    };
    // An engine that hangs must not keep the session's slot for ever.
    match tokio::time::timeout(SNAPSHOT_TIME_MAX, sandbox.checkpoint(spec)).await {
        Ok(taken) => Ok(recorded(taken?)),
        Err(_) => Err(CommandError::SnapshotLate {
            what: "the sandbox was not captured",
            seconds: SNAPSHOT_TIME_MAX.as_secs(),
        }),
    }
}

/// Whether processes are wanted, from what a caller said. Leaving it out asks for all there is: a
/// checkpoint that silently lost what ran would be worse than none.
pub(crate) fn memory_mode(
    session: &Session,
    asked: Option<bool>,
) -> Result<MemoryMode, CommandError> {
    let capabilities = &session.capabilities;
    match asked {
        Some(false) => Ok(MemoryMode::Never),
        Some(true) if !capabilities.memory_checkpoint => Err(CommandError::MemoryImpossible(
            capabilities
                .memory_checkpoint_reason
                .clone()
                .unwrap_or_else(|| "this engine keeps no memory".to_owned()),
        )),
        _ => Ok(MemoryMode::Required),
    }
}

/// Forgets snapshots that nothing needs any more, in the background. What is still needed stays.
pub(crate) fn release(inner: &Arc<Inner>, candidates: impl IntoIterator<Item = SnapshotId>) {
    let candidates: Vec<SnapshotId> = candidates.into_iter().collect();
    if candidates.is_empty() {
        return;
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move { forget_unneeded(&inner, candidates).await });
}

/// Hands in every snapshot that an ended session had.
pub(crate) fn release_all(inner: &Arc<Inner>, session: &Session) {
    release(inner, all(session));
}

/// Removes every snapshot that an ended session had before it answers, because all that the session said
/// is being erased. What a living fork stands on stays as long as the fork does: it is the fork's too.
pub(crate) async fn forget_all(inner: &Inner, session: &Session) {
    forget_unneeded(inner, all(session)).await;
}

/// The snapshots that a session has, and the one that it comes from.
fn all(session: &Session) -> Vec<SnapshotId> {
    let checkpoints = session.checkpoints.iter().map(|it| it.snapshot.id);
    let points = session.rewind.timeline().map(|it| it.snapshot.id);
    let baseline = session.origin.iter().map(|origin| origin.snapshot.id);
    checkpoints.chain(points).chain(baseline).collect()
}

async fn forget_unneeded(inner: &Inner, candidates: Vec<SnapshotId>) {
    if candidates.is_empty() {
        return;
    }
    let needed = inner.book.world().sessions.needed_snapshots();
    for id in candidates.iter().filter(|id| !needed.contains(id)) {
        forget(inner, *id).await;
    }
}

/// Hands in what was undone: something new happened.
pub(crate) fn release_undone(inner: &Arc<Inner>, undone: &[Point]) {
    release(inner, undone.iter().map(|point| point.snapshot.id));
}

/// Removes every snapshot that no session needs. Only at the start, when nothing else runs.
pub(crate) async fn sweep(inner: &Arc<Inner>) -> std::io::Result<Vec<SnapshotId>> {
    let found = inner.backend.snapshots().await?;
    let needed = inner.book.world().sessions.needed_snapshots();
    let mut removed = Vec::new();
    for id in found.iter().map(|id| SnapshotId(id.uuid())) {
        if !needed.contains(&id) && forget(inner, id).await {
            removed.push(id);
        }
    }
    removed.sort_unstable();
    Ok(removed)
}

async fn forget(inner: &Inner, id: SnapshotId) -> bool {
    let name = fluxvm_vmm::SnapshotId::new(id.0);
    match inner.backend.remove_snapshot(&name).await {
        Ok(existed) => existed,
        Err(error) => {
            // The next start finds it, because nothing needs it.
            tracing::warn!(snapshot = %id, %error, "a snapshot was not removed");
            false
        }
    }
}

/// A snapshot in the words of the ledger.
fn recorded(snapshot: Snapshot) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId(snapshot.id.uuid()),
        memory: match snapshot.memory {
            MemoryKept::Kept { bytes, digest } => MemoryRecord::Kept {
                bytes,
                digest: digest.to_string(),
            },
            MemoryKept::NothingAlive => MemoryRecord::NothingAlive,
            MemoryKept::NotAsked => MemoryRecord::NotAsked,
            MemoryKept::Impossible { reason } => MemoryRecord::Impossible { reason },
        },
        disk: snapshot.disk.to_string(),
        stored_paths: snapshot.stored_paths,
        stored_bytes: snapshot.stored_bytes,
        layers: snapshot.layers,
        pause_us: u64::try_from(snapshot.pause.as_micros()).unwrap_or(u64::MAX),
    }
}

/// What was recorded of a snapshot, as the engine is held to it.
pub(crate) fn of_record(record: &SnapshotRecord) -> Result<Snapshot, CommandError> {
    let digest = |text: &str| {
        text.parse::<ContentDigest>()
            .map_err(|error| CommandError::Internal(error.to_string()))
    };
    Ok(Snapshot {
        id: fluxvm_vmm::SnapshotId::new(record.id.0),
        memory: match &record.memory {
            MemoryRecord::Kept {
                bytes,
                digest: text,
            } => MemoryKept::Kept {
                bytes: *bytes,
                digest: digest(text)?,
            },
            MemoryRecord::NothingAlive => MemoryKept::NothingAlive,
            MemoryRecord::NotAsked => MemoryKept::NotAsked,
            MemoryRecord::Impossible { reason } => MemoryKept::Impossible {
                reason: reason.clone(),
            },
        },
        disk: digest(&record.disk)?,
        stored_paths: record.stored_paths,
        stored_bytes: record.stored_bytes,
        layers: record.layers,
        pause: std::time::Duration::from_micros(record.pause_us),
    })
}

/// An identity as engines are asked for it.
pub(crate) fn identity(mode: IdentityMode) -> Identity {
    match mode {
        IdentityMode::BestEffort => Identity::RenewBestEffort,
        IdentityMode::Unique => Identity::Renew,
        IdentityMode::Preserve => Identity::Keep,
    }
}

/// What became of a revived sandbox, in the words of the ledger.
pub(crate) fn revival(report: RevivalReport) -> RevivalRecord {
    RevivalRecord {
        memory: report.memory,
        identity_renewed: report.identity_renewed,
        identity_note: report.identity_note,
        unconfined: report.unconfined,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::envelope;
    use crate::testing::origin;
    use crate::testing::session;
    use crate::testing::snapshot;
    use fluxvm_eventstore::EventId;
    use fluxvm_eventstore::StreamVersion;
    use fluxvm_projections::CheckpointDeleted;
    use fluxvm_projections::CheckpointTaken;
    use fluxvm_projections::Event;
    use fluxvm_projections::ForkStarted;
    use fluxvm_projections::Forked;
    use fluxvm_projections::ForkedSession;
    use fluxvm_projections::PolicyRecord;
    use fluxvm_projections::Recording;
    use fluxvm_projections::RuntimeRecord;
    use fluxvm_projections::SandboxId;
    use fluxvm_projections::SessionCreateStarted;
    use fluxvm_projections::SessionCreated;
    use fluxvm_projections::SessionDeleted;
    use fluxvm_projections::Sessions;
    use fluxvm_projections::WorkspaceMode;
    use fluxvm_projections::WorkspaceRecord;
    use uuid::Uuid;

    const PARENT: SessionId = SessionId(Uuid::from_u128(1));
    const CHILD: SessionId = SessionId(Uuid::from_u128(2));

    /// Sessions to which things happen, in one ledger.
    #[derive(Default)]
    struct Story {
        sessions: Sessions,
        events: u64,
        versions: BTreeMap<SessionId, u64>,
    }

    impl Story {
        fn on(&mut self, id: SessionId, event: Event, cause: Option<EventId>) -> EventId {
            self.events += 1;
            let mut envelope = envelope(self.events, event);
            envelope.stream = id.stream();
            let version = self.versions.entry(id).or_default();
            *version += 1;
            envelope.version = StreamVersion::new(*version).unwrap();
            envelope.cause = cause;
            self.sessions.apply(&envelope);
            envelope.id
        }

        fn needs(&self) -> Vec<u128> {
            let needed = self.sessions.needed_snapshots();
            needed.iter().map(|id| id.0.as_u128()).collect()
        }
    }

    fn asked() -> SessionCreateStarted {
        SessionCreateStarted {
            agent: "codex".into(),
            tenant: None,
            sandbox_id: SandboxId(Uuid::nil()),
            backend: "procbox".into(),
            workspace: WorkspaceRecord {
                path: "/workspace".into(),
                mode: WorkspaceMode::Clone,
                git: None,
            },
            runtime: RuntimeRecord::default(),
            policy: PolicyRecord::default(),
            record: Recording::Full,
            expires_at: None,
            budget: None,
        }
    }

    fn created(forked: Option<ForkedSession>) -> Event {
        Event::SessionCreated(SessionCreated {
            op: 1,
            agent: "codex".into(),
            sandbox_id: SandboxId(Uuid::nil()),
            backend: "procbox".into(),
            capabilities: session().capabilities,
            enforcement: None,
            workspace_note: None,
            duration_ms: 1,
            forked: forked.map(Box::new),
        })
    }

    #[test]
    fn a_snapshot_is_needed_from_its_intent_until_the_last_one_lets_go_of_it() {
        let mut story = Story::default();
        let intent = story.on(PARENT, Event::SessionCreateStarted(asked()), None);
        story.on(PARENT, created(None), Some(intent));
        assert_eq!(story.needs(), [0; 0]);
        let taken = CheckpointTaken {
            op: 3,
            tag: "a".into(),
            snapshot: snapshot(7),
            duration_ms: 1,
        };
        story.on(PARENT, Event::CheckpointTaken(taken), None);
        assert_eq!(story.needs(), [7], "a checkpoint");
        let started = ForkStarted {
            tag: None,
            snapshot: snapshot(8).id,
            memory: None,
            identity: IdentityMode::BestEffort,
            children: Vec::new(),
        };
        let fork = story.on(PARENT, Event::ForkStarted(started), None);
        assert_eq!(story.needs(), [7, 8], "an operation works with it");
        let forked = Forked {
            op: 4,
            tag: None,
            snapshot: snapshot(8),
            count: 1,
            children: vec![CHILD],
            duration_ms: 1,
        };
        story.on(PARENT, Event::Forked(forked), Some(fork));
        let child = ForkedSession {
            asked: asked(),
            origin: origin(PARENT, snapshot(8)),
        };
        story.on(CHILD, created(Some(child)), Some(fork));
        let gone = CheckpointDeleted {
            tag: "a".into(),
            snapshot: snapshot(7).id,
        };
        story.on(PARENT, Event::CheckpointDeleted(gone), None);
        assert_eq!(story.needs(), [8], "a living child stands on it");
        let deleted = || Event::SessionDeleted(SessionDeleted { op: 1 });
        story.on(PARENT, deleted(), None);
        assert_eq!(story.needs(), [8], "its parent may go");
        story.on(CHILD, deleted(), None);
        assert_eq!(story.needs(), [0; 0]);
    }

    #[test]
    fn what_is_recorded_of_a_snapshot_is_what_the_engine_is_held_to() {
        let record = SnapshotRecord {
            memory: MemoryRecord::Kept {
                bytes: 9,
                digest: "ab".repeat(32),
            },
            ..snapshot(5)
        };
        assert_eq!(recorded(of_record(&record).unwrap()), record);
        let garbled = SnapshotRecord {
            disk: "x".into(),
            ..snapshot(5)
        };
        assert_eq!(of_record(&garbled).unwrap_err().code(), "internal");
    }
}
