//! Reading: sessions, events, exports. Nothing here changes anything but what time itself changed.

use std::sync::Arc;

use fluxvm_eventstore::Filter;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::LedgerInfo;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::StreamName;
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

    /// A session's events up to this instant, in order, read a page at a time.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Invalid` when `after` names an event that the ledger does not have yet.
    pub fn events(
        &self,
        caller: &Caller,
        id: SessionId,
        query: EventsQuery,
    ) -> Result<EventPages, CommandError> {
        events(&self.inner, caller, id, query)
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

/// See [`Engine::events`].
pub(crate) fn events(
    inner: &Inner,
    caller: &Caller,
    id: SessionId,
    query: EventsQuery,
) -> Result<EventPages, CommandError> {
    let session = inner.book.session(caller, id)?;
    let ledger = inner.book.ledger().clone();
    let until = ledger.head().position.get();
    if query.after.is_some_and(|after| after > until) {
        return Err(CommandError::Invalid {
            field: "after",
            message: "this ledger has no such event yet".to_owned(),
        });
    }
    Ok(EventPages {
        ledger,
        id,
        query,
        until,
        start: Start::Search(session.version),
    })
}

/// The events of one session, a page in memory at a time.
pub struct EventPages {
    ledger: Ledger,
    id: SessionId,
    query: EventsQuery,
    /// The ledger's length when they were asked for: what is appended meanwhile does not make the answer
    /// endless.
    until: u64,
    start: Start,
}

/// Where the next page of a stream starts.
#[derive(Clone, Copy)]
enum Start {
    /// Behind the last event that `after` excludes; the stream goes up to this version at least.
    Search(StreamVersion),
    /// Behind this version.
    Behind(Option<StreamVersion>),
}

impl EventPages {
    /// The next events, at least one, or none when all were read. Reads off the caller's thread.
    ///
    /// # Errors
    ///
    /// `Read`.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<RecordedEvent>>>, CommandError> {
        loop {
            let (ledger, stream, query, start) = (
                self.ledger.clone(),
                self.id.stream(),
                self.query,
                self.start,
            );
            let page = tokio::task::spawn_blocking(move || {
                let behind = match start {
                    Start::Behind(version) => version,
                    Start::Search(last) => {
                        last_excluded(&ledger, &stream, query.after.unwrap_or(0), last)?
                    }
                };
                ledger.read_stream(&stream, behind, READ_PAGE)
            });
            let page = page
                .await
                .map_err(|error| CommandError::Internal(error.to_string()))??;
            let Some(last) = page.last() else {
                return Ok(None);
            };
            self.start = Start::Behind(Some(last.header.version));
            let is_over = last.header.seq.get() > self.until;
            let until = self.until;
            let wanted: Vec<_> = page
                .into_iter()
                .filter(|event| event.header.seq.get() <= until && wanted(event, query))
                .collect();
            match wanted.is_empty() {
                false => return Ok(Some(wanted)),
                true if is_over => return Ok(None),
                true => {}
            }
        }
    }

    /// All of them at once.
    pub(crate) async fn all(mut self) -> Result<Vec<Arc<RecordedEvent>>, CommandError> {
        let mut events = Vec::new();
        while let Some(page) = self.next().await? {
            events.extend(page);
        }
        Ok(events)
    }
}

/// The version of a stream's last event that is not behind `after`. Whoever follows a long session asks
/// for its newest events over and over: that must not read all of it each time.
fn last_excluded(
    ledger: &Ledger,
    stream: &StreamName,
    after: u64,
    last: StreamVersion,
) -> Result<Option<StreamVersion>, ReadError> {
    let (mut excluded, mut unknown_until) = (0, last.get());
    while excluded < unknown_until && after > 0 {
        let middle = excluded + (unknown_until - excluded) / 2;
        let page = ledger.read_stream(stream, StreamVersion::new(middle), 1)?;
        match page.first() {
            Some(event) if event.header.seq.get() <= after => excluded = middle + 1,
            _ => unknown_until = middle,
        }
    }
    Ok(StreamVersion::new(excluded))
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
