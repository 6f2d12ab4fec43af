//! A session's sandbox from a snapshot, in place of the one that it has.
//!
//! The old one stays until the outcome is recorded. A failure or a crash before that leaves the session
//! as it was, and a half-made sandbox that no session owns; after it the old one is owned by nobody.
//! Either is removed by whoever finds it: this code, or the next start.

use std::sync::Arc;

use fluxvm_projections::IdentityMode;
use fluxvm_projections::RevivalRecord;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::Sandbox;

use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::REVIVE_TIME_MAX;
use crate::snapshots;
use crate::spec;
use crate::spec::Machine;

/// A sandbox made from a snapshot that no session owns yet.
pub(crate) struct Revived {
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) revival: RevivalRecord,
}

/// Who a sandbox is that is to be made from a snapshot.
pub(crate) struct Who {
    pub(crate) sandbox_id: SandboxId,
    pub(crate) hostname: String,
    pub(crate) identity: IdentityMode,
}

impl Who {
    /// The session itself, in another sandbox.
    pub(crate) fn same(session: &Session, sandbox_id: SandboxId) -> Self {
        Self {
            sandbox_id,
            hostname: session.machine_name(),
            identity: IdentityMode::Preserve,
        }
    }
}

/// Makes a sandbox like the session's from a snapshot. The engine holds the disk to the recorded digest.
pub(crate) async fn revive(
    inner: &Inner,
    session: &Session,
    snapshot: &SnapshotRecord,
    who: Who,
) -> Result<Revived, CommandError> {
    let spec = spec::sandbox(Machine {
        sandbox_id: who.sandbox_id,
        runtime: &session.runtime,
        workspace: &session.workspace,
        budget: session.budget.as_ref(),
        hostname: who.hostname,
    })?;
    let snapshot = snapshots::of_record(snapshot)?;
    let identity = snapshots::identity(who.identity);
    let revived = inner.backend.revive(spec, &snapshot, identity);
    match tokio::time::timeout(REVIVE_TIME_MAX, revived).await {
        Ok(revived) => {
            let revived = revived?;
            Ok(Revived {
                sandbox: revived.sandbox,
                revival: snapshots::revival(revived.report),
            })
        }
        Err(_) => Err(CommandError::SnapshotLate {
            what: "no sandbox was made of the snapshot",
            seconds: REVIVE_TIME_MAX.as_secs(),
        }),
    }
}

/// A sandbox that took another one's place, until that is recorded.
pub(crate) struct Swap {
    session: Session,
    new: Arc<dyn Sandbox>,
    old: Option<Arc<dyn Sandbox>>,
}

impl Swap {
    /// Puts the new sandbox in the session's place. The caller holds the lifecycle slot and no command
    /// runs, so that nobody looks for it meanwhile; once the outcome is recorded, everybody finds it.
    pub(crate) fn begin(inner: &Inner, session: Session, new: Arc<dyn Sandbox>) -> Self {
        let old = inner.sandboxes.replace(session.id, Arc::clone(&new));
        Self { session, new, old }
    }

    /// The outcome is recorded. The old sandbox goes in the background: nobody waits for it.
    pub(crate) fn commit(self, inner: &Arc<Inner>) {
        inner.watch_exit(self.session.id, self.new);
        let inner = Arc::clone(inner);
        tokio::spawn(async move {
            let removed = match &self.old {
                Some(old) => old.destroy().await,
                None => {
                    let id = fluxvm_vmm::SandboxId::new(self.session.sandbox_id.0);
                    inner.backend.remove(&id).await
                }
            };
            if let Err(error) = removed {
                // The next start finds it, because no session owns it.
                tracing::warn!(session = %self.session.id, %error, "a replaced sandbox was not removed");
            }
        });
    }

    /// The outcome could not be recorded: the session keeps the sandbox that it had.
    pub(crate) async fn undo(self, inner: &Inner) {
        match self.old {
            Some(old) => inner.sandboxes.insert(self.session.id, old),
            None => drop(inner.sandboxes.take(self.session.id)),
        }
        discard(self.new.as_ref()).await;
    }
}

/// Removes a sandbox that no session owns.
pub(crate) async fn discard(sandbox: &dyn Sandbox) {
    if let Err(error) = sandbox.destroy().await {
        // The next start finds it, because no session owns it.
        tracing::warn!(sandbox = %sandbox.id(), %error, "a sandbox could not be removed");
    }
}
