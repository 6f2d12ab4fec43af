//! Erase what ended sessions said before a signed checkpoint.
//!
//! The intent names the sessions, so that whoever holds it after a crash erases the same ones: in each
//! session's stream comes first what is left of it, together with the first events that go; then the
//! rest. Headers and hashes stay, and with them the whole tree: every proof there ever was still
//! verifies, and so does every one to come.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::BlobDigest;
use fluxvm_eventstore::CorrelationId;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::GlobalSeq;
use fluxvm_eventstore::Ledger;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::ReadError;
use fluxvm_eventstore::RecordedEvent;
use fluxvm_eventstore::RedactError;
use fluxvm_eventstore::Redaction;
use fluxvm_eventstore::StreamAppend;
use fluxvm_projections::Event;
use fluxvm_projections::Hold;
use fluxvm_projections::LedgerRedacted;
use fluxvm_projections::LedgerRetention;
use fluxvm_projections::LedgerRetentionRefused;
use fluxvm_projections::LedgerRetentionStarted;
use fluxvm_projections::OpenRetention;
use fluxvm_projections::Session;
use fluxvm_projections::SessionId;

use super::ANSWERED;
use super::READ_PAGE;
use super::blocking;
use super::decide;
use super::forget_answers;
use super::open_append;
use super::remains;
use super::stream_append;
use crate::answer::RetentionAnswer;
use crate::book::Entry;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::holds::ledger_stream;
use crate::limits::DECIDE_ATTEMPTS_MAX;
use crate::limits::RETENTION_SESSIONS_MAX;
use crate::reason;
use crate::redaction::blobs_of;
use crate::request::Retain;
use crate::snapshots;

/// Events that are erased with one batch. The ledger takes 512; the rest is room for what is recorded.
const EVENTS_AT_ONCE: usize = 400;
/// Blobs that are erased with one batch.
const BLOBS_AT_ONCE: usize = 800;

pub(super) async fn retain(
    inner: &Arc<Inner>,
    caller: &Caller,
    request: Retain,
) -> Result<RetentionAnswer, CommandError> {
    let reason = reason::check(&request.reason)?;
    let before = Position::new(request.before);
    let signed = blocking(inner, move |ledger| ledger.checkpoint_at(before)).await?;
    signed.ok_or(CommandError::CheckpointNotFound(request.before))?;
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let (sessions, left) = candidates(inner, before).await?;
        let (held, version) = {
            let world = inner.book.world();
            if !world.retention.is_idle() {
                return Err(CommandError::TooMany {
                    what: "retentions",
                    limit: 1,
                });
            }
            (
                decide::held(sessions.iter(), &world.holds),
                world.holds.version(),
            )
        };
        if let Some((session, hold)) = held {
            return Err(refuse(inner, caller, request.before, session, reason, hold).await);
        }
        let started = Event::LedgerRetentionStarted(LedgerRetentionStarted {
            before: request.before,
            sessions,
            reason: reason.clone(),
        });
        let expected = ExpectedVersion::at(version);
        let stream = ledger_stream()?;
        let intent = inner
            .book
            .append(caller, stream, expected, Entry::new(started));
        match intent.await {
            Err(CommandError::Ledger(AppendError::Conflict { .. })) => continue,
            intent => drop(intent?),
        }
        crash::point("retention.intent");
        let open = inner.book.world().retention.open.clone();
        let open = open.ok_or_else(|| CommandError::Internal("no retention is open".into()))?;
        return carry_out(inner, caller, open, left).await;
    }
    Err(CommandError::TooMany {
        what: "decisions on the ledger",
        limit: DECIDE_ATTEMPTS_MAX,
    })
}

/// Finishes what an earlier daemon had begun.
pub(crate) async fn resume(inner: &Arc<Inner>, caller: &Caller) -> Result<(), CommandError> {
    let open = inner.book.world().retention.open.clone();
    if let Some(open) = open {
        carry_out(inner, caller, open, 0).await?;
    }
    Ok(())
}

/// The sessions that are over and lie before the checkpoint, as many as are taken at once, and how many
/// more there are.
async fn candidates(
    inner: &Inner,
    before: Position,
) -> Result<(Vec<SessionId>, u64), CommandError> {
    let over: Vec<Session> = {
        let world = inner.book.world();
        let over = |session: &&Session| decide::is_over(session) && !session.erased;
        world.sessions.iter().filter(over).cloned().collect()
    };
    let mut found = blocking(inner, move |ledger| {
        let mut found = Vec::new();
        for session in over {
            let last_but_one = session.version.get().checked_sub(1);
            let after = last_but_one.and_then(fluxvm_eventstore::StreamVersion::new);
            let last = ledger.read_stream(&session.id.stream(), after, 1)?;
            if last
                .first()
                .is_some_and(|it| it.header.seq.position() <= before)
            {
                found.push(session.id);
            }
        }
        Ok(found)
    })
    .await?;
    let left = found.len().saturating_sub(RETENTION_SESSIONS_MAX);
    found.truncate(RETENTION_SESSIONS_MAX);
    Ok((found, u64::try_from(left).unwrap_or(u64::MAX)))
}

/// What is to go of one session.
#[derive(Default)]
struct Going {
    seqs: Vec<GlobalSeq>,
    blobs: Vec<String>,
    requests: HashSet<CorrelationId>,
}

/// What is to go of all of them.
struct Plan {
    going: HashMap<SessionId, Going>,
    looked_until: Position,
}

async fn carry_out(
    inner: &Arc<Inner>,
    caller: &Caller,
    open: OpenRetention,
    left: u64,
) -> Result<RetentionAnswer, CommandError> {
    let sessions = open.started.sessions.clone();
    let wanted = sessions.iter().copied().collect();
    let mut plan = blocking(inner, move |ledger| plan(ledger, &wanted)).await?;
    let mut events = 0;
    for id in &sessions {
        let going = plan.going.remove(id).unwrap_or_default();
        events += erase(inner, caller, *id, going, plan.looked_until, &open).await?;
        crash::point("retention.session");
    }
    let done = Event::LedgerRetention(LedgerRetention {
        op: open.seq,
        sessions: u64::try_from(sessions.len()).unwrap_or(u64::MAX),
        events,
    });
    let entry = Entry::new(done).caused_by(open.intent);
    let recorded = inner
        .book
        .append(caller, ledger_stream()?, ExpectedVersion::Exists, entry)
        .await?;
    Ok(RetentionAnswer {
        seq: recorded.header.seq.get(),
        before: open.started.before,
        sessions: sessions.len() as u64,
        events,
        left,
    })
}

/// Reads the ledger twice: for what these sessions said and kept, and for what of their content nobody
/// else names. Blocks.
fn plan(ledger: &Ledger, wanted: &HashSet<SessionId>) -> Result<Plan, ReadError> {
    let mut going: HashMap<SessionId, Going> = HashMap::new();
    let mut of_request: HashMap<CorrelationId, SessionId> = HashMap::new();
    let looked_until = ledger.head().position;
    each_event(ledger, |event| {
        let header = &event.header;
        let own = SessionId::of_stream(&header.stream).filter(|id| wanted.contains(id));
        if let Some(id) = own {
            of_request.insert(header.correlation_id, id);
        }
        let is_answer = header.kind.as_str() == ANSWERED;
        let asked = of_request.get(&header.correlation_id).copied();
        let Some(id) = own.or(asked.filter(|_| is_answer)) else {
            return;
        };
        let going = going.entry(id).or_default();
        going.requests.insert(header.correlation_id);
        // What was written to say that something is erased stays.
        let says_it = ["session.erased", "session.redacted"].contains(&header.kind.as_str());
        if event.payload_bytes().is_some() && !says_it {
            going.seqs.push(header.seq);
            going.blobs.extend(blobs_of(event));
        }
    })?;
    let gone: HashSet<GlobalSeq> = going.values().flat_map(|it| &it.seqs).copied().collect();
    let names: HashSet<String> = going.values().flat_map(|it| &it.blobs).cloned().collect();
    let mut stay: HashMap<String, HashSet<Option<SessionId>>> = HashMap::new();
    each_event(ledger, |event| {
        if gone.contains(&event.header.seq) {
            return;
        }
        let of = SessionId::of_stream(&event.header.stream);
        let named = event.payload_bytes().map(references).unwrap_or_default();
        for digest in named.into_iter().filter(|digest| names.contains(digest)) {
            stay.entry(digest).or_default().insert(of);
        }
    })?;
    for (id, going) in &mut going {
        let is_sealed = ledger.is_sealed(&id.stream());
        // What a sealed session kept is its own: another session that names the same has one of its own.
        let counts = |of: &Option<SessionId>| !is_sealed || of.is_none_or(|of| of == *id);
        let stays = |named: &String| stay.get(named).is_some_and(|by| by.iter().any(counts));
        going.blobs.retain(|digest| !stays(digest));
        going.blobs.sort_unstable();
        going.blobs.dedup();
    }
    Ok(Plan {
        going,
        looked_until,
    })
}

fn each_event(ledger: &Ledger, mut see: impl FnMut(&RecordedEvent)) -> Result<(), ReadError> {
    let mut after = Position::START;
    loop {
        let page = ledger.read(after, READ_PAGE)?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        after = last.header.seq.position();
        page.iter().for_each(|event| see(event));
    }
}

/// The strings in a payload that could be digests.
fn references(payload: &[u8]) -> Vec<String> {
    let found = fluxvm_eventstore::blob_references(payload);
    found.iter().map(ToString::to_string).collect()
}

/// Erases one session; how many events went.
async fn erase(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    going: Going,
    looked_until: Position,
    open: &OpenRetention,
) -> Result<u64, CommandError> {
    let session = inner.book.world().sessions.get(id).cloned();
    if let Some(session) = session {
        snapshots::forget_all(inner, &session).await;
    }
    forget_answers(inner, caller, going.requests).await?;
    let blobs: Vec<BlobDigest> = going
        .blobs
        .iter()
        .filter_map(|it| it.parse().ok())
        .collect();
    let mut batches: Vec<(&[GlobalSeq], &[BlobDigest])> = Vec::new();
    let mut seqs = going.seqs.chunks(EVENTS_AT_ONCE);
    let mut names = blobs.chunks(BLOBS_AT_ONCE);
    loop {
        match (seqs.next(), names.next()) {
            (None, None) => break,
            (some, named) => batches.push((some.unwrap_or_default(), named.unwrap_or_default())),
        }
    }
    for (seqs, blobs) in batches {
        // The sealed blobs of a session are found by its events: one goes with each batch.
        let seqs = match seqs {
            [] => going.seqs.get(..1).unwrap_or_default(),
            seqs => seqs,
        };
        erase_some(inner, caller, id, seqs, blobs, looked_until, open).await?;
    }
    Ok(u64::try_from(going.seqs.len()).unwrap_or(u64::MAX))
}

async fn erase_some(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    seqs: &[GlobalSeq],
    blobs: &[BlobDigest],
    looked_until: Position,
    open: &OpenRetention,
) -> Result<(), CommandError> {
    for _ in 0..DECIDE_ATTEMPTS_MAX {
        let redaction = Redaction {
            seqs: seqs.to_vec(),
            blobs: blobs.to_vec(),
            looked_until,
            append: open_append(caller, streams(inner, id, seqs, blobs, open)?),
        };
        match inner.book.ledger().redact(redaction).await {
            Err(RedactError::Append(AppendError::Conflict { .. })) => {}
            Err(RedactError::Append(error)) => return Err(error.into()),
            Err(RedactError::Read(error)) => return Err(error.into()),
            Err(RedactError::UnknownSeq { seq, .. }) => {
                return Err(CommandError::EventNotFound(seq.get()));
            }
            Ok(_) => {
                crash::point("retention.batch");
                return Ok(());
            }
        }
    }
    Err(CommandError::TooMany {
        what: "decisions on the ledger",
        limit: DECIDE_ATTEMPTS_MAX,
    })
}

/// What is recorded with one batch: with the first one of a session, what is left of it.
fn streams(
    inner: &Inner,
    id: SessionId,
    seqs: &[GlobalSeq],
    blobs: &[BlobDigest],
    open: &OpenRetention,
) -> Result<Vec<StreamAppend>, CommandError> {
    let world = inner.book.world();
    let redacted = Event::LedgerRedacted(LedgerRedacted {
        seqs: seqs.iter().map(|seq| seq.get()).collect(),
        blobs: blobs.len() as u64,
        reason: open.started.reason.clone(),
    });
    let mut streams = vec![stream_append(
        ledger_stream()?,
        world.holds.version(),
        redacted,
    )?];
    if let Some(session) = world.sessions.get(id).filter(|session| !session.erased) {
        let version = Some(session.version);
        streams.push(stream_append(id.stream(), version, remains(session))?);
    }
    Ok(streams)
}

/// The error that a refusal is answered with, which is recorded first.
async fn refuse(
    inner: &Inner,
    caller: &Caller,
    before: u64,
    session: SessionId,
    reason: String,
    hold: Hold,
) -> CommandError {
    let refused = Event::LedgerRetentionRefused(LedgerRetentionRefused {
        before,
        session: hold.session.map(|_| session),
        reason,
        because: format!("hold {}", hold.seq),
    });
    let stream = match ledger_stream() {
        Ok(stream) => stream,
        Err(error) => return error,
    };
    let entry = Entry::new(refused);
    let recorded = inner
        .book
        .append(caller, stream, ExpectedVersion::Any, entry);
    match recorded.await {
        Ok(recorded) => CommandError::UnderHold {
            hold: hold.seq,
            reason: hold.reason,
            refusal: recorded.header.seq.get(),
        },
        Err(error) => error,
    }
}
