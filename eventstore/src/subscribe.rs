//! Following a ledger: what is there first, then what comes, with no seam between the two.
//!
//! A subscription pulls by number and the watermark merely wakes it. There is no queue that could
//! overflow and no moment of changing over, so nothing can be missed or come twice, however slow
//! the subscriber is. One that keeps up reads nothing but memory.

use std::collections::VecDeque;
use std::sync::Arc;

use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use tokio::sync::watch;

use crate::Head;
use crate::ReadError;
use crate::shared::Shared;

/// How many events are fetched at a time.
const PAGE_EVENTS: usize = 256;

/// Which events a subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// All of them.
    All,
    /// Those of one stream.
    Stream(StreamName),
}

/// A place in the ledger that moves forward.
pub struct Subscription {
    shared: Arc<Shared>,
    filter: Filter,
    watermark: watch::Receiver<Head>,
    position: Position,
    page: VecDeque<Arc<RecordedEvent>>,
    /// Where the page ends; beyond its last event where events were passed over.
    page_end: Position,
}

impl Subscription {
    pub(crate) fn new(shared: Arc<Shared>, filter: Filter, after: Position) -> Subscription {
        let watermark = shared.watermark.clone();
        let page = VecDeque::new();
        Subscription {
            shared,
            filter,
            watermark,
            position: after,
            page,
            page_end: after,
        }
    }

    /// The next event that the filter lets through; waits for it. `None` once the ledger is closed
    /// and all of it was seen. After an error the same event is tried again.
    ///
    /// Nothing is lost when the future is dropped before it is done.
    pub async fn next(&mut self) -> Option<Result<Arc<RecordedEvent>, ReadError>> {
        loop {
            if let Some(event) = self.page.pop_front() {
                self.position = event.seq().position();
                return Some(Ok(event));
            }
            self.position = self.position.max(self.page_end);
            let head = self.watermark.borrow_and_update().position;
            if self.position < head {
                if let Err(e) = self.fetch(head).await {
                    return Some(Err(e));
                }
            } else if self.watermark.changed().await.is_err() && self.is_drained() {
                return None;
            }
        }
    }

    /// How far the subscriber has come, events that the filter kept back included. A new
    /// subscription from here on misses nothing and repeats nothing.
    pub fn position(&self) -> Position {
        self.position
    }

    fn is_drained(&self) -> bool {
        self.position >= self.watermark.borrow().position
    }

    async fn fetch(&mut self, head: Position) -> Result<(), ReadError> {
        let fetched = if self.shared.is_in_memory(self.position) {
            fetch(&self.shared, &self.filter, self.position, head)
        } else {
            let (shared, filter) = (Arc::clone(&self.shared), self.filter.clone());
            let position = self.position;
            let fetch = move || fetch(&shared, &filter, position, head);
            tokio::task::spawn_blocking(fetch)
                .await
                .map_err(|_| ReadError::Closed)?
        };
        (self.page, self.page_end) = fetched?;
        Ok(())
    }
}

/// The next page behind `position`, and the point up to which it is complete.
fn fetch(
    shared: &Shared,
    filter: &Filter,
    position: Position,
    head: Position,
) -> Result<(VecDeque<Arc<RecordedEvent>>, Position), ReadError> {
    let (events, complete) = match filter {
        Filter::All => {
            let events = shared.read(position, PAGE_EVENTS)?;
            (events, position)
        }
        Filter::Stream(stream) => {
            let seqs = {
                let memory = shared.memory();
                memory.stream_seqs_after_position(stream, position, head, PAGE_EVENTS)
            };
            let events = shared.read_seqs(&seqs)?;
            // A page that is not full holds all there is of the stream up to the head.
            let all = events.len() == seqs.len() && seqs.len() < PAGE_EVENTS;
            (events, if all { head } else { position })
        }
    };
    let last = events
        .last()
        .map_or(position, |event| event.seq().position());
    Ok((events.into(), last.max(complete)))
}
