//! A recorded promotion, done again in another session: the set of changes as it was sent then.

use std::io;
use std::sync::Arc;

use fluxvm_projections::ChangesApplied;
use fluxvm_projections::ChangesStarted;
use fluxvm_projections::Event;
use fluxvm_projections::Promoted;
use fluxvm_projections::SessionId;
use futures_util::StreamExt;
use futures_util::stream;

use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::work;

/// Applies it in the target's workspace. Answers the ledger number of the target's outcome.
pub(crate) async fn redo(
    inner: &Arc<Inner>,
    caller: &Caller,
    (source, target): (SessionId, SessionId),
    (seq, recorded): (u64, &Promoted),
) -> Result<u64, CommandError> {
    inner.check_room()?;
    let started = ChangesStarted { source, seq };
    let begun = work::begin(inner, caller, target, |session| {
        files::check_writable(session, &session.workspace.path)?;
        Ok(Entry::new(Event::ChangesStarted(started.clone())))
    })
    .await?;
    crash::point("changes.intent");
    let reader = Arc::clone(inner);
    let portions = stream::iter(recorded.blobs.clone()).then(move |blob| {
        let reader = Arc::clone(&reader);
        async move {
            let content = reader.content(Some(source), &blob).await;
            content.map_err(io::Error::other)
        }
    });
    let folder = begun.session.workspace.path.clone();
    let guest = begun.sandbox.guest();
    let applied = guest.apply_changes(&folder, portions).await;
    crash::point("changes.done");
    match applied {
        Ok(()) => {
            let paths = [&recorded.added, &recorded.modified, &recorded.deleted];
            let done = ChangesApplied {
                op: begun.op,
                source,
                seq,
                paths: paths.iter().map(|paths| paths.len() as u64).sum(),
            };
            begun.end(inner, caller, Event::ChangesApplied(done)).await
        }
        Err(error) => {
            let error = CommandError::NotApplied {
                reason: error.to_string(),
                outcome: "the target may have a part of it".to_owned(),
            };
            Err(files::fail(inner, caller, &begun, "changes", &folder, error).await)
        }
    }
}
