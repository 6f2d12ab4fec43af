//! Which step last wrote these bytes: a walk back over the states on the way to now, to the two between which
//! they came, and then over the steps between these.
//!
//! Where several steps lie between two kept states, and all of them are commands, they are done again in a
//! sandbox that no session owns. Where they cannot be, all of them are named: it was one of these.

mod places;
mod trace;

use std::sync::Arc;

use chrono::DateTime;
use chrono::Utc;
use fluxvm_projections::Envelope;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use crate::book::read;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::lab;
use crate::limits::BLAME_FILE_BYTES_MAX;
use crate::limits::DIFF_FILE_BYTES_MAX;
use crate::lineage::Deed;
use crate::lineage::Lineage;
use crate::lineage::Step;
use crate::lineage::between;
use crate::queries;
use crate::request::EventsQuery;
use crate::states;
use places::Place;
use trace::Sought;

/// Bytes whose writer is wanted.
#[derive(Clone, Debug)]
pub struct BlameQuery {
    /// A file of the workspace; one that is gone was removed by somebody, too.
    pub path: String,
    /// One of its lines, counted from 1; all of it when `None`.
    pub line: Option<u64>,
}

/// How well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// One step lies between the state without these bytes and the state with them.
    OneStep,
    /// Several do, and doing them again told which it was.
    DoneAgain,
    /// Several do: it was one of the candidates.
    OneOfSeveral,
    /// The session began with these bytes.
    FromTheBeginning,
    /// No step lies between: something that ran on by itself wrote them.
    NoStep,
}

impl Certainty {
    /// As answers spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneStep => "one_step",
            Self::DoneAgain => "done_again",
            Self::OneOfSeveral => "one_of_several",
            Self::FromTheBeginning => "from_the_beginning",
            Self::NoStep => "no_step",
        }
    }
}

/// A step, as an answer names it.
#[derive(Clone, Debug)]
pub struct BlamedStep {
    /// The ledger number of its intent.
    pub seq: u64,
    /// When that was recorded.
    pub at: DateTime<Utc>,
    /// What it was: the kind of its outcome.
    pub kind: &'static str,
    /// For a person: the shell line of a command.
    pub words: String,
}

/// Who wrote some bytes.
#[derive(Clone, Debug)]
pub struct BlameAnswer {
    /// In the workspace.
    pub path: String,
    /// The line, counted from 1.
    pub line: Option<u64>,
    /// What it says.
    pub text: Option<String>,
    /// There is a file at the path.
    pub exists: bool,
    /// How well it is known.
    pub certainty: Certainty,
    /// Who it was.
    pub step: Option<BlamedStep>,
    /// Who it may have been, where that is not known.
    pub candidates: Vec<BlamedStep>,
    /// The last state without these bytes; `None` when the session began with them.
    pub after: Option<String>,
    /// The first state with them.
    pub before: String,
    /// The session that this one was forked from, which has what came before.
    pub parent: Option<SessionId>,
}

impl Engine {
    /// Which step last wrote a file, or a line of it.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Invalid` for a path that is not in the workspace and a line that is not there,
    /// `TooLarge`, `InsufficientStorage`; `Snapshot`, `Revive` and `ExecFailed` where a state cannot be
    /// read or made again.
    pub async fn blame(
        &self,
        caller: &Caller,
        id: SessionId,
        query: BlameQuery,
    ) -> Result<BlameAnswer, CommandError> {
        self.run(caller, move |inner, caller| async move {
            inner.check_room()?;
            blame(&inner, &caller, id, query).await
        })
        .await
    }
}

async fn blame(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    query: BlameQuery,
) -> Result<BlameAnswer, CommandError> {
    let session = inner.book.session(caller, id)?;
    let path = states::relative(&session, "path", &query.path)?;
    let events = queries::events(inner, caller, id, EventsQuery::default())?;
    let events = events.all().await?;
    let events: Result<Vec<Envelope>, _> = events.iter().map(|event| read(event)).collect();
    let (events, line) = (events?, query.line);
    let lineage = Lineage::of(&events);
    let mut places = places::of(inner, &session, &lineage).await?;
    let newest = places
        .pop()
        .ok_or_else(|| CommandError::Internal("a session without states".into()))?;
    let limit = match line {
        Some(_) => DIFF_FILE_BYTES_MAX,
        None => BLAME_FILE_BYTES_MAX,
    };
    let search = Search {
        inner,
        session: &session,
        path: &path,
        limit,
    };
    let content = search.content(&newest).await?;
    let sought = sought(line, content.as_deref())?;
    let text = match (sought, &content) {
        (Sought::Line(number), Some(content)) => trace::line(content, number),
        _ => None,
    };
    let exists = content.is_some();
    let found = search.back(places, newest, (sought, content)).await?;
    let named = |step: &Arc<Step>| {
        let event = events.iter().find(|event| event.seq.get() == step.seq)?;
        Some(BlamedStep {
            seq: step.seq,
            at: event.at,
            kind: step.deed.kind(),
            words: step.deed.words(),
        })
    };
    Ok(BlameAnswer {
        path,
        line,
        text,
        exists,
        certainty: found.certainty,
        step: found.step.as_ref().and_then(named),
        candidates: found.candidates.iter().filter_map(named).collect(),
        after: found.after,
        before: found.before,
        parent: session.origin.as_ref().map(|origin| origin.parent),
    })
}

fn sought(line: Option<u64>, content: Option<&[u8]>) -> Result<Sought, CommandError> {
    let Some(line) = line else {
        return Ok(Sought::Whole);
    };
    let number = usize::try_from(line)
        .ok()
        .and_then(|line| line.checked_sub(1));
    let there = number.filter(|number| {
        let content = content.unwrap_or_default();
        trace::line(content, *number).is_some()
    });
    there
        .map(Sought::Line)
        .ok_or_else(|| CommandError::Invalid {
            field: "line",
            message: format!("the file has no line {line}; lines are counted from 1"),
        })
}

/// What a walk came to.
struct Found {
    certainty: Certainty,
    step: Option<Arc<Step>>,
    candidates: Vec<Arc<Step>>,
    after: Option<String>,
    before: String,
}

/// A walk back over one path's contents.
struct Search<'a> {
    inner: &'a Arc<Inner>,
    session: &'a Session,
    path: &'a str,
    limit: u64,
}

/// What is sought, and the content that it is in.
type Trail = (Sought, Option<Vec<u8>>);

impl Search<'_> {
    async fn content(&self, place: &Place) -> Result<Option<Vec<u8>>, CommandError> {
        place.content(self.inner, self.path, self.limit).await
    }

    /// Walks back to the first state that does not have what is sought.
    async fn back(
        &self,
        mut older: Vec<Place>,
        mut newer: Place,
        (mut sought, mut content): Trail,
    ) -> Result<Found, CommandError> {
        while let Some(place) = older.pop() {
            let before = self.content(&place).await?;
            match trace::find(sought, before.as_deref(), content.as_deref()) {
                Some(there) => (newer, sought, content) = (place, there, before),
                None => return self.between(&place, &newer, (sought, content)).await,
            }
        }
        Ok(Found {
            certainty: Certainty::FromTheBeginning,
            step: None,
            candidates: Vec::new(),
            after: None,
            before: newer.state.name,
        })
    }

    /// Looks for the step between two states.
    async fn between(
        &self,
        older: &Place,
        newer: &Place,
        trail: Trail,
    ) -> Result<Found, CommandError> {
        let steps = between(&older.steps, &newer.steps).unwrap_or_default();
        let mut found = Found {
            certainty: Certainty::NoStep,
            step: None,
            candidates: Vec::new(),
            after: Some(older.state.name.clone()),
            before: newer.state.name.clone(),
        };
        let full = full_path(self.session, self.path);
        let could = |step: &&Arc<Step>| concerns(&step.deed, &full);
        let able: Vec<Arc<Step>> = steps.iter().filter(could).cloned().collect();
        match able.as_slice() {
            [] => {}
            [one] => {
                found.certainty = Certainty::OneStep;
                found.step = Some(Arc::clone(one));
            }
            _ if lab::unrepeatable(steps).is_none() => {
                found.certainty = Certainty::DoneAgain;
                found.step = self.again(older, steps, trail).await?;
            }
            _ => {
                found.certainty = Certainty::OneOfSeveral;
                found.candidates = able;
            }
        }
        Ok(found)
    }

    /// The first of these steps after which it is there. It is known to be there after the last.
    async fn again(
        &self,
        older: &Place,
        steps: &[Arc<Step>],
        (sought, content): Trail,
    ) -> Result<Option<Arc<Step>>, CommandError> {
        let full = full_path(self.session, self.path);
        let (mut without, mut with) = (0, steps.len());
        while with - without > 1 {
            let middle = without + (with - without) / 2;
            let again = steps.get(..middle).unwrap_or_default();
            let made = older
                .made_again(self.inner, self.session, again, (&full, self.limit))
                .await?;
            match trace::find(sought, made.as_deref(), content.as_deref()) {
                Some(_) => with = middle,
                None => without = middle,
            }
        }
        Ok(steps.get(without).cloned())
    }
}

/// A path of the workspace as the guest knows it.
fn full_path(session: &Session, path: &str) -> String {
    let name = fluxvm_vmm::unescape(path).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).into_owned();
    format!("{}/{name}", session.workspace.path.trim_end_matches('/'))
}

/// Whether a step could have written a path: what was done through the file routes says which it was.
fn concerns(deed: &Deed, full: &str) -> bool {
    match deed {
        Deed::Path { path, .. } => {
            let rest = full.strip_prefix(path.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        _ => true,
    }
}
