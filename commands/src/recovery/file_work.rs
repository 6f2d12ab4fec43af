//! Writes, removals, uploads and git verbs that the last daemon left without an outcome.

use std::sync::Arc;
use std::time::Duration;

use fluxvm_projections::Event;
use fluxvm_projections::Operation;
use fluxvm_projections::Session;
use fluxvm_projections::UploadId;
use fluxvm_vmm::Sandbox;

use super::Reached;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::git;
use crate::uploads;
use crate::work;

/// How long the look at one guest may take: a guest that does not answer must not keep the daemon from
/// starting.
const LOOK_TIME_MAX: Duration = Duration::from_secs(10);

/// Finds out what became of one, finishes it where that is safe, and records which.
pub(super) async fn recover(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
    sandbox: &Arc<dyn Sandbox>,
) -> Result<(), CommandError> {
    let intent = work::event_at(inner, operation.seq)?;
    if let Some(Event::FileUploadStarted(started)) = &intent {
        finish_upload(inner, caller, session, operation, sandbox, started.upload);
        return Ok(());
    }
    let look = async {
        match &intent {
            Some(intent) => match files::recover(sandbox.as_ref(), operation.seq, intent).await {
                None => git::recover(session, sandbox, operation.seq, intent).await,
                found => found,
            },
            None => None,
        }
    };
    let Ok(Some(outcome)) = tokio::time::timeout(LOOK_TIME_MAX, look).await else {
        return super::interrupt(inner, caller, session, operation).await;
    };
    inner
        .book
        .conclude(caller, session.id, operation.intent, Entry::new(outcome))
        .await?;
    Ok(())
}

/// The same for a guest that does not answer yet: the daemon does not wait for it to start.
pub(super) fn recover_later(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
    sandbox: &Arc<dyn Sandbox>,
    reached: &Reached,
) {
    let (inner, caller, session) = (Arc::clone(inner), caller.clone(), session.clone());
    let (operation, sandbox) = (operation.clone(), Arc::clone(sandbox));
    let reached = reached.clone();
    tokio::spawn(async move {
        reached.wait().await;
        let done = recover(&inner, &caller, &session, &operation, &sandbox).await;
        if let Err(error) = done {
            tracing::warn!(session = %session.id, %error, "an interrupted change was not looked at");
        }
    });
}

/// Goes through with an upload, as with a command: the daemon does not wait for it to start.
fn finish_upload(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    operation: &Operation,
    sandbox: &Arc<dyn Sandbox>,
    upload: UploadId,
) {
    let (inner, caller, session) = (Arc::clone(inner), caller.clone(), session.clone());
    let (sandbox, begun) = (Arc::clone(sandbox), (operation.seq, operation.intent));
    tokio::spawn(async move {
        let done =
            uploads::finish_interrupted(&inner, &caller, &session, begun, &sandbox, upload).await;
        if let Err(error) = done {
            tracing::warn!(session = %session.id, %upload, %error, "an upload was not finished");
        }
    });
}
