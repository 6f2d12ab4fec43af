//! Sessions whose time ran out.
//!
//! A session is marked by the sweeper, which wakes when one is due, or by whoever reads it first. What
//! it leaves is removed once, and the ledger says so once. While a hold covers it, neither happens: it takes
//! no more commands, as its time is over, and nothing of it goes before the hold is released.

use std::sync::Arc;
use std::time::Duration;

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::SessionExpired;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;

use crate::book::Entry;
use crate::caller::Caller;
use crate::delete;
use crate::engine::Inner;
use crate::engine::system;
use crate::error::CommandError;
use crate::gate;
use crate::limits::SWEEP_INTERVAL;
use crate::limits::SWEEP_RETRY;
use crate::snapshots;
use crate::uploads;

impl Inner {
    /// Marks the session expired if its time has come, and removes what it leaves in the background.
    pub(crate) async fn expire_if_due(
        self: &Arc<Self>,
        caller: &Caller,
        id: SessionId,
    ) -> Result<(), CommandError> {
        let session = self.book.session(caller, id)?;
        if !is_expiring(&session, self) || is_held(self, id) {
            return Ok(());
        }
        if mark(self, &session).await? {
            let inner = Arc::clone(self);
            tokio::spawn(async move { clean_up_logged(&inner, id).await });
        }
        Ok(())
    }
}

/// Ends sessions at their time until the engine ends: it wakes when the next one is due, and from time to
/// time for what could not be removed before.
pub(crate) fn spawn_sweeper(inner: &Arc<Inner>) {
    let inner = Arc::clone(inner);
    let mut stopping = inner.stopping();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => return,
                // A session was made that may be due before all others.
                () = inner.session_made.notified() => {}
                () = tokio::time::sleep(until_next(&inner)) => sweep(&inner).await,
            }
        }
    });
}

/// How long the sweeper may sleep.
fn until_next(inner: &Inner) -> Duration {
    let now = inner.clock.now();
    let world = inner.book.world();
    let due = world
        .sessions
        .iter()
        .filter(|session| can_expire(session) && world.holds.covering(Some(session.id)).is_none())
        .filter_map(|session| session.expires_at)
        .min();
    let left = due.map(|due| (due - now).to_std().unwrap_or(SWEEP_RETRY).max(SWEEP_RETRY));
    left.unwrap_or(SWEEP_INTERVAL).min(SWEEP_INTERVAL)
}

/// One look at all sessions.
pub(crate) async fn sweep(inner: &Arc<Inner>) {
    uploads::sweep(inner).await;
    let due: Vec<Session> = {
        let world = inner.book.world();
        let needs_work = |session: &&Session| {
            let is_held = world.holds.covering(Some(session.id)).is_some();
            (is_expiring(session, inner) && !is_held) || (session.ended() && !session.cleaned_up)
        };
        world.sessions.iter().filter(needs_work).cloned().collect()
    };
    for session in due {
        if is_expiring(&session, inner)
            && let Err(error) = mark(inner, &session).await
        {
            tracing::error!(session = %session.id, %error, "an expiry was not recorded");
            continue;
        }
        clean_up_logged(inner, session.id).await;
    }
}

/// Nothing but its time keeps the session from expiring.
fn can_expire(session: &Session) -> bool {
    matches!(session.status, SessionStatus::Running | SessionStatus::Gone)
        && session.lifecycle().is_none()
}

fn is_held(inner: &Inner, id: SessionId) -> bool {
    inner.book.world().holds.covering(Some(id)).is_some()
}

fn is_expiring(session: &Session, inner: &Inner) -> bool {
    can_expire(session) && gate::is_due(session, inner.clock.now())
}

/// Records the expiry. Answers whether it was this call that did.
async fn mark(inner: &Inner, session: &Session) -> Result<bool, CommandError> {
    let Some(expires_at) = session.expires_at else {
        return Ok(false);
    };
    let expired = Entry::new(Event::SessionExpired(SessionExpired { expires_at }));
    let expected = ExpectedVersion::Exact(session.version);
    let appended = inner
        .book
        .append(&system("expiry")?, session.id.stream(), expected, expired)
        .await;
    match appended {
        Ok(_) => Ok(true),
        // Somebody else got ahead; the next look decides again.
        Err(CommandError::Ledger(AppendError::Conflict { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn clean_up_logged(inner: &Arc<Inner>, id: SessionId) {
    if let Err(error) = clean_up(inner, id).await {
        // The sweeper tries again.
        tracing::warn!(session = %id, %error, "what an ended session left was not removed");
    }
}

async fn clean_up(inner: &Arc<Inner>, id: SessionId) -> Result<(), CommandError> {
    let caller = system("expiry")?;
    let turn = inner.turns.take(id).await;
    let session = inner.book.session(&caller, id)?;
    if session.cleaned_up || !session.ended() || session.lifecycle().is_some() {
        return Ok(());
    }
    delete::remove(inner, &session).await?;
    let cleaned_up = delete::cleaned_up();
    inner
        .book
        .append(&caller, id.stream(), ExpectedVersion::Exists, cleaned_up)
        .await?;
    drop(turn);
    snapshots::release_all(inner, &session);
    Ok(())
}
