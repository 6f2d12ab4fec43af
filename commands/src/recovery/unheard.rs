//! Guest daemons that do not answer a starting daemon, in sandboxes that run.
//!
//! Anybody in a sandbox can keep its guest daemon from answering for a while. That is no reason to end the
//! session: it stays as it is and is asked again and again, and only the end of its first process ends it.
//! The start of the daemon does not wait for it.

use std::sync::Arc;
use std::time::Duration;

use fluxvm_projections::SessionId;
use fluxvm_vmm::Sandbox;
use tokio::sync::watch;

use crate::engine::Inner;

/// How long one question may take.
const ASK_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause between two questions: what a session waits at most once its guest daemon answers again.
const ASK_PAUSE: Duration = Duration::from_millis(500);

/// The word that a guest daemon answers, or never will because its sandbox ended.
#[derive(Clone, Debug)]
pub(crate) struct Reached(Option<watch::Receiver<()>>);

impl Reached {
    /// For one that has answered.
    pub(super) fn already() -> Self {
        Self(None)
    }

    pub(super) fn is_already(&self) -> bool {
        self.0.is_none()
    }

    /// Resolves with the word.
    pub(crate) async fn wait(&self) {
        if let Some(waiting) = &self.0 {
            let mut waiting = waiting.clone();
            // Nothing is ever sent: the end of the one who asks is the word.
            while waiting.changed().await.is_ok() {}
        }
    }
}

/// Asks a guest daemon in the background until it answers or its sandbox ended.
pub(super) fn ask(inner: &Arc<Inner>, session: SessionId, sandbox: &Arc<dyn Sandbox>) -> Reached {
    inner.sandboxes.unheard(sandbox.id());
    let (asking, reached) = watch::channel(());
    let (inner, sandbox) = (Arc::clone(inner), Arc::clone(sandbox));
    tokio::spawn(async move {
        let answered = async {
            loop {
                let asked = tokio::time::timeout(ASK_TIME_MAX, sandbox.guest().health()).await;
                match asked {
                    Ok(Ok(_)) => return,
                    Ok(Err(error)) => tracing::debug!(%session, %error, "still not answering"),
                    Err(_) => tracing::debug!(%session, "still not answering"),
                }
                tokio::time::sleep(ASK_PAUSE).await;
            }
        };
        tokio::select! {
            () = answered => tracing::info!(%session, "its guest daemon answers again"),
            _ = sandbox.exited() => {}
        }
        inner.sandboxes.heard(sandbox.id());
        drop(asking);
    });
    Reached(Some(reached))
}
