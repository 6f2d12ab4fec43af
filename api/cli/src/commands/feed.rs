//! Our standard input into a job's, over any break of the connection and over restarts of the daemon.
//!
//! It goes out in bodies of some mebibytes, each kept until the daemon has answered it. Each says how many
//! bytes were written before it, so that one whose answer did not come can be sent again: what the job took
//! of it is not written twice.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context as TaskContext;
use std::task::Poll;
use std::thread;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::events::BREAKS_MAX;
use super::events::may_pass;
use super::events::pause;
use super::file_error;
use super::jobs;
use crate::client::Client;
use crate::client::Patience;
use crate::client::with_query;
use crate::duplex;
use crate::duplex::Pieces;
use crate::error::CliError;
use crate::render;

/// Bytes of one body: what is kept in memory until it is answered. Each is two events in the ledger.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Where bytes go.
pub(super) struct Target {
    pub(super) session: String,
    pub(super) job: String,
    /// How many bytes were written to the job before; unknown where others wrote.
    pub(super) offset: Option<u64>,
}

/// Writes everything that comes on our standard input to a job, and closes the job's after it if asked to.
pub(super) fn feed(
    context: &Context,
    mut client: Client,
    mut target: Target,
    close: bool,
) -> Result<Value, CliError> {
    if target.offset.is_none() {
        // Nothing, to be told where the job is.
        let answer = client.post(&target.path(), &json!({"text": ""}), Patience::Normal)?;
        target.offset = render::number(&answer, "next_offset");
    }
    let waiting = Waiting::new(duplex::read_stdin());
    let mut breaks = 0;
    loop {
        match target.send(&client, &waiting, close) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => breaks = 0,
            // Without its place a body that was taken in part cannot be sent again.
            Err(error) if may_pass(&error) && target.offset.is_some() && breaks < BREAKS_MAX => {
                breaks += 1;
                thread::sleep(pause(breaks));
                if let Ok(anew) = context.client() {
                    client = anew;
                }
            }
            Err(error) => return Err(error),
        }
    }
}

impl Target {
    fn path(&self) -> String {
        format!("{}/{}/stdin", jobs::path(&self.session), self.job)
    }

    /// Sends one body, or the end. Answers with the last answer once everything is done.
    fn send(
        &mut self,
        client: &Client,
        waiting: &Waiting,
        close: bool,
    ) -> Result<Option<Value>, CliError> {
        let offset = self.offset;
        if close && waiting.is_done() {
            let mut end = json!({"close": true});
            if let (Some(offset), Value::Object(map)) = (offset, &mut end) {
                map.insert("offset".to_owned(), offset.into());
            }
            return client.post(&self.path(), &end, Patience::Normal).map(Some);
        }
        let pairs = [("offset", offset.map(|offset| offset.to_string()))];
        let path = with_query(&self.path(), &pairs);
        let answered = client.post_while_sending(&path, waiting.body(), Patience::Endless);
        // Ours broke off, and nothing that is sent again would be the whole.
        if let Some(error) = waiting.failure() {
            return Err(file_error(Path::new("standard input"), error));
        }
        let answer = answered?;
        let written = render::number(&answer, "written").unwrap_or_default();
        self.offset = offset.map(|offset| offset.saturating_add(written));
        waiting.confirm();
        Ok((waiting.is_done() && !close).then_some(answer))
    }
}

/// What was read of our standard input and is not known to be taken, and what is still to come.
#[derive(Clone)]
struct Waiting(Arc<Mutex<Kept>>);

struct Kept {
    source: Pieces,
    /// The current body, as far as it came.
    pieces: Vec<Bytes>,
    bytes: usize,
    /// Pieces of it that the current attempt has sent.
    sent: usize,
    /// Nothing more comes.
    ended: bool,
    failure: Option<io::Error>,
}

impl Waiting {
    fn new(source: Pieces) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            source,
            pieces: Vec::new(),
            bytes: 0,
            sent: 0,
            ended: false,
            failure: None,
        })))
    }

    /// The current body, from its beginning, with what comes meanwhile.
    fn body(&self) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        self.kept().sent = 0;
        let waiting = self.clone();
        stream::poll_fn(move |context| waiting.kept().next(context))
    }

    /// The current body was taken.
    fn confirm(&self) {
        let mut kept = self.kept();
        kept.pieces.clear();
        (kept.bytes, kept.sent) = (0, 0);
    }

    /// Whether everything came and was taken.
    fn is_done(&self) -> bool {
        let kept = self.kept();
        kept.ended && kept.pieces.is_empty()
    }

    fn failure(&self) -> Option<io::Error> {
        self.kept().failure.take()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn next(&mut self, context: &mut TaskContext<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if let Some(piece) = self.pieces.get(self.sent) {
            self.sent += 1;
            return Poll::Ready(Some(Ok(piece.clone())));
        }
        if self.ended || self.bytes >= BODY_BYTES_MAX {
            return Poll::Ready(None);
        }
        match self.source.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(piece))) => {
                self.bytes += piece.len();
                self.sent += 1;
                self.pieces.push(piece.clone());
                Poll::Ready(Some(Ok(piece)))
            }
            Poll::Ready(Some(Err(error))) => {
                let kind = error.kind();
                self.failure = Some(error);
                Poll::Ready(Some(Err(kind.into())))
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::StreamExt;

    fn sent(waiting: &Waiting) -> Vec<Bytes> {
        let body = waiting.body().map(|piece| piece.expect("fine"));
        body.collect().now_or_never().expect("all is there")
    }

    #[test]
    fn a_body_is_kept_until_it_is_answered_and_sent_again_whole() {
        let (sender, source) = tokio::sync::mpsc::channel(8);
        let waiting = Waiting::new(source);
        let give = |bytes: &'static [u8]| {
            let piece = Ok(Bytes::from_static(bytes));
            sender.try_send(piece).expect("room");
        };
        give(b"one");
        give(b"two");
        let mut body = Box::pin(waiting.body());
        assert_eq!(
            body.next()
                .now_or_never()
                .flatten()
                .expect("one")
                .expect("fine"),
            "one"
        );
        drop(body);
        // The connection broke; what came of it comes again, and what came since.
        drop(sender);
        assert_eq!(sent(&waiting), ["one", "two"]);
        assert!(!waiting.is_done(), "it is not answered");
        waiting.confirm();
        assert!(waiting.is_done());
        assert!(sent(&waiting).is_empty());
    }

    #[test]
    fn a_body_has_its_limit() {
        let (sender, source) = tokio::sync::mpsc::channel(8);
        let waiting = Waiting::new(source);
        for _ in 0..2 {
            let piece = Ok(Bytes::from(vec![0; BODY_BYTES_MAX]));
            sender.try_send(piece).expect("room");
        }
        drop(sender);
        assert_eq!(sent(&waiting).len(), 1);
        waiting.confirm();
        assert_eq!(sent(&waiting).len(), 1);
        waiting.confirm();
        assert!(sent(&waiting).is_empty() && waiting.is_done());
    }
}
