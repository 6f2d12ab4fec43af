//! Bytes for a running job's standard input: an intent, the bytes, and an outcome that says how many it
//! took. However many come in one request, in one piece or as a stream, are one intent and one outcome.
//!
//! A write can say where it belongs: how many bytes were written before it. The guest counts what it took,
//! so that such a write may be repeated by whoever does not know what became of it, over a daemon that was
//! killed too. What was taken is answered and not written again; a write behind it is refused.

use std::sync::Arc;

use agentd_client::AgentdClient;
use agentd_client::ClientError;
use agentd_protocol::ExecId;
use bytes::Bytes;
use bytes::BytesMut;
use fluxvm_projections::Event;
use fluxvm_projections::JobId;
use fluxvm_projections::JobStdinStarted;
use fluxvm_projections::JobStdinWritten;
use fluxvm_projections::SessionId;
use futures_util::FutureExt;
use futures_util::StreamExt;

use super::conclude;
use super::decide;
use super::exec_id;
use super::guest;
use crate::caller::Caller;
use crate::crash;
use crate::engine::Inner;
use crate::error::CommandError;
use crate::limits::EXEC_STDIN_PORTION_BYTES;
use crate::request::InputBytes;
use crate::request::JobInput;
use crate::request::StdinSource;

/// What a job took of a write to its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputTaken {
    /// The ledger number of the outcome.
    pub seq: u64,
    /// Bytes of this write that it has: fewer than were sent when it does not read.
    pub written: u64,
    /// Its standard input is closed now.
    pub closed: bool,
    /// Bytes that it took of all writes together, where the guest says it: the next one's offset.
    pub taken: Option<u64>,
}

/// Writes to a job's standard input.
pub(crate) async fn write(
    inner: &Arc<Inner>,
    caller: &Caller,
    id: SessionId,
    job: JobId,
    input: JobInput,
) -> Result<InputTaken, CommandError> {
    let asked = decide::check_input(job, &input)?;
    inner.expire_if_due(caller, id).await?;
    let now = inner.clock.now();
    // As long as this lives, somebody writes.
    let _writer = inner.live_jobs.writer(job);
    let turn = inner.turns.take(id).await;
    let (_, intent) = inner
        .book
        .decide(caller, id, |session| {
            let known = inner.job(id, job).ok();
            decide::input(session, known.as_ref(), &asked, now)
        })
        .await?;
    drop(turn);
    crash::point("job.stdin.intent");
    let mut fed = Fed::default();
    match guest(inner, id) {
        Some(guest) => {
            let feeder = Feeder {
                guest: &guest,
                exec_id: &exec_id(job)?,
                asked: &asked,
            };
            feeder.feed(inner, input.bytes, &mut fed).await;
        }
        None => fed.code = Some("guest_unreachable"),
    }
    crash::point("job.stdin.written");
    let written = Event::JobStdinWritten(JobStdinWritten {
        op: intent.header.seq.get(),
        job,
        written: fed.written,
        taken: fed.taken,
        closed: fed.closed,
        code: fed.code.map(str::to_owned),
    });
    let seq = conclude(inner, caller, id, &intent, written).await?;
    fed.answer(&asked, seq)
}

/// What became of a write so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fed {
    written: u64,
    taken: Option<u64>,
    closed: bool,
    /// Why not everything was done.
    code: Option<&'static str>,
}

impl Fed {
    fn answer(self, asked: &JobStdinStarted, seq: u64) -> Result<InputTaken, CommandError> {
        let job = asked.job;
        match self.code {
            None | Some("stdin_full") => Ok(InputTaken {
                seq,
                written: self.written,
                closed: self.closed,
                taken: self.taken,
            }),
            Some("stdin_closed") => Err(CommandError::StdinClosed {
                job,
                why: "the job closed it",
            }),
            Some("job_ended") => Err(CommandError::JobEnded(job)),
            Some("stdin_gap") => Err(CommandError::Invalid {
                field: "offset",
                message: format!(
                    "is {}, and the job took {} bytes so far: bytes between them are missing",
                    asked.offset.unwrap_or_default(),
                    self.taken.unwrap_or_default()
                ),
            }),
            Some("stdin_cut") => Err(CommandError::Invalid {
                field: "body",
                message: format!("broke off; the job has {} bytes of it", self.written),
            }),
            Some(code) => Err(CommandError::ExecFailed {
                code: code.to_owned(),
                reason: "the guest did not say what became of the write".to_owned(),
            }),
        }
    }

    /// Takes in what the guest says of one portion. Answers how many of its bytes are done with.
    fn take(&mut self, told: Result<agentd_protocol::StdinState, ClientError>) -> u64 {
        let (written, taken, code) = match told {
            Ok(state) => (state.written, state.x.map(|x| x.taken), None),
            Err(ClientError::Refused {
                status,
                slug,
                written,
                taken,
                ..
            }) => {
                let code = match (status, slug.as_deref()) {
                    (408, _) => Some("stdin_full"),
                    (409, Some("stdin_gap")) => Some("stdin_gap"),
                    (409 | 410, _) => Some("stdin_closed"),
                    (404, _) => Some("job_ended"),
                    _ => Some("guest_unreachable"),
                };
                (written.unwrap_or_default(), taken, code)
            }
            Err(_) => (0, None, Some("guest_unreachable")),
        };
        self.written += written;
        self.taken = taken.or(self.taken);
        self.closed |= matches!(code, Some("stdin_closed" | "job_ended"));
        self.code = code;
        written
    }
}

/// The way of one write into the guest.
struct Feeder<'a> {
    guest: &'a AgentdClient,
    exec_id: &'a ExecId,
    asked: &'a JobStdinStarted,
}

impl Feeder<'_> {
    async fn feed(&self, inner: &Inner, bytes: InputBytes, fed: &mut Fed) {
        match bytes {
            InputBytes::Whole(_, bytes) => {
                self.portion(&bytes, self.asked.close, fed).await;
            }
            InputBytes::Stream(source) => {
                let ended = inner.live_jobs.ended(self.asked.job);
                tokio::select! {
                    () = self.stream(source, fed) => {}
                    // Whoever sends need not find out by sending.
                    () = ended => (fed.code, fed.closed) = (Some("job_ended"), true),
                }
            }
        }
    }

    /// Everything that comes, in order, no faster than the job takes it.
    async fn stream(&self, mut source: StdinSource, fed: &mut Fed) {
        while let Some(arrived) = arrived(&mut source).await {
            let Ok(mut rest) = arrived else {
                fed.code = Some("stdin_cut");
                return;
            };
            while !rest.is_empty() {
                let portion = rest.slice(..rest.len().min(EXEC_STDIN_PORTION_BYTES));
                let written = self.portion(&portion, false, fed).await;
                // A job that is slow to read may be for as long as it lives.
                if !matches!(fed.code, None | Some("stdin_full")) {
                    return;
                }
                let written = usize::try_from(written).unwrap_or(usize::MAX);
                rest = rest.slice(written.min(rest.len())..);
            }
        }
        // The answer to an empty write says where the next one belongs.
        self.portion(&[], self.asked.close, fed).await;
    }

    async fn portion(&self, bytes: &[u8], close: bool, fed: &mut Fed) -> u64 {
        let before = self.asked.offset;
        let offset = before.map(|offset| offset.saturating_add(fed.written));
        let told = self.guest.stdin_at(self.exec_id, offset, bytes, close);
        let told = told.await;
        fed.closed |= close && told.as_ref().is_ok_and(|state| state.eof);
        fed.take(told)
    }
}

/// The next bytes of a source, together with those that are there already, up to a portion; an error where
/// it broke off, and `None` at its end.
async fn arrived(source: &mut StdinSource) -> Option<std::io::Result<Bytes>> {
    let first = match source.next().await? {
        Ok(bytes) => bytes,
        broken => return Some(broken),
    };
    if first.len() >= EXEC_STDIN_PORTION_BYTES {
        return Some(Ok(first));
    }
    let mut all = BytesMut::from(first);
    while all.len() < EXEC_STDIN_PORTION_BYTES {
        match source.next().now_or_never() {
            Some(Some(Ok(more))) => all.extend_from_slice(&more),
            Some(Some(broken)) => return Some(broken),
            Some(None) | None => break,
        }
    }
    Some(Ok(all.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_protocol::StdinState;
    use agentd_protocol::StdinStateExtension;
    use uuid::Uuid;

    fn refused(status: u16, slug: &str, written: u64, taken: u64) -> ClientError {
        ClientError::Refused {
            status,
            slug: Some(slug.into()),
            detail: String::new(),
            written: Some(written),
            taken: Some(taken),
        }
    }

    #[test]
    fn each_answer_of_the_guest_has_its_outcome() {
        let asked = JobStdinStarted {
            job: JobId(Uuid::nil()),
            bytes: 3,
            streamed: false,
            offset: Some(9),
            close: false,
        };
        let outcome = |told| {
            let mut fed = Fed::default();
            fed.take(told);
            fed.answer(&asked, 1)
        };
        let state = StdinState {
            exec_id: exec_id(asked.job).expect("id"),
            written: 3,
            eof: false,
            x: Some(StdinStateExtension { taken: 12 }),
        };
        let taken = outcome(Ok(state)).expect("taken");
        assert_eq!((taken.written, taken.taken), (3, Some(12)));
        let full = outcome(Err(refused(408, "stdin_write_timeout", 1, 10))).expect("part");
        assert_eq!((full.written, full.closed), (1, false));
        for (status, slug, code, field) in [
            (409, "stdin_gap", "invalid_field", Some("offset")),
            (409, "stdin_not_requested", "stdin_closed", None),
            (410, "stdin_closed", "stdin_closed", None),
            (404, "unknown_exec", "job_ended", None),
            (500, "stdin_write_failed", "guest_unreachable", None),
        ] {
            let error = outcome(Err(refused(status, slug, 0, 4))).expect_err(slug);
            assert_eq!((error.code(), error.field()), (code, field), "{slug}");
        }
    }

    #[tokio::test]
    async fn what_is_there_already_goes_along_and_a_break_is_seen() {
        let pieces = [&b"ab"[..], b"c"].map(|piece| Ok(Bytes::from_static(piece)));
        let broken = Err(std::io::ErrorKind::BrokenPipe.into());
        let pieces = pieces.into_iter().chain([broken]);
        let mut source: StdinSource = Box::pin(futures_util::stream::iter(pieces));
        assert!(arrived(&mut source).await.expect("a break").is_err());
        let pieces = [&b"ab"[..], b"c"].map(|piece| Ok(Bytes::from_static(piece)));
        let mut source: StdinSource = Box::pin(futures_util::stream::iter(pieces));
        let all = arrived(&mut source).await.expect("some").expect("bytes");
        assert_eq!(all, "abc");
        assert!(arrived(&mut source).await.is_none());
    }
}
