//! Sandboxes in which states are looked at. No session owns them.

use std::sync::Arc;

use fluxvm_projections::BisectVerdict;
use fluxvm_projections::IdentityMode;
use fluxvm_projections::SandboxId;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;
use fluxvm_vmm::Sandbox;
use uuid::Uuid;

use super::Bisect;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::exec;
use crate::limits::EXEC_TIMEOUT_DEFAULT_MS;
use crate::lineage::Step;
use crate::revive;
use crate::revive::Who;

/// Where states of one session are looked at.
pub(super) struct Lab<'a> {
    inner: &'a Arc<Inner>,
    session: &'a Session,
    test: &'a str,
    timeout_ms: u64,
}

impl<'a> Lab<'a> {
    pub(super) fn new(inner: &'a Arc<Inner>, session: &'a Session, request: &'a Bisect) -> Self {
        Self {
            inner,
            session,
            test: &request.test,
            timeout_ms: request.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS),
        }
    }

    /// Whether the test passes in a state, after these commands ran in it.
    pub(super) async fn test(
        &mut self,
        name: &str,
        snapshot: &SnapshotRecord,
        steps: &[Arc<Step>],
        tested: &mut Vec<BisectVerdict>,
    ) -> Result<bool, CommandError> {
        let sandbox_id = SandboxId(Uuid::new_v4());
        let who = Who {
            sandbox_id,
            hostname: self.session.machine_name(),
            identity: IdentityMode::BestEffort,
        };
        let revived = revive::revive(self.inner, self.session, snapshot, who).await?;
        crash::point("bisect.revived");
        let sandbox = revived.sandbox;
        let exit_code = self.look(&sandbox, steps).await;
        revive::discard(sandbox.as_ref()).await;
        let exit_code = exit_code?;
        tested.push(BisectVerdict {
            state: name.to_owned(),
            exit_code,
            good: exit_code == 0,
        });
        Ok(exit_code == 0)
    }

    async fn look(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        steps: &[Arc<Step>],
    ) -> Result<i32, CommandError> {
        for step in steps {
            // However it ends: that is what it did the first time, too.
            self.run(sandbox, &step.command, step.timeout_ms).await?;
        }
        self.run(sandbox, self.test, self.timeout_ms).await
    }

    async fn run(
        &self,
        sandbox: &Arc<dyn Sandbox>,
        command: &str,
        timeout_ms: u64,
    ) -> Result<i32, CommandError> {
        exec::unrecorded(self.inner, self.session, sandbox, command, timeout_ms).await
    }
}
