//! Writing a file.

use std::sync::Arc;

use agentd_client::FileOrder;
use agentd_protocol::FileFault;
use agentd_protocol::Placed;
use bytes::Bytes;
use fluxvm_eventstore::ATTACHMENT_BYTES_MAX;
use fluxvm_eventstore::AppendError;
use fluxvm_projections::Event;
use fluxvm_projections::FileFailed;
use fluxvm_projections::FileWriteStarted;
use fluxvm_projections::FileWritten;
use fluxvm_projections::Recording;
use fluxvm_projections::SessionId;

use super::GuestPath;
use super::WriteAnswer;
use super::WriteFile;
use super::check_writable;
use super::mode;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guest;
use crate::limits::FILE_WRITE_BYTES_MAX;
use crate::work;
use crate::work::Begun;

const _: () = assert!(FILE_WRITE_BYTES_MAX <= ATTACHMENT_BYTES_MAX as u64);

/// Writes a file.
pub(crate) async fn write(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: WriteFile,
) -> Result<WriteAnswer, CommandError> {
    let (mut asked, content) = check(request)?;
    let session = inner.book.session(caller, id)?;
    if session.record == Recording::Full && !content.is_empty() {
        asked.blobs = vec![asked.digest.clone()];
    }
    let begun = match begin(inner, caller, id, &asked, &content).await {
        Err(CommandError::Ledger(AppendError::Blob { reason })) => {
            tracing::error!(%reason, "a file's content was not stored; only its digest is recorded");
            asked.blobs = Vec::new();
            begin(inner, caller, id, &asked, &content).await?
        }
        begun => begun?,
    };
    crash::point("file.write.intent");
    let order = FileOrder {
        path: asked.path.clone(),
        size: asked.size,
        sha256: None,
        mode: asked.mode,
        parents: asked.parents,
    };
    let portions = futures_util::stream::iter([Ok(content)]);
    let call = begun.sandbox.guest().place_file(&order, portions);
    let placed = guest::ask(begun.sandbox.as_ref(), call).await;
    crash::point("file.write.done");
    match placed {
        Ok(placed) => {
            let outcome = written(begun.op, asked, placed);
            let event = Event::FileWritten(outcome.clone());
            let seq = begun.end(inner, caller, event).await?;
            Ok(WriteAnswer { seq, outcome })
        }
        Err(error) => Err(fail(inner, caller, &begun, "write", &asked.path, error).await),
    }
}

fn check(request: WriteFile) -> Result<(FileWriteStarted, Bytes), CommandError> {
    let path = GuestPath::parse_file(&request.path)?;
    let mode = mode(request.mode)?;
    let size = request.content.len() as u64;
    if size > FILE_WRITE_BYTES_MAX {
        return Err(CommandError::File {
            fault: FileFault::TooLarge,
            detail: format!(
                "the file has {size} bytes; one write takes at most {FILE_WRITE_BYTES_MAX}: use an \
                 upload"
            ),
        });
    }
    let asked = FileWriteStarted {
        path: path.into_string(),
        size,
        digest: blake3::hash(&request.content).to_hex().to_string(),
        mode,
        parents: request.parents,
        blobs: Vec::new(),
    };
    Ok((asked, request.content))
}

/// Records the intent, and with it the content if it names it, so that both are sealed and erased as one.
async fn begin(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    asked: &FileWriteStarted,
    content: &Bytes,
) -> Result<Begun, CommandError> {
    work::begin(inner, caller, id, |session| {
        check_writable(session, &asked.path)?;
        let entry = Entry::new(Event::FileWriteStarted(asked.clone()));
        Ok(match asked.blobs.is_empty() {
            true => entry,
            false => entry.with(vec![content.clone()]),
        })
    })
    .await
}

fn written(op: u64, asked: FileWriteStarted, placed: Placed) -> FileWritten {
    FileWritten {
        op,
        path: asked.path,
        size: placed.size,
        digest: asked.digest,
        sha256: placed.sha256,
        mode: placed.mode,
        parents: asked.parents,
        replaced: placed.replaced,
        blobs: asked.blobs,
        recovered: false,
    }
}

/// Records that nothing came of it, and answers with why.
pub(crate) async fn fail(
    inner: &Inner,
    caller: &Caller,
    begun: &Begun,
    action: &str,
    path: &str,
    error: CommandError,
) -> CommandError {
    let failed = Event::FileFailed(FileFailed {
        op: begun.op,
        action: action.to_owned(),
        path: path.to_owned(),
        code: error.code().to_owned(),
        reason: error.to_string(),
    });
    match begun.end(inner, caller, failed).await {
        Ok(_) => error,
        Err(unrecorded) => unrecorded,
    }
}
