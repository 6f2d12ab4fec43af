//! Requests that may be sent twice and happen once.
//!
//! A key is claimed in the ledger before its request runs, so that two racing requests cannot both
//! run, and answered in the ledger before the caller is, so that a retry after any loss gets the same
//! answer. The stream's name is a digest: neither the key nor the caller enters the ledger.

use std::sync::Arc;

use bytes::Bytes;
use chrono::TimeDelta;
use fluxvm_eventstore::AppendError;
use fluxvm_eventstore::BlobDigest;
use fluxvm_eventstore::ExpectedVersion;
use fluxvm_eventstore::Position;
use fluxvm_eventstore::StreamName;
use fluxvm_projections::Event;
use fluxvm_projections::IdempotencyAnswered;
use fluxvm_projections::IdempotencyClaimed;
use fluxvm_projections::IdempotencyReleased;
use fluxvm_projections::KeyState;
use fluxvm_projections::SessionId;

use crate::aftermath;
use crate::aftermath::Aftermath;
use crate::aftermath::Done;
use crate::book::Entry;
use crate::caller::Caller;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::IDEMPOTENCY_ANSWER_BYTES_MAX;
use crate::limits::IDEMPOTENCY_TTL_SECONDS;

/// A key that this request holds until it is answered or released.
#[derive(Debug)]
pub struct ClaimedKey {
    stream: StreamName,
}

/// The answer that every retry with a key gets.
#[derive(Debug)]
pub struct KeyAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// The session that the body is about.
    pub session: Option<SessionId>,
}

/// What a key's claim came to.
#[derive(Debug)]
pub enum KeyClaim {
    /// The request is the first; it runs.
    Fresh(ClaimedKey),
    /// The request was answered before, with this.
    Answered {
        /// The HTTP status.
        status: u16,
        /// The content type.
        content_type: String,
        /// The body.
        body: Bytes,
    },
    /// The request was done by an earlier daemon that ended before it stored the answer. Whoever gets
    /// this stores it now.
    Done(ClaimedKey, Done),
}

/// What the key's state says about a request with this body.
enum Standing {
    Free(ExpectedVersion),
    Answered(IdempotencyAnswered),
    /// An earlier daemon claimed it and did not answer.
    Orphaned,
}

pub(crate) async fn claim(
    inner: &Arc<Inner>,
    caller: &Caller,
    name: &str,
    body_blake3: &str,
) -> Result<KeyClaim, CommandError> {
    let stream = StreamName::parse(&format!("idempotency/{name}"))
        .map_err(|error| CommandError::Internal(error.to_string()))?;
    let key = inner.book.world().idempotency.get(stream.as_str()).cloned();
    let expected = match standing(
        key.as_ref(),
        body_blake3,
        inner.clock.now(),
        inner.inherited,
    )? {
        Standing::Free(expected) => expected,
        Standing::Answered(answer) => return answered(inner, answer).await,
        Standing::Orphaned => return orphaned(inner, caller, stream, key).await,
    };
    let claimed = IdempotencyClaimed {
        body_blake3: body_blake3.to_owned(),
    };
    let entry = Entry::new(Event::IdempotencyClaimed(claimed));
    match inner
        .book
        .append(caller, stream.clone(), expected, entry)
        .await
    {
        Ok(_) => Ok(KeyClaim::Fresh(ClaimedKey { stream })),
        // Another request with the same key was faster by less than a commit.
        Err(CommandError::Ledger(AppendError::Conflict { .. })) => {
            Err(CommandError::IdempotencyRunning)
        }
        Err(error) => Err(error),
    }
}

pub(crate) async fn answer(
    inner: &Inner,
    caller: &Caller,
    key: ClaimedKey,
    answer: KeyAnswer,
) -> Result<(), CommandError> {
    let KeyAnswer {
        status,
        content_type,
        body,
        session,
    } = answer;
    if body.len() > IDEMPOTENCY_ANSWER_BYTES_MAX {
        release(inner, caller, key).await?;
        let limit = IDEMPOTENCY_ANSWER_BYTES_MAX;
        return Err(CommandError::Internal(format!(
            "the answer is over the {limit} bytes that are stored for an Idempotency-Key"
        )));
    }
    let answered = Event::IdempotencyAnswered(IdempotencyAnswered {
        status,
        content_type,
        body: blake3::hash(&body).to_hex().to_string(),
        session,
    });
    let mut entry = Entry::new(answered).about(session);
    if !body.is_empty() {
        entry = entry.with(vec![body]);
    }
    inner
        .book
        .append(caller, key.stream, ExpectedVersion::Exists, entry)
        .await?;
    Ok(())
}

pub(crate) async fn release(
    inner: &Inner,
    caller: &Caller,
    key: ClaimedKey,
) -> Result<(), CommandError> {
    let released = IdempotencyReleased {
        reason: "failed".to_owned(),
    };
    let entry = Entry::new(Event::IdempotencyReleased(released));
    inner
        .book
        .append(caller, key.stream, ExpectedVersion::Exists, entry)
        .await?;
    Ok(())
}

/// Pure: what the key's state means for a request with this body.
fn standing(
    key: Option<&KeyState>,
    body_blake3: &str,
    now: chrono::DateTime<chrono::Utc>,
    inherited: Position,
) -> Result<Standing, CommandError> {
    let Some(key) = key else {
        return Ok(Standing::Free(ExpectedVersion::NoStream));
    };
    let free = Standing::Free(ExpectedVersion::Exact(key.version));
    let is_old = now - key.claimed_at >= TimeDelta::seconds(IDEMPOTENCY_TTL_SECONDS);
    match (&key.body_blake3, &key.answer) {
        (None, _) => Ok(free),
        (Some(_), _) if is_old => Ok(free),
        (Some(body), _) if body != body_blake3 => Err(CommandError::IdempotencyMismatch),
        (Some(_), None) if key.erased => Err(CommandError::AnswerErased),
        (Some(_), None) if key.claimed_seq.position() <= inherited => Ok(Standing::Orphaned),
        (Some(_), None) => Err(CommandError::IdempotencyRunning),
        (Some(_), Some(answer)) => Ok(Standing::Answered(answer.clone())),
    }
}

/// A request that an earlier daemon took on: what it did is in the ledger.
async fn orphaned(
    inner: &Arc<Inner>,
    caller: &Caller,
    stream: StreamName,
    key: Option<KeyState>,
) -> Result<KeyClaim, CommandError> {
    let effect = match &key {
        Some(key) => aftermath::effect(inner, key).await?,
        None => None,
    };
    // Without an effect recovery is about to free the key.
    let Some(effect) = effect else {
        return Err(CommandError::IdempotencyRunning);
    };
    let key = ClaimedKey { stream };
    match aftermath::of(inner, caller, &effect).await? {
        Aftermath::Done(done) => Ok(KeyClaim::Done(key, done)),
        Aftermath::Runs => Err(CommandError::IdempotencyRunning),
        Aftermath::Failed(error) => {
            release(inner, caller, key).await?;
            Err(error)
        }
    }
}

async fn answered(inner: &Inner, answer: IdempotencyAnswered) -> Result<KeyClaim, CommandError> {
    let body = inner.content(answer.session, &answer.body).await?;
    Ok(KeyClaim::Answered {
        status: answer.status,
        content_type: answer.content_type,
        body,
    })
}

impl Inner {
    /// Content that an event refers to, of a session if it is one's. The empty content is never stored.
    pub(crate) async fn content(
        &self,
        session: Option<SessionId>,
        blake3_hex: &str,
    ) -> Result<Bytes, CommandError> {
        if blake3_hex == blake3::hash(b"").to_hex().as_str() {
            return Ok(Bytes::new());
        }
        let internal = |what: String| CommandError::Internal(what);
        let digest: BlobDigest = blake3_hex
            .parse()
            .map_err(|error| internal(format!("{error}")))?;
        let ledger = self.book.ledger().clone();
        let read = move || match session.map(|id| id.stream()) {
            Some(stream) => ledger.blob_of(&stream, &digest),
            None => ledger.blob(&digest),
        };
        let found = tokio::task::spawn_blocking(read).await;
        let found = found.map_err(|error| internal(error.to_string()))??;
        found.ok_or_else(|| internal(format!("content {blake3_hex} is no longer stored")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use fluxvm_eventstore::CorrelationId;
    use fluxvm_eventstore::GlobalSeq;
    use fluxvm_eventstore::StreamVersion;
    use uuid::Uuid;

    fn key(body: Option<&str>, answered: bool, age_seconds: i64) -> KeyState {
        let answer = IdempotencyAnswered {
            status: 201,
            content_type: "a/b".into(),
            body: "c".into(),
            session: None,
        };
        KeyState {
            version: StreamVersion::new(1).unwrap(),
            body_blake3: body.map(str::to_owned),
            claimed_seq: GlobalSeq::FIRST,
            claimed_at: now() - TimeDelta::seconds(age_seconds),
            request: CorrelationId::new(Uuid::nil()),
            answer: answered.then_some(answer),
            erased: false,
        }
    }

    fn check(key: Option<&KeyState>) -> &'static str {
        check_after(key, Position::START)
    }

    fn check_after(key: Option<&KeyState>, inherited: Position) -> &'static str {
        match standing(key, "aa", now(), inherited) {
            Ok(Standing::Free(_)) => "free",
            Ok(Standing::Orphaned) => "orphaned",
            Ok(Standing::Answered(_)) => "answered",
            Err(CommandError::IdempotencyMismatch) => "mismatch",
            Err(CommandError::IdempotencyRunning) => "running",
            Err(CommandError::AnswerErased) => "erased",
            Err(_) => "another error",
        }
    }

    #[test]
    fn a_key_runs_once_and_answers_the_same_body_the_same_for_a_day() {
        assert_eq!(check(None), "free");
        assert_eq!(check(Some(&key(Some("aa"), false, 1))), "running");
        assert_eq!(check(Some(&key(Some("aa"), true, 1))), "answered");
        assert_eq!(check(Some(&key(Some("bb"), true, 1))), "mismatch");
        assert_eq!(check(Some(&key(Some("bb"), false, 1))), "mismatch");
        assert_eq!(
            check(Some(&key(None, false, 1))),
            "free",
            "its request failed"
        );
        assert_eq!(
            check(Some(&key(Some("bb"), true, IDEMPOTENCY_TTL_SECONDS))),
            "free"
        );
    }

    #[test]
    fn a_key_whose_answer_was_erased_never_runs_again() {
        let erased = |age_seconds| KeyState {
            erased: true,
            ..key(Some("aa"), false, age_seconds)
        };
        assert_eq!(check(Some(&erased(1))), "erased");
        let inherited = GlobalSeq::FIRST.position();
        assert_eq!(check_after(Some(&erased(1)), inherited), "erased");
        assert_eq!(check(Some(&erased(IDEMPOTENCY_TTL_SECONDS))), "free");
    }

    #[test]
    fn a_key_that_an_earlier_daemon_claimed_is_answered_from_what_was_done() {
        let inherited = GlobalSeq::FIRST.position();
        let check = |key: &KeyState| check_after(Some(key), inherited);
        assert_eq!(check(&key(Some("aa"), false, 1)), "orphaned");
        assert_eq!(check(&key(Some("aa"), true, 1)), "answered");
        assert_eq!(check(&key(Some("bb"), false, 1)), "mismatch");
        assert_eq!(check(&key(None, false, 1)), "free");
    }
}
