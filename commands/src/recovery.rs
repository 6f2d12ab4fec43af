//! What a starting daemon does about what the last one left.
//!
//! The ledger says what should exist; the machine says what does. What still runs is taken up again,
//! what nobody owns is removed, every intent without an outcome gets one, and the ledger says all of it.

mod changes;
mod file_work;
mod unheard;

use std::collections::HashSet;
use std::sync::Arc;

use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Event;
use fluxvm_projections::HostReconciled;
use fluxvm_projections::IdempotencyReleased;
use fluxvm_projections::KeyState;
use fluxvm_projections::LifecycleInterrupted;
use fluxvm_projections::Operation;
use fluxvm_projections::OperationKind;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionCreateFailed;
use fluxvm_projections::SessionStatus;
use fluxvm_vmm::AdoptError;
use fluxvm_vmm::Sandbox;
use tokio::task::JoinSet;

pub(crate) use unheard::Reached;

use crate::aftermath;
use crate::book::Entry;
use crate::caller::Caller;
use crate::delete;
use crate::engine::Inner;
use crate::engine::StartError;
use crate::engine::system;
use crate::error::CommandError;
use crate::exec;
use crate::jobs;
use crate::session_erasure;
use crate::snapshots;
use crate::uploads;

/// Sandboxes that are looked at side by side: each needs a connection and a few files.
const SESSIONS_AT_ONCE: usize = 32;

/// What was done about an interrupted operation that left the session as it was.
const ROLLED_BACK: &str = "rolled_back";

/// What to do about one session.
#[derive(Clone, Debug)]
enum Plan {
    /// Nothing of it can exist.
    Nothing,
    /// It was being made: remove what there is.
    AbandonCreate(Operation),
    /// It was being deleted: go through with it.
    FinishDelete(Operation),
    /// Its sandbox should run: take it up again.
    Adopt,
    /// It ended: remove what it left.
    CleanUp,
}

/// Brings the machine and the ledger into line.
pub(crate) async fn recover(inner: &Arc<Inner>) -> Result<(), StartError> {
    let caller = system("recovery")?;
    let found = inner.backend.list().await.map_err(StartError::List)?;
    let sessions: Vec<Session> = inner.book.world().sessions.iter().cloned().collect();
    let owned: HashSet<SandboxId> = sessions.iter().map(|session| session.sandbox_id).collect();

    let mut report = HostReconciled::default();
    let evaluations = changes::evaluations(&sessions);
    let mut sessions = sessions
        .into_iter()
        .map(|session| (plan(&session), session));
    let mut running = JoinSet::new();
    loop {
        while running.len() < SESSIONS_AT_ONCE {
            let Some((plan, session)) = sessions.next() else {
                break;
            };
            if !matches!(plan, Plan::Nothing) {
                let (inner, caller) = (Arc::clone(inner), caller.clone());
                running.spawn(async move { recover_session(&inner, &caller, session, plan).await });
            }
        }
        let Some(done) = running.join_next().await else {
            break;
        };
        let part = done.map_err(|error| CommandError::Internal(error.to_string()))??;
        add(&mut report, part);
    }
    for sandbox in found {
        let id = SandboxId(sandbox.uuid());
        if !owned.contains(&id) {
            remove_orphan(inner, &sandbox).await;
            report.removed.push(id);
        }
    }
    report.interrupted += changes::roll_back_evaluations(inner, &caller, evaluations).await?;
    // After every interrupted operation was closed, so that what it worked with is no longer needed.
    report.snapshots_removed = snapshots::sweep(inner)
        .await
        .map_err(StartError::Snapshots)?;
    remove_spools(inner).await;
    uploads::sweep_at_start(inner).await;
    release_keys(inner, &caller).await?;
    session_erasure::record_found(inner).await?;
    session_erasure::resume(inner, &caller).await?;
    report.adopted.sort_unstable();
    report.gone.sort_unstable();
    report.removed.sort_unstable();
    inner.append_host(Event::HostReconciled(report)).await?;
    Ok(())
}

/// What the ledger says should be done. Pure.
fn plan(session: &Session) -> Plan {
    if let Some(operation) = session.lifecycle() {
        match operation.kind {
            OperationKind::Delete => return Plan::FinishDelete(operation.clone()),
            OperationKind::Create => return Plan::AbandonCreate(operation.clone()),
            // Whatever was being made is owned by nobody and is removed as such; what the session has
            // is as it was.
            _ => {}
        }
    }
    match session.status {
        SessionStatus::Running => Plan::Adopt,
        SessionStatus::Gone => Plan::CleanUp,
        _ if session.cleaned_up && session.in_flight.is_empty() => Plan::Nothing,
        SessionStatus::Expired => Plan::CleanUp,
        _ => Plan::Nothing,
    }
}

async fn recover_session(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: Session,
    plan: Plan,
) -> Result<HostReconciled, CommandError> {
    match plan {
        Plan::Nothing => Ok(HostReconciled::default()),
        Plan::AbandonCreate(operation) => abandon_create(inner, caller, &session, &operation).await,
        Plan::FinishDelete(operation) => finish_delete(inner, caller, &session, &operation).await,
        Plan::CleanUp => clean_up(inner, caller, &session).await,
        Plan::Adopt => adopt(inner, caller, &session).await,
    }
}

async fn abandon_create(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
) -> Result<HostReconciled, CommandError> {
    remove_sandbox(inner, session).await?;
    let failed = Event::SessionCreateFailed(SessionCreateFailed {
        op: operation.seq,
        code: "interrupted".to_owned(),
        reason: "the daemon ended while the sandbox was being made; what there was is removed"
            .to_owned(),
    });
    inner
        .book
        .conclude(caller, session.id, operation.intent, Entry::new(failed))
        .await?;
    Ok(HostReconciled {
        interrupted: 1,
        ..HostReconciled::default()
    })
}

async fn finish_delete(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
) -> Result<HostReconciled, CommandError> {
    close_commands(
        inner,
        caller,
        session,
        "the session was deleted while it ran",
    )
    .await?;
    remove_sandbox(inner, session).await?;
    delete::complete(inner, caller, session.id, operation.seq, operation.intent).await?;
    Ok(HostReconciled {
        interrupted: 1,
        ..HostReconciled::default()
    })
}

async fn clean_up(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
) -> Result<HostReconciled, CommandError> {
    let open = close_commands(inner, caller, session, "its session ended while it ran").await?;
    remove_sandbox(inner, session).await?;
    if session.ended() && !session.cleaned_up {
        let entry = delete::cleaned_up();
        inner
            .book
            .append(caller, session.id.stream(), ExpectedVersion::Exists, entry)
            .await?;
    }
    Ok(HostReconciled {
        interrupted: open,
        ..HostReconciled::default()
    })
}

async fn adopt(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
) -> Result<HostReconciled, CommandError> {
    let id = fluxvm_vmm::SandboxId::new(session.sandbox_id.0);
    match inner.backend.adopt(&id).await {
        Ok(sandbox) => take_up(inner, caller, session, sandbox, Reached::already()).await,
        Err(AdoptError::Unresponsive {
            sandbox, source, ..
        }) => {
            tracing::warn!(session = %session.id, error = %source, "its guest daemon does not answer yet");
            let reached = unheard::ask(inner, session.id, &sandbox);
            take_up(inner, caller, session, sandbox, reached).await
        }
        Err(error @ AdoptError::Io { .. }) => Err(CommandError::Internal(error.to_string())),
        Err(error) => {
            let open =
                close_commands(inner, caller, session, "its sandbox ended while it ran").await?;
            let sandbox_id = session.sandbox_id;
            inner
                .sandbox_gone(session.id, sandbox_id, error.to_string())
                .await?;
            remove_sandbox(inner, session).await?;
            let gone = vec![session.id];
            Ok(HostReconciled {
                gone,
                interrupted: open,
                ..HostReconciled::default()
            })
        }
    }
}

/// Takes up a living sandbox and every command that was under way in it.
async fn take_up(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    sandbox: Arc<dyn Sandbox>,
    reached: Reached,
) -> Result<HostReconciled, CommandError> {
    let adopted = vec![session.id];
    let mut report = HostReconciled {
        adopted,
        ..HostReconciled::default()
    };
    inner.sandboxes.insert(session.id, Arc::clone(&sandbox));
    inner.watch_exit(session.id, Arc::clone(&sandbox));
    // An evaluation ends with its children, which are sessions that may not have been taken up yet.
    let open = session.in_flight.iter();
    for operation in open.filter(|it| !changes::is_evaluation(it)) {
        if let Some(job) = jobs::resume(inner, session, operation) {
            report.commands_resumed += 1;
            jobs::take_up(inner, caller, job, &sandbox, reached.clone());
            continue;
        }
        if operation.kind.is_file_work() {
            report.interrupted += 1;
            if reached.is_already() {
                file_work::recover(inner, caller, session, operation, &sandbox).await?;
            } else {
                file_work::recover_later(inner, caller, session, operation, &sandbox, &reached);
            }
            continue;
        }
        let Some(running) = exec::resume(session, operation) else {
            if !changes::give_up_promotion(inner, caller, session, operation).await? {
                interrupt(inner, caller, session, operation).await?;
            }
            report.interrupted += 1;
            continue;
        };
        report.commands_resumed += 1;
        let (inner, caller) = (Arc::clone(inner), caller.clone());
        let (sandbox, reached) = (Arc::clone(&sandbox), reached.clone());
        tokio::spawn(async move {
            reached.wait().await;
            let done = exec::resume_to_end(&inner, &caller, &running, &sandbox).await;
            if let Err(error) = done {
                tracing::warn!(session = %running.session, %error, "a command was not taken up");
            }
        });
    }
    Ok(report)
}

/// Records that every open operation of a session has no outcome. Answers how many there were.
async fn close_commands(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    reason: &str,
) -> Result<u64, CommandError> {
    let mut closed = 0;
    for operation in &session.in_flight {
        let ends_elsewhere = matches!(
            operation.kind,
            OperationKind::Create | OperationKind::Delete | OperationKind::Evaluate { .. }
        );
        if ends_elsewhere {
            continue;
        }
        closed += 1;
        if let Some(job) = jobs::resume(inner, session, operation) {
            jobs::close(inner, caller, &job, reason).await?;
            continue;
        }
        match exec::resume(session, operation) {
            None => interrupt(inner, caller, session, operation).await?,
            Some(running) => {
                let failed =
                    exec::fail(inner, caller, &running, "sandbox_gone", reason.to_owned()).await;
                if !matches!(failed, CommandError::ExecFailed { .. }) {
                    return Err(failed);
                }
            }
        }
    }
    Ok(closed)
}

async fn interrupt(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
) -> Result<(), CommandError> {
    // An operation on snapshots has changed nothing before its outcome, and a search never does.
    let searched = matches!(operation.kind, OperationKind::Bisect);
    let rolled_back = searched || operation.kind.snapshots() != [None, None];
    let entry = interruption(operation, rolled_back.then_some(ROLLED_BACK));
    inner
        .book
        .conclude(caller, session.id, operation.intent, entry)
        .await?;
    Ok(())
}

/// The event that says that an operation was cut off, and what became of it.
fn interruption(operation: &Operation, resolution: Option<&str>) -> Entry {
    Entry::new(Event::LifecycleInterrupted(LifecycleInterrupted {
        op: operation.kind.name().to_owned(),
        seq: operation.seq,
        started_at: operation.started_at,
        resolution: resolution.map(str::to_owned),
    }))
}

async fn remove_sandbox(inner: &Arc<Inner>, session: &Session) -> Result<(), CommandError> {
    let id = fluxvm_vmm::SandboxId::new(session.sandbox_id.0);
    let removed = inner.backend.remove(&id).await;
    removed.map_err(|error| CommandError::RemoveFailed(error.to_string()))?;
    Ok(())
}

/// Removes the kept outputs of jobs whose session ended.
async fn remove_spools(inner: &Arc<Inner>) {
    for id in inner.spools.sessions() {
        let owned = {
            let world = inner.book.world();
            let session = world.sessions.get(id);
            session.is_some_and(|session| !session.ended())
        };
        if !owned {
            inner.remove_spools(id).await;
        }
    }
}

async fn remove_orphan(inner: &Arc<Inner>, id: &fluxvm_vmm::SandboxId) {
    if let Err(error) = inner.backend.remove(id).await {
        // It is found again at the next start.
        tracing::warn!(sandbox = %id, %error, "a sandbox that no session owns was not removed");
    }
}

/// Frees idempotency keys whose requests came to nothing. A key whose request did something stays taken;
/// a retry gets what was done.
async fn release_keys(inner: &Arc<Inner>, caller: &Caller) -> Result<(), CommandError> {
    let open: Vec<(String, KeyState)> = {
        let world = inner.book.world();
        world
            .idempotency
            .unanswered()
            .map(|(name, key)| (name.to_owned(), key.clone()))
            .collect()
    };
    for (name, key) in open {
        if aftermath::effect(inner, &key).await?.is_some() {
            continue;
        }
        let stream =
            StreamName::parse(&name).map_err(|error| CommandError::Internal(error.to_string()))?;
        let released = IdempotencyReleased {
            reason: "interrupted".to_owned(),
        };
        let entry = Entry::new(Event::IdempotencyReleased(released));
        let expected = ExpectedVersion::Exact(key.version);
        inner.book.append(caller, stream, expected, entry).await?;
    }
    Ok(())
}

fn add(report: &mut HostReconciled, part: HostReconciled) {
    report.adopted.extend(part.adopted);
    report.gone.extend(part.gone);
    report.removed.extend(part.removed);
    report.interrupted += part.interrupted;
    report.commands_resumed += part.commands_resumed;
}
