//! Create a session: intent, sandbox, outcome.

mod decide;

use std::sync::Arc;
use std::time::Instant;

use fluxvm_eventstore::EventId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_projections::Event;
use fluxvm_projections::HttpUnenforced;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SessionCreateFailed;
use fluxvm_projections::SessionCreated;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;
use uuid::Uuid;

use crate::book::Entry;
use crate::caller::Caller;
use crate::capabilities;
use crate::confinement;
use crate::confinement::Reach;
use crate::confinement::Terms;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::policy::Enforceable;
use crate::request::CreateSession;
use crate::spec;
use crate::spec::Machine;

/// Makes a session. On any failure nothing of its sandbox is left, and the ledger says why.
pub(crate) async fn create(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: CreateSession,
) -> Result<Session, CommandError> {
    inner.check_room()?;
    let started_at = Instant::now();
    let engine = inner.backend.capabilities();
    let context = decide::Context {
        now: inner.clock.now(),
        tenant: caller.tenant.clone(),
        sandbox_id: SandboxId(Uuid::new_v4()),
        backend: inner.backend.name().to_owned(),
        cpu_limit: engine.cpu_limit,
        memory_limit: engine.memory_limit,
        can: Enforceable {
            confinement: engine.confinement,
            exec_allowlist: engine.exec_allowlist,
            network: engine.http_policy,
        },
    };
    let require_ready = request.workspace.require_ready;
    let asked = decide::decide(request, context)?;
    let spec = spec::sandbox(Machine {
        sandbox_id: asked.sandbox_id,
        runtime: &asked.runtime,
        workspace: &asked.workspace,
        budget: asked.budget.as_ref(),
        hostname: asked.sandbox_id.machine_name(),
    })?;
    let id = SessionId(Uuid::new_v4());
    let intent = Entry::new(Event::SessionCreateStarted(asked.clone()));
    let intent = inner
        .book
        .append(caller, id.stream(), ExpectedVersion::NoStream, intent)
        .await?;
    let op = Op {
        id,
        seq: intent.header.seq.get(),
        intent: intent.header.event_id,
    };

    crash::point("create.intent");
    let sandbox = match inner.backend.create(spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Err(fail(inner, caller, op, error.into()).await),
    };
    let mut capabilities = capabilities::recorded(&engine);
    let terms = Terms::asked(&asked, &capabilities);
    let confines_files = Reach::of(&terms).is_some();
    let enforcement = match confinement::trial(&terms, sandbox.as_ref()).await {
        Ok(report) => report,
        Err(error) => {
            remove_quietly(sandbox.as_ref()).await;
            return Err(fail(inner, caller, op, error).await);
        }
    };
    if let Some(report) = enforcement.as_ref().filter(|_| confines_files) {
        capabilities.landlock_abi = report.landlock_abi;
        capabilities.confinement &= report.filesystem;
        capabilities.exec_allowlist &= report.filesystem;
    }
    let workspace_note = decide::workspace_note(&asked);
    if let (true, Some(note)) = (require_ready, &workspace_note) {
        let error = CommandError::WorkspaceNotReady(note.clone());
        remove_quietly(sandbox.as_ref()).await;
        return Err(fail(inner, caller, op, error).await);
    }
    let created = Event::SessionCreated(SessionCreated {
        op: op.seq,
        agent: asked.agent,
        sandbox_id: asked.sandbox_id,
        backend: asked.backend,
        capabilities,
        enforcement: enforcement.map(Box::new),
        workspace_note,
        duration_ms: u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        forked: None,
    });
    let mut entries = vec![Entry::new(created).caused_by(op.intent)];
    if let Some(reason) = asked.policy.network_unenforced {
        let unenforced = Event::HttpUnenforced(HttpUnenforced { reason });
        entries.push(Entry::new(unenforced));
    }
    crash::point("create.sandbox");
    // Registered before the outcome is known to anyone, so that the first command finds it.
    inner.sandboxes.insert(id, Arc::clone(&sandbox));
    if let Err(error) = inner
        .book
        .append_all(caller, id.stream(), ExpectedVersion::Exists, entries)
        .await
    {
        inner.sandboxes.take(id);
        remove_quietly(sandbox.as_ref()).await;
        return Err(error);
    }
    crash::point("create.outcome");
    inner.watch_exit(id, sandbox);
    inner.book.session(caller, id)
}

/// The intent that an effect belongs to.
#[derive(Clone, Copy)]
struct Op {
    id: SessionId,
    seq: u64,
    intent: EventId,
}

/// Records why no session came of it. When even that fails, that is the error: the ledger comes first.
async fn fail(inner: &Inner, caller: &Caller, op: Op, error: CommandError) -> CommandError {
    let failed = Event::SessionCreateFailed(SessionCreateFailed {
        op: op.seq,
        code: error.code().to_owned(),
        reason: error.to_string(),
    });
    match inner
        .book
        .conclude(caller, op.id, op.intent, Entry::new(failed))
        .await
    {
        Ok(_) => error,
        Err(unrecorded) => unrecorded,
    }
}

async fn remove_quietly(sandbox: &dyn Sandbox) {
    if let Err(error) = sandbox.destroy().await {
        // The next start finds it, because no session owns it.
        tracing::warn!(sandbox = %sandbox.id(), %error, "a sandbox could not be removed");
    }
}
