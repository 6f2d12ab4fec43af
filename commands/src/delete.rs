//! Delete a session: intent, removal of everything, outcome.

use std::sync::Arc;
use std::time::Duration;

use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Filter;
use fluxvm_projections::Event;
use fluxvm_projections::LifecycleInterrupted;
use fluxvm_projections::OperationKind;
use fluxvm_projections::Session;
use fluxvm_projections::SessionCleanedUp;
use fluxvm_projections::SessionDeleteStarted;
use fluxvm_projections::SessionDeleted;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;

use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;
use crate::holds;
use crate::snapshots;
use crate::uploads;

/// How long a deletion waits for commands of the removed sandbox to record that they ended with it. Their
/// connections break with the sandbox, so this is a matter of milliseconds.
const COMMANDS_END_WAIT: Duration = Duration::from_secs(5);

/// Deletes a session.
pub(crate) async fn delete(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    if_match: Option<u64>,
) -> Result<(), CommandError> {
    let turn = inner.turns.take(id).await;
    if let Some(done) = already_done(&inner.book.session(caller, id)?, if_match) {
        return done;
    }
    let hold = inner.book.world().holds.covering(Some(id)).cloned();
    if let Some(hold) = hold {
        return Err(holds::refuse_delete(inner, caller, id, hold).await);
    }
    let (session, intent) = inner
        .book
        .decide(caller, id, |session| decide(session, if_match))
        .await?;
    drop(turn);
    crash::point("delete.intent");
    let op = intent.header.seq.get();
    if let Err(error) = remove(inner, &session).await {
        let interrupted = Event::LifecycleInterrupted(LifecycleInterrupted {
            op: OperationKind::Delete.name().to_owned(),
            seq: op,
            started_at: inner.clock.now(),
            resolution: None,
        });
        inner
            .book
            .conclude(caller, id, intent.header.event_id, Entry::new(interrupted))
            .await?;
        return Err(error);
    }
    crash::point("delete.removed");
    complete(inner, caller, id, op, intent.header.event_id).await?;
    crash::point("delete.outcome");
    snapshots::release_all(inner, &session);
    // The session's last word is signed. The next checkpoint covers it too if this one cannot be made.
    if let Err(error) = inner.book.ledger().checkpoint().await {
        tracing::warn!(session = %id, %error, "the end of a session was not signed at once");
    }
    Ok(())
}

/// Records a deletion whose removal is done, and that nothing is left.
pub(crate) async fn complete(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    op: u64,
    intent: fluxvm_eventstore::EventId,
) -> Result<(), CommandError> {
    let deleted = Entry::new(Event::SessionDeleted(SessionDeleted { op })).caused_by(intent);
    let mut entries = vec![deleted];
    if !inner.book.session(caller, id)?.cleaned_up {
        entries.push(cleaned_up());
    }
    inner
        .book
        .append_all(caller, id.stream(), ExpectedVersion::Exists, entries)
        .await?;
    Ok(())
}

/// Ends and removes a session's sandbox and waits until its commands have said so.
pub(crate) async fn remove(inner: &Arc<Inner>, session: &Session) -> Result<(), CommandError> {
    let sandbox = inner.sandboxes.take(session.id);
    let removed = match &sandbox {
        Some(sandbox) => sandbox.destroy().await,
        None => {
            let id = fluxvm_vmm::SandboxId::new(session.sandbox_id.0);
            inner.backend.remove(&id).await
        }
    };
    if let Err(error) = removed {
        // It is still ours to remove.
        if let Some(sandbox) = sandbox {
            inner.sandboxes.insert(session.id, sandbox);
        }
        return Err(CommandError::RemoveFailed(error.to_string()));
    }
    let waited = tokio::time::timeout(COMMANDS_END_WAIT, commands_ended(inner, session.id));
    if waited.await.is_err() {
        tracing::warn!(session = %session.id, "commands of a removed sandbox are still open");
    }
    inner.remove_spools(session.id).await;
    uploads::drop_parts_of_session(inner, session.id).await;
    Ok(())
}

/// The event that says that nothing of an ended session is left.
pub(crate) fn cleaned_up() -> Entry {
    Entry::new(Event::SessionCleanedUp(SessionCleanedUp {}))
}

/// What a repeated or outdated request is answered without a decision.
fn already_done(session: &Session, if_match: Option<u64>) -> Option<Result<(), CommandError>> {
    if session.status == SessionStatus::Deleted || session.erased {
        return Some(Ok(()));
    }
    gate::revision(session, if_match).err().map(Err)
}

fn decide(session: &Session, if_match: Option<u64>) -> Result<Entry, CommandError> {
    gate::revision(session, if_match)?;
    gate::no_lifecycle(session)?;
    Ok(Entry::new(Event::SessionDeleteStarted(
        SessionDeleteStarted {
            sandbox_id: Some(session.sandbox_id),
        },
    )))
}

async fn commands_ended(inner: &Arc<Inner>, id: SessionId) {
    let ledger = inner.book.ledger();
    let mut changes = ledger.subscribe(Filter::Stream(id.stream()), ledger.head().position);
    let open = || {
        let world = inner.book.world();
        let session = world.sessions.get(id);
        let is_awaited = |kind: &OperationKind| {
            let ends_with_it = matches!(kind, OperationKind::RewindPoint { .. });
            ends_with_it || kind.is_command() || kind.is_file_work()
        };
        session.is_some_and(|it| it.in_flight.iter().any(|open| is_awaited(&open.kind)))
    };
    while open() {
        if !matches!(changes.next().await, Some(Ok(_))) {
            return;
        }
    }
}
