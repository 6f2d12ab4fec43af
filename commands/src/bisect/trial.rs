//! How a test ends in a state.

use std::sync::Arc;

use fluxvm_projections::BisectVerdict;
use fluxvm_projections::Session;
use fluxvm_projections::SnapshotRecord;

use super::Bisect;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::lab::Lab;
use crate::limits::EXEC_TIMEOUT_DEFAULT_MS;
use crate::lineage::Step;

/// A test of one session's states.
pub(super) struct Trial<'a> {
    inner: &'a Arc<Inner>,
    session: &'a Session,
    test: &'a str,
    timeout_ms: u64,
}

impl<'a> Trial<'a> {
    pub(super) fn new(inner: &'a Arc<Inner>, session: &'a Session, request: &'a Bisect) -> Self {
        Self {
            inner,
            session,
            test: &request.test,
            timeout_ms: request.timeout_ms.unwrap_or(EXEC_TIMEOUT_DEFAULT_MS),
        }
    }

    /// Whether the test passes in a state, after these steps were done in it.
    pub(super) async fn test(
        &mut self,
        name: &str,
        snapshot: &SnapshotRecord,
        steps: &[Arc<Step>],
        tested: &mut Vec<BisectVerdict>,
    ) -> Result<bool, CommandError> {
        let lab = Lab::open(self.inner, self.session, Some(snapshot)).await?;
        crash::point("bisect.revived");
        let exit_code = self.look(&lab, steps).await;
        lab.close().await;
        let exit_code = exit_code?;
        tested.push(BisectVerdict {
            state: name.to_owned(),
            exit_code,
            good: exit_code == 0,
        });
        Ok(exit_code == 0)
    }

    async fn look(&self, lab: &Lab<'_>, steps: &[Arc<Step>]) -> Result<i32, CommandError> {
        lab.redo(steps).await?;
        lab.run(self.test, self.timeout_ms).await
    }
}
