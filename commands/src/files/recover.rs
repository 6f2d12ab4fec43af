//! What a starting daemon does about writes and removals that the last one left without an outcome.
//!
//! A write is whole or nothing, so that a look at the file says which. A removal is over when nothing is
//! there any more. Whatever is not over is recorded as having failed: doing it again could undo what the
//! session did meanwhile.

use agentd_protocol::FileFault;
use fluxvm_projections::Event;
use fluxvm_projections::FileDeleteStarted;
use fluxvm_projections::FileDeleted;
use fluxvm_projections::FileFailed;
use fluxvm_projections::FileWriteStarted;
use fluxvm_projections::FileWritten;
use fluxvm_vmm::Sandbox;

use crate::error::CommandError;
use crate::guest;
use crate::limits::RANGE_BYTES_MAX;

/// The outcome of a write or a removal, found in the guest; `None` for any other event.
pub(crate) async fn recover(sandbox: &dyn Sandbox, op: u64, intent: &Event) -> Option<Event> {
    match intent {
        Event::FileWriteStarted(asked) => Some(written(sandbox, op, asked).await),
        Event::FileDeleteStarted(asked) => Some(deleted(sandbox, op, asked).await),
        _ => None,
    }
}

async fn written(sandbox: &dyn Sandbox, op: u64, asked: &FileWriteStarted) -> Event {
    let call = sandbox
        .guest()
        .file_slice(&asked.path, 0, RANGE_BYTES_MAX, true);
    let reason = match guest::ask(sandbox, call).await {
        Ok(slice) if blake3::hash(&slice.bytes).to_hex().as_str() == asked.digest => {
            return Event::FileWritten(FileWritten {
                op,
                path: asked.path.clone(),
                size: asked.size,
                digest: asked.digest.clone(),
                sha256: slice.facts.sha256.unwrap_or_default(),
                mode: slice.facts.mode,
                parents: asked.parents,
                replaced: false,
                blobs: asked.blobs.clone(),
                recovered: true,
            });
        }
        Ok(_) => "the daemon ended before it was written; what is there is something else".into(),
        Err(error) if is_absent(&error) => "the daemon ended before it was written".into(),
        Err(error) => format!("the daemon ended in the middle, and it cannot be read: {error}"),
    };
    failed(op, "write", &asked.path, reason)
}

async fn deleted(sandbox: &dyn Sandbox, op: u64, asked: &FileDeleteStarted) -> Event {
    let call = sandbox.guest().file_facts(&asked.path);
    let reason = match guest::ask(sandbox, call).await {
        Err(error) if is_absent(&error) => {
            return Event::FileDeleted(FileDeleted {
                op,
                path: asked.path.clone(),
                recursive: asked.recursive,
                kind: "unknown".to_owned(),
                size: 0,
                entries: 0,
                recovered: true,
            });
        }
        Ok(_) => "the daemon ended in the middle; it is there, perhaps not whole".into(),
        Err(error) => format!("the daemon ended in the middle, and it cannot be seen: {error}"),
    };
    failed(op, "delete", &asked.path, reason)
}

fn is_absent(error: &CommandError) -> bool {
    matches!(
        error,
        CommandError::File {
            fault: FileFault::Absent,
            ..
        }
    )
}

fn failed(op: u64, action: &str, path: &str, reason: String) -> Event {
    Event::FileFailed(FileFailed {
        op,
        action: action.to_owned(),
        path: path.to_owned(),
        code: "interrupted".to_owned(),
        reason,
    })
}
