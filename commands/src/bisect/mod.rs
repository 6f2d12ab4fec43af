//! Which command broke it: a search over the states on the way to now, and over the commands between them
//! where there are more commands than states.
//!
//! The session itself is never touched. Each state is looked at in a sandbox of its own, which no session
//! owns and which goes again: a daemon that ends meanwhile leaves it to the next start. Where no state was
//! kept between two commands, the missing one is made by running the recorded commands again from the
//! nearest state before it.

mod decide;
mod search;
mod trial;

use std::sync::Arc;
use std::time::Instant;

use fluxvm_projections::BisectFailed;
use fluxvm_projections::BisectVerdict;
use fluxvm_projections::Bisected;
use fluxvm_projections::Culprit;
use fluxvm_projections::Event;
use fluxvm_projections::MemoryMode;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::book::Entry;
use crate::book::Op;
use crate::book::read;
use crate::caller::Caller;
use crate::checkpoint::millis;
use crate::crash;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::guard;
use crate::lineage::Lineage;
use crate::queries;
use crate::request::EventsQuery;
use crate::states;
use search::Line;
use trial::Trial;

/// A search to be made.
#[derive(Clone, Debug)]
pub struct Bisect {
    /// A command that ends with 0 where all is well.
    pub test: String,
    /// A state in which it does; the oldest point when `None`.
    pub good: Option<String>,
    /// A state in which it does not; now when `None`.
    pub bad: Option<String>,
    /// The time limit of each test, in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct BisectAnswer {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// The outcome.
    pub outcome: Bisected,
}

impl Engine {
    /// Finds the command that broke it.
    ///
    /// # Errors
    ///
    /// `Invalid`, `NotFound`, `NotRunning`, `Busy`, `CommandsRunning`, `TagNotFound`, `Refused` and
    /// `NotSupported` and `InsufficientStorage` before anything was tried; `EndsAgree`, `Snapshot`,
    /// `Revive`, `SnapshotLate` and `ExecFailed` when nothing was found. The session is as it was.
    pub async fn bisect(
        &self,
        caller: &Caller,
        id: SessionId,
        request: Bisect,
    ) -> Result<BisectAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            bisect(&inner, &caller, id, request).await
        })
        .await
    }
}

async fn bisect(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    request: Bisect,
) -> Result<BisectAnswer, CommandError> {
    decide::check(&request)?;
    inner.check_room()?;
    inner.expire_if_due(caller, id).await?;
    guard::permits(inner, caller, id, &request.test).await?;
    let started_at = Instant::now();
    let now = inner.clock.now();
    let turn = inner.turns.take(id).await;
    let (session, intent) = inner
        .book
        .decide(caller, id, |session| decide::start(session, &request, now))
        .await?;
    drop(turn);
    crash::point("bisect.intent");
    let op = Op::of(id, &intent);
    match look(inner, caller, &session, &request).await {
        Ok(found) => {
            crash::point("bisect.found");
            let outcome = Bisected {
                op: op.seq,
                test: request.test,
                culprit: found.culprit,
                last_good: found.last_good,
                first_bad: found.first_bad,
                tested: found.tested,
                duration_ms: millis(started_at),
            };
            let entry = Entry::new(Event::Bisected(outcome.clone()));
            let recorded = inner.book.conclude(caller, id, op.intent, entry).await?;
            let seq = recorded.header.seq.get();
            Ok(BisectAnswer { seq, outcome })
        }
        Err(error) => {
            let failed = Event::BisectFailed(BisectFailed {
                op: op.seq,
                code: error.code().to_owned(),
                reason: error.to_string(),
            });
            let failed = Entry::new(failed);
            match inner.book.conclude(caller, id, op.intent, failed).await {
                Ok(_) => Err(error),
                Err(unrecorded) => Err(unrecorded),
            }
        }
    }
}

/// What a search came to.
struct Found {
    culprit: Culprit,
    last_good: String,
    first_bad: String,
    tested: Vec<BisectVerdict>,
}

async fn look(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &Session,
    request: &Bisect,
) -> Result<Found, CommandError> {
    let events = queries::events(inner, caller, session.id, EventsQuery::default())?;
    let events = events.all().await?;
    let read: Result<Vec<_>, _> = events.iter().map(|event| read(event)).collect();
    let lineage = Lineage::of(&read?);
    let memory = match session.rewind.config.memory {
        true => MemoryMode::BestEffort,
        false => MemoryMode::Never,
    };
    let now = states::now(inner, session.id, memory).await?;
    let line = Line::of(session, &lineage, &now.snapshot, request)?;
    let mut trial = Trial::new(inner, session, request);
    search::search(&mut trial, line).await
}
