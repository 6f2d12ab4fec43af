//! Sandboxes in which a session's past is looked at: made from a kept state, or as the session began, with
//! what was done since done again. No session owns them, so that a daemon that ends meanwhile leaves them to
//! the next start.

use std::sync::Arc;

use agentd_client::ClientError;
use agentd_client::FileOrder;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::Sandbox;
use uuid::Uuid;

use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::lineage::Again;
use crate::lineage::Deed;
use crate::lineage::Step;
use crate::revive;
use crate::revive::Who;
use crate::spec;
use crate::spec::Machine;

/// Such a sandbox. Whoever made it has to remove it.
pub(crate) struct Lab<'a> {
    inner: &'a Arc<Inner>,
    session: &'a Session,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

impl<'a> Lab<'a> {
    /// Makes one of what was kept; of the session's image when that is `None`.
    pub(crate) async fn open(
        inner: &'a Arc<Inner>,
        session: &'a Session,
        snapshot: Option<&SnapshotRecord>,
    ) -> Result<Self, CommandError> {
        let sandbox_id = SandboxId(Uuid::new_v4());
        let hostname = session.machine_name();
        let sandbox = match snapshot {
            Some(snapshot) => {
                let who = Who {
                    sandbox_id,
                    hostname,
                    identity: IdentityMode::BestEffort,
                };
                let revived = revive::revive(inner, session, snapshot, who).await?;
                revived.sandbox
            }
            None => {
                let spec = spec::sandbox(Machine {
                    sandbox_id,
                    runtime: &session.runtime,
                    workspace: &session.workspace,
                    budget: session.budget.as_ref(),
                    hostname,
                })?;
                inner.backend.create(spec).await?
            }
        };
        Ok(Self {
            inner,
            session,
            sandbox,
        })
    }

    /// Does again what was done. However it ends: that is what it did the first time, too.
    pub(crate) async fn redo(&self, steps: &[Arc<Step>]) -> Result<(), CommandError> {
        for step in steps {
            match &step.deed {
                Deed::Command {
                    command,
                    timeout_ms,
                    ..
                } => {
                    self.run(command, *timeout_ms).await?;
                }
                Deed::Path {
                    path,
                    again: Some(again),
                    ..
                } => self.path_again(path, again).await?,
                _ => {
                    return Err(CommandError::Internal(format!(
                        "event {} is nothing that can be done again",
                        step.seq
                    )));
                }
            }
        }
        Ok(())
    }

    async fn path_again(&self, path: &str, again: &Again) -> Result<(), CommandError> {
        let guest = self.sandbox.guest();
        let done = match again {
            Again::Delete { recursive } => guest.remove_file(path, *recursive).await.map(drop),
            Again::Write {
                size,
                mode,
                parents,
                blobs,
            } => {
                let mut portions = Vec::new();
                for blob in blobs {
                    portions.push(Ok(self.inner.content(Some(self.session.id), blob).await?));
                }
                let order = FileOrder {
                    path: path.to_owned(),
                    size: *size,
                    sha256: None,
                    mode: *mode,
                    parents: *parents,
                };
                let portions = futures_util::stream::iter(portions);
                guest.place_file(&order, portions).await.map(drop)
            }
        };
        match done {
            Ok(()) | Err(ClientError::Refused { .. }) => Ok(()),
            Err(error) => Err(CommandError::ExecFailed {
                code: "guest_unreachable".to_owned(),
                reason: error.to_string(),
            }),
        }
    }

    /// Runs a command and answers its exit code.
    pub(crate) async fn run(&self, command: &str, timeout_ms: u64) -> Result<i32, CommandError> {
        exec::unrecorded(self.inner, self.session, &self.sandbox, command, timeout_ms).await
    }

    /// Removes it.
    pub(crate) async fn close(self) {
        revive::discard(self.sandbox.as_ref()).await;
    }
}

/// The first step that cannot be done again, and why.
pub(crate) fn unrepeatable(steps: &[Arc<Step>]) -> Option<(u64, &'static str)> {
    steps
        .iter()
        .find_map(|step| Some((step.seq, step.deed.unrepeatable()?)))
}
