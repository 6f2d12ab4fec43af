//! Removing a file, a link or a tree.

use std::sync::Arc;

use agentd_protocol::EntryKind;
use fluxvm_projections::Event;
use fluxvm_projections::FileDeleteStarted;
use fluxvm_projections::FileDeleted;
use fluxvm_projections::SessionId;

use super::DeleteFile;
use super::GuestPath;
use super::check_removable;
use super::write::fail;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guest;
use crate::work;

/// Removes. Answers the outcome with its ledger number.
pub(crate) async fn delete(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: DeleteFile,
) -> Result<(u64, FileDeleted), CommandError> {
    let asked = FileDeleteStarted {
        path: GuestPath::parse_removable(&request.path)?.into_string(),
        recursive: request.recursive,
    };
    let begun = work::begin(inner, caller, id, |session| {
        check_removable(session, &asked.path)?;
        Ok(Entry::new(Event::FileDeleteStarted(asked.clone())))
    })
    .await?;
    crash::point("file.delete.intent");
    let call = begun
        .sandbox
        .guest()
        .remove_file(&asked.path, asked.recursive);
    let removed = guest::ask(begun.sandbox.as_ref(), call).await;
    crash::point("file.delete.done");
    match removed {
        Ok(removed) => {
            let outcome = FileDeleted {
                op: begun.op,
                path: asked.path,
                recursive: asked.recursive,
                kind: kind_name(removed.kind).to_owned(),
                size: removed.size,
                entries: removed.entries,
                recovered: false,
            };
            let event = Event::FileDeleted(outcome.clone());
            let seq = begun.end(inner, caller, event).await?;
            Ok((seq, outcome))
        }
        Err(error) => Err(fail(inner, caller, &begun, "delete", &asked.path, error).await),
    }
}

fn kind_name(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Dir => "dir",
        EntryKind::Symlink => "symlink",
        EntryKind::Other => "other",
    }
}
