//! The platform's lifecycle hooks. Open: they come before there is a token, over loopback, and
//! cannot be told from a request made inside the guest. What protects the guest is that the first
//! launch wins.

use std::rc::Rc;

use agentd_protocol::HandlerOutcome;
use agentd_protocol::Hook;
use agentd_protocol::HookRecord;
use agentd_protocol::RunHookEnvelope;
use agentd_protocol::RunHookPayload;
use agentd_protocol::limits::HOOK_ENVELOPE_BYTES_MAX;
use agentd_protocol::limits::HOOK_ENVELOPE_DEADLINE;
use agentd_protocol::limits::HOOK_LOG_ENTRIES_MAX;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;

use crate::app::App;
use crate::auth::Launch;
use crate::body;
use crate::exec::seconds_since_epoch;
use crate::identity;
use crate::identity::OwnMachine;
use crate::identity::is_first_process;
use crate::respond;
use crate::respond::Answer;

/// Which hooks were seen: the first ones by name, the rest by number.
#[derive(Debug, Default)]
pub(crate) struct HookLog {
    entries: Vec<HookRecord>,
    dropped: u64,
}

impl HookLog {
    /// Takes note of a request; `None` when it is one too many to be kept.
    fn record(&mut self, hook: Hook) -> Option<usize> {
        if self.entries.len() == HOOK_LOG_ENTRIES_MAX {
            self.dropped += 1;
            return None;
        }
        self.entries.push(HookRecord {
            hook: hook.as_str().into(),
            fired_at: seconds_since_epoch(),
            handler: None,
        });
        Some(self.entries.len() - 1)
    }

    fn note_handler(&mut self, entry: usize, outcome: Option<HandlerOutcome>) {
        if let Some(record) = self.entries.get_mut(entry) {
            record.handler = outcome;
        }
    }

    /// The first hooks, oldest first.
    pub(super) fn entries(&self) -> &[HookRecord] {
        &self.entries
    }

    /// How many came after those.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

pub(super) async fn answer(app: Rc<App>, hook: Hook, request: Request<Incoming>) -> Answer {
    // Before anything can fail: the log says what was asked for, not what came of it.
    let entry = app.hook_log.borrow_mut().record(hook);
    match hook {
        Hook::Run => run(app, entry, request).await,
        Hook::Ready | Hook::Validate => {
            super::refuse(request, respond::empty(StatusCode::OK)).await
        }
        Hook::Suspend | Hook::Resume | Hook::Terminate => {
            handle(app, hook, entry).await;
            // Any other status would make the platform end the guest.
            super::refuse(request, respond::empty(StatusCode::OK)).await
        }
    }
}

async fn run(app: Rc<App>, entry: Option<usize>, request: Request<Incoming>) -> Answer {
    let (head, mut body) = request.into_parts();
    let read = body::read_within(&mut body, HOOK_ENVELOPE_BYTES_MAX, HOOK_ENVELOPE_DEADLINE);
    let bytes = match read.await {
        Ok(bytes) => bytes,
        Err(fault) => return super::unread(&head.headers, body, fault).await,
    };
    let Ok(envelope) = serde_json::from_slice::<RunHookEnvelope>(&bytes) else {
        let shape = "the body is not a JSON object with text under `runHookPayload`";
        return respond::text(StatusCode::BAD_REQUEST, shape);
    };
    let payload = match RunHookPayload::parse(&envelope.run_hook_payload) {
        Ok(payload) => payload,
        Err(refusal) => return respond::text(StatusCode::BAD_REQUEST, refusal.to_string()),
    };
    let launched = app.bootstrap.borrow_mut().install(payload);
    match launched {
        Launch::Won => {
            tracing::info!("bootstrapped");
            // A task of its own: who wins has to finish, whether the platform waits or not.
            let won = tokio::task::spawn_local(async move {
                repair_identity(&app).await;
                handle(app, Hook::Run, entry).await;
            });
            let _ = won.await;
            respond::empty(StatusCode::OK)
        }
        Launch::Repeated => respond::empty(StatusCode::OK),
        Launch::Conflicted => respond::empty(StatusCode::CONFLICT),
    }
}

async fn repair_identity(app: &App) {
    if !app.settings.repair_identity {
        return;
    }
    if !is_first_process() {
        tracing::warn!("this is not the first process of a machine: its identity stays as it is");
        return;
    }
    let repaired = tokio::task::spawn_blocking(|| identity::repair(&OwnMachine)).await;
    *app.repair.borrow_mut() = repaired.ok();
}

/// Runs the workload's handler, if the log kept the hook: its cap is what bounds how often anybody
/// inside the guest can have a handler run.
async fn handle(app: Rc<App>, hook: Hook, entry: Option<usize>) {
    let Some(entry) = entry else { return };
    let launch = app.bootstrap.borrow().env();
    // A task of its own: a peer that goes away does not leave a handler alone.
    let handled = tokio::task::spawn_local(async move {
        let outcome = app.handlers.run(hook, &launch).await;
        app.hook_log.borrow_mut().note_handler(entry, outcome);
    });
    let _ = handled.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_hooks_are_kept_and_the_rest_are_counted() {
        let mut log = HookLog::default();
        log.record(Hook::Ready);
        for _ in 0..HOOK_LOG_ENTRIES_MAX + 4 {
            log.record(Hook::Suspend);
        }
        assert_eq!(log.entries().len(), HOOK_LOG_ENTRIES_MAX);
        assert_eq!(log.entries()[0].hook, "ready");
        assert_eq!(log.dropped(), 5);
    }
}
