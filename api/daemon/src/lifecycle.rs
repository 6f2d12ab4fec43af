//! Where the daemon is between its start and its end, for everyone who has to know.

use tokio::sync::watch;

/// The stages, in the order in which they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Requests are taken.
    Serving,
    /// No more connections; streams end; requests that run are answered.
    Stopping,
    /// The grace is over: whoever still waits is told to come back.
    Abandoning,
}

/// The stage, and whether the ledger failed.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    stage: watch::Sender<Stage>,
    failure: watch::Sender<Option<String>>,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            stage: watch::Sender::new(Stage::Serving),
            failure: watch::Sender::new(None),
        }
    }

    /// Goes on to a stage. There is no way back.
    pub(crate) fn advance(&self, stage: Stage) {
        self.stage.send_if_modified(|now| {
            let later = stage > *now;
            *now = stage.max(*now);
            later
        });
    }

    /// The stage now.
    pub(crate) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Resolves once the stage is reached.
    pub(crate) async fn reached(&self, stage: Stage) {
        let mut stages = self.stage.subscribe();
        // The sender lives as long as we do, so that this cannot end early.
        let _ = stages.wait_for(|now| *now >= stage).await;
    }

    /// The ledger failed: every request is answered so from now on.
    pub(crate) fn fail(&self, reason: String) {
        self.failure.send_replace(Some(reason));
    }

    /// Why the ledger failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }
}
