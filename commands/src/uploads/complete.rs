//! Putting an upload's file in its place.

use std::io;
use std::sync::Arc;

use agentd_client::FileOrder;
use agentd_protocol::Placed;
use bytes::Bytes;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::KeptBlob;
use fluxvm_projections::Event;
use fluxvm_projections::FileUploadStarted;
use fluxvm_projections::FileUploaded;
use fluxvm_projections::Recording;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::Upload;
use fluxvm_projections::UploadCompleted;
use fluxvm_projections::UploadId;
use fluxvm_vmm::Sandbox;
use futures_util::Stream;

use super::Received;
use super::UploadRecord;
use super::find;
use super::received;
use super::record;
use super::spool::Pieces;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::files;
use crate::guest;
use crate::work;
use crate::work::Begun;

/// Completes an upload, or answers what became of it before.
pub(crate) async fn complete(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    upload: UploadId,
) -> Result<UploadRecord, CommandError> {
    find(inner, caller, id, upload)?;
    let _turn = inner.uploading.turns.take(upload).await;
    let found = find(inner, caller, id, upload)?;
    if found.completed.is_some() {
        return record(inner, id, found).await;
    }
    let received = received(inner, id, upload).await?;
    if received.bytes != found.asked.size {
        return Err(CommandError::UploadIncomplete {
            received: received.bytes,
            size: found.asked.size,
        });
    }
    let begun = work::begin(inner, caller, id, |_| {
        Ok(Entry::new(Event::FileUploadStarted(FileUploadStarted {
            upload,
            path: found.asked.path.clone(),
            size: found.asked.size,
        })))
    })
    .await?;
    crash::point("file.upload.intent");
    match effect(inner, begun.sandbox.as_ref(), &found, &received).await {
        Ok(placed) => {
            crash::point("file.upload.done");
            conclude(inner, caller, &begun, &found, &received, placed, false).await?;
            crash::point("file.upload.outcome");
        }
        Err(error) => {
            let path = &found.asked.path;
            return Err(files::fail(inner, caller, &begun, "upload", path, error).await);
        }
    }
    let parts = received.parts.len() as u64;
    let done = find(inner, caller, id, upload)?;
    Ok(UploadRecord {
        received: done.asked.size,
        parts,
        upload: done,
    })
}

/// Goes through with a completion that an earlier daemon began. It is whole or nothing, so that doing it
/// again does it once.
pub(crate) async fn finish_interrupted(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    (op, intent): (u64, EventId),
    sandbox: &Arc<dyn Sandbox>,
    upload: UploadId,
) -> Result<(), CommandError> {
    let begun = Begun {
        session: session.clone(),
        op,
        intent,
        sandbox: Arc::clone(sandbox),
    };
    let _turn = inner.uploading.turns.take(upload).await;
    let found = find(inner, caller, session.id, upload)?;
    let received = received(inner, session.id, upload).await?;
    match effect(inner, sandbox.as_ref(), &found, &received).await {
        Ok(placed) => conclude(inner, caller, &begun, &found, &received, placed, true).await,
        Err(error) => {
            let path = &found.asked.path;
            Err(files::fail(inner, caller, &begun, "upload", path, error).await)
        }
    }
}

/// The file that is in its place.
struct InPlace {
    placed: Placed,
    digest: String,
}

async fn effect(
    inner: &Arc<Inner>,
    sandbox: &dyn Sandbox,
    upload: &Upload,
    received: &Received,
) -> Result<InPlace, CommandError> {
    let internal = |_| CommandError::Internal("completions are closed".to_owned());
    let _permit = inner
        .uploading
        .completing
        .acquire()
        .await
        .map_err(internal)?;
    let asked = &upload.asked;
    let order = FileOrder {
        path: asked.path.clone(),
        size: asked.size,
        sha256: asked.sha256.clone(),
        mode: asked.mode,
        parents: asked.parents,
    };
    let (hasher, digest) = tokio::sync::oneshot::channel();
    let call = sandbox
        .guest()
        .place_file(&order, content(received, hasher));
    let placed = guest::ask(sandbox, call).await?;
    let digest = digest
        .await
        .map_err(|_| CommandError::Internal("a file was taken before it was sent".to_owned()))?;
    Ok(InPlace { placed, digest })
}

/// The content as a stream, one piece of it in memory at a time, and its BLAKE3 at its end.
fn content(
    received: &Received,
    digest: tokio::sync::oneshot::Sender<String>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
    struct State {
        pieces: Pieces,
        hasher: blake3::Hasher,
        digest: Option<tokio::sync::oneshot::Sender<String>>,
    }
    let state = State {
        pieces: Pieces::of(received),
        hasher: blake3::Hasher::new(),
        digest: Some(digest),
    };
    futures_util::stream::unfold(state, |mut state| async move {
        match state.pieces.next().await {
            Ok(Some(piece)) => {
                state.hasher.update(&piece);
                Some((Ok(piece), state))
            }
            Ok(None) => {
                if let Some(digest) = state.digest.take() {
                    // Nobody waits for the digest of a file that was refused.
                    let _ = digest.send(state.hasher.finalize().to_hex().to_string());
                }
                None
            }
            Err(error) => Some((Err(error), state)),
        }
    })
}

/// Keeps the content if the session does, records the outcome, and drops the parts.
async fn conclude(
    inner: &Arc<Inner>,
    caller: &Caller,
    begun: &Begun,
    upload: &Upload,
    received: &Received,
    done: InPlace,
    recovered: bool,
) -> Result<(), CommandError> {
    let asked = &upload.asked;
    let session = begun.session.id;
    let kept = match begun.session.record {
        Recording::Full => keep(inner, session, received).await,
        Recording::Digest => Vec::new(),
    };
    crash::point("file.upload.kept");
    let outcome = FileUploaded {
        op: begun.op,
        upload: asked.upload,
        path: asked.path.clone(),
        size: done.placed.size,
        verified: asked.sha256.is_some(),
        digest: done.digest,
        sha256: done.placed.sha256,
        mode: done.placed.mode,
        parents: asked.parents,
        replaced: done.placed.replaced,
        blobs: Vec::new(),
        recovered,
    };
    match append(inner, caller, begun, &outcome, kept).await {
        Err(CommandError::Ledger(AppendError::Blob { reason })) => {
            tracing::error!(%reason, "an upload was not stored; only its digest is recorded");
            append(inner, caller, begun, &outcome, Vec::new()).await?;
        }
        appended => appended?,
    }
    if let Err(error) = inner.uploading.spool.remove(session, asked.upload).await {
        // The next start drops them.
        tracing::warn!(%error, "the parts of a complete upload are left");
    }
    Ok(())
}

/// Records the outcome with the content that was kept, and that the upload is complete.
async fn append(
    inner: &Inner,
    caller: &Caller,
    begun: &Begun,
    outcome: &FileUploaded,
    kept: Vec<KeptBlob>,
) -> Result<(), CommandError> {
    let blobs = kept.iter().map(|blob| blob.digest().to_string()).collect();
    let completed = Event::UploadCompleted(UploadCompleted {
        upload: outcome.upload,
    });
    let outcome = Event::FileUploaded(FileUploaded {
        blobs,
        ..outcome.clone()
    });
    let outcome = Entry::new(outcome).caused_by(begun.intent);
    let entries = vec![outcome.with_kept(kept), Entry::new(completed)];
    let stream = begun.session.id.stream();
    let appended = inner
        .book
        .append_all(caller, stream, ExpectedVersion::Exists, entries);
    appended.await.map(drop)
}

/// Makes the content durable in pieces, sealed as the session is; none of them if one cannot be.
async fn keep(inner: &Inner, session: SessionId, received: &Received) -> Vec<KeptBlob> {
    let mut pieces = Pieces::of(received);
    let mut kept = Vec::new();
    loop {
        let piece = match pieces.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => return kept,
            Err(error) => {
                tracing::error!(%error, "an upload's parts cannot be read; only its digest is kept");
                return Vec::new();
            }
        };
        let ledger = inner.book.ledger();
        match ledger.keep_blob(Some(session.stream()), piece).await {
            Ok(blob) => kept.push(blob),
            Err(error) => {
                tracing::error!(%error, "an upload was not stored; only its digest is recorded");
                return Vec::new();
            }
        }
    }
}
