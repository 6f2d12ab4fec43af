//! What of the ledger is kept in memory: where each stream's events are, and the newest events.
//!
//! The index holds eight bytes an event. The tail spares subscribers and readers the store: whoever
//! keeps up reads nothing but memory.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

use fluxvm_verify::GlobalSeq;
use fluxvm_verify::Position;
use fluxvm_verify::RecordedEvent;
use fluxvm_verify::StreamName;
use fluxvm_verify::StreamVersion;
use fluxvm_verify::TreeHash;

use crate::tree::BLOCK_LEAVES;

/// How many of the newest events are kept: a reader some tenths of a second behind still finds its
/// place.
const TAIL_EVENTS_MAX: usize = 4096;
/// How many bytes of payload the tail may hold, in case the events are large.
const TAIL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Index and tail. Changed by the committer only, behind a lock.
#[derive(Default)]
pub(crate) struct Memory {
    streams: HashMap<StreamName, Vec<GlobalSeq>>,
    tail: VecDeque<Arc<RecordedEvent>>,
    tail_bytes: usize,
    /// How many events were taken in all.
    end: Position,
    /// The leaves of the newest block of the tree, up to all of them.
    leaves: Vec<TreeHash>,
}

impl Memory {
    /// An index of these streams up to `end`, and no tail.
    pub(crate) fn restored(
        streams: HashMap<StreamName, Vec<GlobalSeq>>,
        end: Position,
        leaves: Vec<TreeHash>,
    ) -> Memory {
        Memory {
            streams,
            end,
            leaves,
            ..Memory::default()
        }
    }

    /// Where the events of each stream are, in no order of the streams.
    pub(crate) fn streams(&self) -> impl ExactSizeIterator<Item = (&StreamName, &[GlobalSeq])> {
        self.streams
            .iter()
            .map(|(stream, seqs)| (stream, seqs.as_slice()))
    }

    /// Takes the leaf of the event that comes next.
    pub(crate) fn push_leaf(&mut self, leaf: TreeHash) {
        if self.leaves.len() >= BLOCK_LEAVES {
            self.leaves.clear();
        }
        self.leaves.push(leaf);
    }

    /// How many events were taken in all.
    pub(crate) fn end(&self) -> Position {
        self.end
    }

    /// The leaves of the newest block of the tree. Those of a block that is not complete are
    /// nowhere else.
    pub(crate) fn leaves(&self) -> &[TreeHash] {
        &self.leaves
    }

    /// Takes the next event.
    pub(crate) fn push(&mut self, event: &Arc<RecordedEvent>) {
        match self.streams.get_mut(&event.header.stream) {
            Some(seqs) => seqs.push(event.seq()),
            None => {
                self.streams
                    .insert(event.header.stream.clone(), vec![event.seq()]);
            }
        }
        self.end = event.seq().position();
        self.tail_bytes += payload_bytes(event);
        self.tail.push_back(Arc::clone(event));
        while self.tail.len() > TAIL_EVENTS_MAX || self.tail_bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.tail.pop_front() else {
                break;
            };
            self.tail_bytes -= payload_bytes(&oldest);
        }
    }

    /// Lets go of the newest events: what is read from now on is read from the store.
    pub(crate) fn forget_tail(&mut self) {
        self.tail.clear();
        self.tail_bytes = 0;
    }

    /// Puts the erased form of an event in its place, if the event is in the tail.
    pub(crate) fn erase(&mut self, event: &Arc<RecordedEvent>) {
        let first = self.tail.front().map(|first| first.seq().get());
        let place = first.and_then(|first| event.seq().get().checked_sub(first));
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(held) = place.and_then(|place| self.tail.get_mut(place)) {
            self.tail_bytes -= payload_bytes(held);
            *held = Arc::clone(event);
        }
    }

    /// The version that the stream has reached among the events before `until`.
    pub(crate) fn version(&self, stream: &StreamName, until: Position) -> Option<StreamVersion> {
        let seqs = self.streams.get(stream)?;
        // All but always the whole stream is before the watermark.
        let visible = match seqs.last() {
            Some(last) if last.position() <= until => seqs.len(),
            _ => seqs.partition_point(|seq| seq.position() <= until),
        };
        StreamVersion::new(u64::try_from(visible).unwrap_or(u64::MAX))
    }

    /// The version that the stream has reached.
    pub(crate) fn latest_version(&self, stream: &StreamName) -> Option<StreamVersion> {
        self.version(stream, Position::new(u64::MAX))
    }

    /// Where the stream's events behind `after` and before `until` are, at most `limit` of them.
    pub(crate) fn stream_seqs_after_version(
        &self,
        stream: &StreamName,
        after: Option<StreamVersion>,
        until: Position,
        limit: usize,
    ) -> Vec<GlobalSeq> {
        let skip = after.map_or(0, |version| {
            usize::try_from(version.get()).unwrap_or(usize::MAX)
        });
        let seqs = self
            .streams
            .get(stream)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let seqs = seqs.get(skip..).unwrap_or_default();
        seqs.iter()
            .copied()
            .take_while(|seq| seq.position() <= until)
            .take(limit)
            .collect()
    }

    /// The same, counted from a point in the ledger.
    pub(crate) fn stream_seqs_after_position(
        &self,
        stream: &StreamName,
        after: Position,
        until: Position,
        limit: usize,
    ) -> Vec<GlobalSeq> {
        let seqs = self
            .streams
            .get(stream)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let skip = seqs.partition_point(|seq| seq.position() <= after);
        let seqs = seqs.get(skip..).unwrap_or_default();
        seqs.iter()
            .copied()
            .take_while(|seq| seq.position() <= until)
            .take(limit)
            .collect()
    }

    /// The point from which on all events are in the tail.
    pub(crate) fn tail_start(&self) -> Position {
        match self.tail.front() {
            Some(first) => Position::new(first.seq().get() - 1),
            None => self.end,
        }
    }

    /// The event, if it is in the tail.
    pub(crate) fn tail_event(&self, seq: GlobalSeq) -> Option<&Arc<RecordedEvent>> {
        let first = self.tail.front()?.seq().get();
        self.tail
            .get(usize::try_from(seq.get().checked_sub(first)?).ok()?)
    }

    /// The events of the tail between two points, at most `limit` of them.
    pub(crate) fn tail_events(
        &self,
        after: Position,
        until: Position,
        limit: usize,
    ) -> Vec<Arc<RecordedEvent>> {
        let skip = after.get().saturating_sub(self.tail_start().get());
        let wanted = until.get().saturating_sub(after.get());
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(limit);
        let skip = usize::try_from(skip)
            .unwrap_or(usize::MAX)
            .min(self.tail.len());
        self.tail.range(skip..).take(wanted).cloned().collect()
    }
}

fn payload_bytes(event: &RecordedEvent) -> usize {
    event.payload_bytes().map_or(0, <[u8]>::len)
}
