//! Reading: sessions, events, exports. Nothing here changes anything but what time itself changed.

use std::sync::Arc;

use fluxvm_eventstore::Filter;
use fluxvm_eventstore::LedgerInfo;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::StreamVersion;
use fluxvm_eventstore::Subscription;
use fluxvm_projections::Capabilities;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::SessionStatus;

use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::request::EventsQuery;

/// Events that are read from the ledger at once.
const READ_PAGE: usize = 1_024;

impl Engine {
    /// The caller's sessions, oldest first, without the deleted ones.
    ///
    /// # Errors
    ///
    /// `Ledger` when a session's end could not be recorded.
    pub async fn sessions(&self, caller: &Caller) -> Result<Vec<Session>, CommandError> {
        let list = || -> Vec<Session> {
            let world = self.inner.book.world();
            let shown = |session: &&Session| {
                session.status != SessionStatus::Deleted && caller.sees(session.tenant.as_deref())
            };
            world.sessions.iter().filter(shown).cloned().collect()
        };
        for session in list() {
            self.inner.expire_if_due(caller, session.id).await?;
        }
        Ok(list())
    }

    /// One session. A deleted one keeps its record.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for another tenant's session; `Ledger` when its end could not be recorded.
    pub async fn session(&self, caller: &Caller, id: SessionId) -> Result<Session, CommandError> {
        self.inner.expire_if_due(caller, id).await?;
        self.inner.book.session(caller, id)
    }

    /// A session's events, in order.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Read`.
    pub async fn events(
        &self,
        caller: &Caller,
        id: SessionId,
        query: EventsQuery,
    ) -> Result<Vec<Arc<RecordedEvent>>, CommandError> {
        events(&self.inner, caller, id, query).await
    }

    /// A session's events as they become durable, from a point in the ledger on, without gap or repeat.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn follow(
        &self,
        caller: &Caller,
        id: SessionId,
        after: Position,
    ) -> Result<Subscription, CommandError> {
        self.inner.book.session(caller, id)?;
        Ok(self
            .inner
            .book
            .ledger()
            .subscribe(Filter::Stream(id.stream()), after))
    }

    /// What the ledger is and how far it goes.
    #[must_use]
    pub fn ledger_info(&self) -> LedgerInfo {
        self.inner.book.ledger().info()
    }

    /// What this machine's sandboxes can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        crate::capabilities::recorded(&self.inner.backend.capabilities())
    }

    /// What this machine lacks and what each of it costs, a sentence each.
    #[must_use]
    pub fn degraded(&self) -> Vec<String> {
        self.inner.backend.capabilities().degraded
    }

    /// The engine that makes sandboxes.
    #[must_use]
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend.name()
    }

    /// How many sessions there are in each status, deleted ones included.
    #[must_use]
    pub fn count_by_status(&self) -> Vec<(&'static str, u64)> {
        let statuses = [
            SessionStatus::Creating,
            SessionStatus::Running,
            SessionStatus::Expired,
            SessionStatus::Gone,
            SessionStatus::Failed,
            SessionStatus::Deleted,
        ];
        let world = self.inner.book.world();
        let count = |status| {
            world
                .sessions
                .iter()
                .filter(|it| it.status == status)
                .count() as u64
        };
        statuses
            .map(|status| (crate::gate::status_name(status), count(status)))
            .to_vec()
    }
}

/// A session's events, read in pages off the request's thread.
pub(crate) async fn events(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    query: EventsQuery,
) -> Result<Vec<Arc<RecordedEvent>>, CommandError> {
    inner.book.session(caller, id)?;
    let ledger = inner.book.ledger().clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut events = Vec::new();
        let mut after: Option<StreamVersion> = None;
        loop {
            let page = ledger.read_stream(&id.stream(), after, READ_PAGE)?;
            let Some(last) = page.last() else {
                return Ok::<_, ReadError>(events);
            };
            after = Some(last.header.version);
            events.extend(page.into_iter().filter(|event| wanted(event, query)));
        }
    });
    let events = read
        .await
        .map_err(|error| CommandError::Internal(error.to_string()))??;
    Ok(events)
}

fn wanted(event: &RecordedEvent, query: EventsQuery) -> bool {
    let at = event.header.recorded_at.unix_ns();
    let is_newer = |since: chrono::DateTime<chrono::Utc>| {
        let since_ns = since
            .timestamp_nanos_opt()
            .and_then(|ns| u64::try_from(ns).ok());
        since_ns.is_none_or(|since_ns| at > since_ns)
    };
    query
        .after
        .is_none_or(|after| event.header.seq.get() > after)
        && query.since.is_none_or(is_newer)
}
