//! Calls on a session's guest that are no commands: files, repositories, a look around.
//!
//! A guest's answer becomes a value or a typed error. What a guest says is data: its prose goes into
//! messages, and nothing is decided on it but its stable names.

use std::future::Future;
use std::sync::Arc;

use agentd_client::ClientError;
use agentd_protocol::FileFault;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;

use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::gate;

/// A session that takes calls, with its sandbox.
pub(crate) struct Seat {
    pub(crate) session: Session,
    pub(crate) sandbox: Arc<dyn Sandbox>,
}

/// The session's sandbox, for a call that changes nothing and needs no turn.
pub(crate) async fn seat(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
) -> Result<Seat, CommandError> {
    inner.expire_if_due(caller, id).await?;
    let session = inner.book.session(caller, id)?;
    gate::running(&session, inner.clock.now())?;
    let sandbox = sandbox(inner, id)?;
    Ok(Seat { session, sandbox })
}

/// The living sandbox of a session.
pub(crate) fn sandbox(inner: &Inner, id: SessionId) -> Result<Arc<dyn Sandbox>, CommandError> {
    answers(inner, id)?;
    inner.sandboxes.get(id).ok_or_else(gone)
}

/// Refuses what needs a guest daemon that has not answered since this daemon started: it would wait for
/// long, and nobody could say afterwards what became of it.
pub(crate) fn answers(inner: &Inner, id: SessionId) -> Result<(), CommandError> {
    if inner.sandboxes.is_unheard(id) {
        return Err(CommandError::Guest {
            code: "guest_unreachable",
            reason:
                "its guest daemon has not answered since this daemon started; it is asked again \
                     and again, and nothing was begun"
                    .to_owned(),
        });
    }
    Ok(())
}

/// Waits for a guest's answer, or for the end of its sandbox.
pub(crate) async fn ask<T>(
    sandbox: &dyn Sandbox,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, CommandError> {
    ask_raw(sandbox, call).await?.map_err(refused)
}

/// The same, for whoever reads the guest's refusals.
pub(crate) async fn ask_raw<T>(
    sandbox: &dyn Sandbox,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<Result<T, ClientError>, CommandError> {
    tokio::select! {
        answer = call => Ok(answer),
        _ = sandbox.exited() => Err(gone()),
    }
}

fn gone() -> CommandError {
    CommandError::Guest {
        code: "sandbox_gone",
        reason: "its sandbox has ended".to_owned(),
    }
}

/// What a client's error means.
pub(crate) fn refused(error: ClientError) -> CommandError {
    match error {
        ClientError::Refused {
            slug: Some(slug),
            detail,
            ..
        } if FileFault::named(&slug).is_some() => CommandError::File {
            fault: FileFault::named(&slug).unwrap_or(FileFault::Failed),
            detail,
        },
        error => CommandError::Guest {
            code: "guest_unreachable",
            reason: error.to_string(),
        },
    }
}
