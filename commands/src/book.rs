//! The ledger and what it adds up to, kept together.
//!
//! The committer folds every event into the [`World`] after it is durable and before its writer is
//! answered. So whoever appended something sees it in the state that it reads next, and nobody sees what
//! is not durable.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;

use fluxvm_eventstore::Append;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::CommandId;
use fluxvm_eventstore::Environment;
use fluxvm_eventstore::EventId;
use fluxvm_eventstore::EventKind;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Follower;
use fluxvm_eventstore::KeptBlob;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::LedgerOptions;
use fluxvm_eventstore::NewEvent;
use fluxvm_eventstore::OpenError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::StreamAppend;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Envelope;
use fluxvm_projections::Event;
use fluxvm_projections::FOLDS_VERSION;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;
use fluxvm_projections::World;
use tokio::sync::watch;
use uuid::Uuid;

use crate::caller::Caller;
use crate::error::CommandError;
use crate::limits::DECIDE_ATTEMPTS_MAX;

/// The ledger and its fold.
pub(crate) struct Book {
    ledger: Ledger,
    world: Arc<RwLock<World>>,
    /// Why the fold stopped, if it met an event that it does not understand.
    broken: watch::Receiver<Option<String>>,
}

/// One event to append, with what it is the outcome of and the content that goes with it.
pub(crate) struct Entry {
    pub(crate) event: Event,
    pub(crate) cause: Option<EventId>,
    pub(crate) attachments: Vec<bytes::Bytes>,
    /// More of it, that is durable already.
    pub(crate) kept: Vec<KeptBlob>,
    /// The session that it is about, where its stream is not the session's own.
    pub(crate) about: Option<SessionId>,
}

/// What a decision came to: what is recorded, and what is answered.
pub(crate) struct Decided {
    /// In this order, all or none.
    pub(crate) entries: Vec<Entry>,
    /// The refusal that these entries record, if they record one.
    pub(crate) refused: Option<CommandError>,
}

impl Decided {
    pub(crate) fn done(entries: Vec<Entry>) -> Self {
        Self {
            entries,
            refused: None,
        }
    }
}

/// The intent that an effect belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) session: SessionId,
    pub(crate) seq: u64,
    pub(crate) intent: EventId,
}

impl Op {
    pub(crate) fn of(session: SessionId, intent: &RecordedEvent) -> Self {
        Self {
            session,
            seq: intent.header.seq.get(),
            intent: intent.header.event_id,
        }
    }
}

impl Entry {
    pub(crate) fn new(event: Event) -> Self {
        Self {
            event,
            cause: None,
            attachments: Vec::new(),
            kept: Vec::new(),
            about: None,
        }
    }

    pub(crate) fn caused_by(mut self, intent: EventId) -> Self {
        self.cause = Some(intent);
        self
    }

    pub(crate) fn about(mut self, session: Option<SessionId>) -> Self {
        self.about = session;
        self
    }

    pub(crate) fn with(mut self, attachments: Vec<bytes::Bytes>) -> Self {
        self.attachments = attachments;
        self
    }

    pub(crate) fn with_kept(mut self, kept: Vec<KeptBlob>) -> Self {
        self.kept = kept;
        self
    }
}

impl Book {
    /// Opens the ledger and folds all of it, or what is behind a snapshot. Blocks for as long as that
    /// takes.
    pub(crate) fn open(options: LedgerOptions) -> Result<Self, OpenError> {
        let fold = Fold::default();
        let (world, broken) = (Arc::clone(&fold.world), fold.broken.subscribe());
        let ledger = Ledger::open_following(options, Box::new(fold), Environment::default())?;
        Ok(Self {
            ledger,
            world,
            broken,
        })
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn broken(&self) -> watch::Receiver<Option<String>> {
        self.broken.clone()
    }

    pub(crate) fn world(&self) -> RwLockReadGuard<'_, World> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if the caller may know of it.
    pub(crate) fn session(&self, caller: &Caller, id: SessionId) -> Result<Session, CommandError> {
        let world = self.world();
        match world.sessions.get(id) {
            Some(session) if caller.sees(session.tenant.as_deref()) => Ok(session.clone()),
            _ => Err(CommandError::NotFound(id)),
        }
    }

    /// Appends one event to a stream.
    pub(crate) async fn append(
        &self,
        caller: &Caller,
        stream: StreamName,
        expected: ExpectedVersion,
        entry: Entry,
    ) -> Result<Arc<RecordedEvent>, CommandError> {
        let mut recorded = self
            .append_all(caller, stream, expected, vec![entry])
            .await?;
        recorded
            .pop()
            .ok_or_else(|| CommandError::Internal("the ledger answered nothing".into()))
    }

    /// Appends several events to one stream, all or none.
    pub(crate) async fn append_all(
        &self,
        caller: &Caller,
        stream: StreamName,
        expected: ExpectedVersion,
        entries: Vec<Entry>,
    ) -> Result<Vec<Arc<RecordedEvent>>, CommandError> {
        self.append_streams(caller, vec![(stream, expected, entries)])
            .await
    }

    /// Appends to several streams, all or nothing. What is about a session is sealed with that session's
    /// key, whoever else's events become durable with it.
    pub(crate) async fn append_streams(
        &self,
        caller: &Caller,
        streams: Vec<(StreamName, ExpectedVersion, Vec<Entry>)>,
    ) -> Result<Vec<Arc<RecordedEvent>>, CommandError> {
        let mut append = Append {
            command_id: CommandId::new(Uuid::now_v7()),
            correlation_id: caller.request,
            actor: caller.actor.clone(),
            streams: Vec::with_capacity(streams.len()),
        };
        for (stream, expected, entries) in streams {
            let mut events = Vec::with_capacity(entries.len());
            let mut attachments = Vec::new();
            let mut kept = Vec::new();
            let mut about = SessionId::of_stream(&stream);
            for entry in entries {
                events.push(encode(&entry)?);
                about = about.or(entry.about);
                attachments.extend(entry.attachments);
                kept.extend(entry.kept);
            }
            append.streams.push(StreamAppend {
                stream,
                expected,
                events,
                attachments,
                kept,
                // Whether the session is sealed, the ledger knows.
                sealed_for: about.map(|id| id.stream()),
            });
        }
        Ok(self.ledger.append(append).await?)
    }

    /// Decides on the session's current state and appends what was decided, and again on the newer state
    /// when another decision got ahead.
    pub(crate) async fn decide(
        &self,
        caller: &Caller,
        id: SessionId,
        decide: impl Fn(&Session) -> Result<Entry, CommandError>,
    ) -> Result<(Session, Arc<RecordedEvent>), CommandError> {
        let (session, mut recorded) = self
            .decide_all(caller, id, |session| {
                Ok(Decided::done(vec![decide(session)?]))
            })
            .await?;
        let recorded = recorded
            .pop()
            .ok_or_else(|| CommandError::Internal("the ledger answered nothing".into()))?;
        Ok((session, recorded))
    }

    /// Decides on the session's current state and appends everything that was decided at once, and again
    /// on the newer state when another decision got ahead. A refusal that is recorded is an error all the
    /// same, once it is recorded.
    pub(crate) async fn decide_all(
        &self,
        caller: &Caller,
        id: SessionId,
        decide: impl Fn(&Session) -> Result<Decided, CommandError>,
    ) -> Result<(Session, Vec<Arc<RecordedEvent>>), CommandError> {
        for _ in 0..DECIDE_ATTEMPTS_MAX {
            let session = self.session(caller, id)?;
            let decided = decide(&session)?;
            if decided.entries.is_empty() {
                return match decided.refused {
                    Some(error) => Err(error),
                    None => Ok((session, Vec::new())),
                };
            }
            let expected = ExpectedVersion::Exact(session.version);
            let stream = id.stream();
            let appended = self.append_all(caller, stream, expected, decided.entries);
            match (appended.await, decided.refused) {
                (Err(CommandError::Ledger(AppendError::Conflict { .. })), _) => {}
                (Err(error), _) | (Ok(_), Some(error)) => return Err(error),
                (Ok(recorded), None) => return Ok((session, recorded)),
            }
        }
        Err(CommandError::TooMany {
            what: "decisions on one session",
            limit: DECIDE_ATTEMPTS_MAX,
        })
    }

    /// Appends the outcome of an intent. Nobody else can, so no version is expected.
    pub(crate) async fn conclude(
        &self,
        caller: &Caller,
        id: SessionId,
        intent: EventId,
        entry: Entry,
    ) -> Result<Arc<RecordedEvent>, CommandError> {
        let entry = entry.caused_by(intent);
        self.append(caller, id.stream(), ExpectedVersion::Exists, entry)
            .await
    }
}

/// What a recorded event says.
pub(crate) fn read(recorded: &RecordedEvent) -> Result<Envelope, CommandError> {
    Envelope::decode(recorded).map_err(|error| CommandError::Internal(error.to_string()))
}

pub(crate) fn encode(entry: &Entry) -> Result<NewEvent, CommandError> {
    let internal = |what: String| CommandError::Internal(what);
    let kind = entry
        .event
        .kind()
        .ok_or_else(|| internal("an erased event was appended".into()))?;
    let kind = EventKind::parse(kind).map_err(|error| internal(error.to_string()))?;
    let payload = entry
        .event
        .payload()
        .map_err(|error| internal(error.to_string()))?;
    let event = NewEvent::new(kind, entry.event.schema(), &payload)
        .map_err(|error| internal(error.to_string()))?;
    Ok(match entry.cause {
        Some(intent) => event.caused_by(intent),
        None => event,
    })
}

/// Folds in what became durable. An event that this version does not understand stops the fold for good:
/// state that skips events would be wrong without anyone noticing.
#[derive(Default)]
struct Fold {
    world: Arc<RwLock<World>>,
    /// The event that it could not understand, and why.
    broken: watch::Sender<Option<String>>,
}

impl Fold {
    fn replace(&self, world: World) {
        *self.world.write().unwrap_or_else(PoisonError::into_inner) = world;
    }
}

impl Follower for Fold {
    fn follow(&mut self, events: &[Arc<RecordedEvent>]) {
        if self.broken.borrow().is_some() {
            return;
        }
        let mut world = self.world.write().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if let Err(error) = world.apply(event) {
                let reason = format!("event {}: {error}", event.header.seq.get());
                self.broken.send_replace(Some(reason));
                return;
            }
        }
    }

    fn version(&self) -> Option<[u8; 32]> {
        Some(FOLDS_VERSION)
    }

    fn save(&self) -> Option<Vec<u8>> {
        if self.broken.borrow().is_some() {
            return None;
        }
        let world = self.world.read().unwrap_or_else(PoisonError::into_inner);
        world.to_snapshot().ok()
    }

    fn restore(&mut self, saved: &[u8]) -> bool {
        let restored = World::from_snapshot(saved);
        restored.map(|world| self.replace(world)).is_ok()
    }

    fn reset(&mut self) {
        self.replace(World::default());
        self.broken.send_replace(None);
    }

    fn fresh(&self) -> Option<Box<dyn Follower>> {
        Some(Box::new(Self::default()))
    }
}
