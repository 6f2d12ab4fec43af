//! The replay ring: the last bytes of both output streams in one offset space.
//!
//! ```text
//! offset   start                                   end
//!            │ retained bytes, in one circular buffer │
//! segments   [stdout ][stderr ][stdout              ]
//! ```
//!
//! The buffer grows with what was written, up to its capacity: an exec that prints nothing costs
//! nothing. Past that the oldest bytes give way, except bytes that an attached reader still has
//! to get; the writer asks for room before it reads more, and only the final drain of a pipe,
//! which is bounded by the pipe's own size, may go over the capacity.

use std::collections::VecDeque;

use agentd_protocol::OutputStream;

/// Segments kept. Each is a switch between the streams and costs 16 bytes; a command that switches
/// with every byte is retained for less than the capacity, and memory stays bounded.
const SEGMENTS_MAX: usize = 64 * 1024;

/// Smallest allocation of the buffer.
const BUFFER_BYTES_MIN: usize = 4 * 1024;

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    stream: OutputStream,
}

/// A piece of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) offset: u64,
    pub(crate) stream: OutputStream,
    pub(crate) bytes: &'a [u8],
}

/// The retained window.
#[derive(Debug)]
pub(crate) struct Ring {
    capacity: usize,
    buffer: Vec<u8>,
    start: u64,
    end: u64,
    segments: VecDeque<Segment>,
}

impl Ring {
    /// An empty ring that retains `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            segments: VecDeque::new(),
        }
    }

    /// The first retained offset.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The offset after the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes can come before one at or after `floor` would give way.
    pub(crate) fn room_above(&self, floor: u64) -> usize {
        let second = self
            .segments
            .get(1)
            .map_or(u64::MAX, |segment| segment.start);
        if self.segments.len() >= SEGMENTS_MAX && floor < second {
            return 0;
        }
        let held = usize_from(self.end.saturating_sub(floor));
        self.capacity.saturating_sub(held)
    }

    /// Appends bytes. Bytes at or after `floor` are kept whatever it costs.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8], floor: Option<u64>) {
        if bytes.is_empty() {
            return;
        }
        let end = self.end + u64_from(bytes.len());
        let floor = floor.unwrap_or(u64::MAX);
        let keep_from = end
            .saturating_sub(u64_from(self.capacity))
            .min(floor)
            .max(self.start);
        // Of a push longer than the capacity, only the tail is kept.
        let skipped = usize_from(keep_from.saturating_sub(self.end)).min(bytes.len());
        let kept = bytes.get(skipped..).unwrap_or_default();
        self.start = keep_from;
        self.reserve(usize_from(end - keep_from));
        if self
            .segments
            .back()
            .is_none_or(|last| last.stream != stream)
        {
            self.segments.push_back(Segment {
                start: self.end,
                stream,
            });
        }
        self.write(self.end + u64_from(skipped), kept);
        self.end = end;
        self.drop_old_segments(floor);
    }

    /// The longest piece at `offset` that is one stream's, lies in one place and is at most `max`
    /// long. `None` outside the retained bytes.
    pub(crate) fn piece_at(&self, offset: u64, max: usize) -> Option<Piece<'_>> {
        if offset < self.start || offset >= self.end {
            return None;
        }
        let after = self
            .segments
            .partition_point(|segment| segment.start <= offset);
        let stream = self.segments.get(after.checked_sub(1)?)?.stream;
        let segment_end = self.segments.get(after).map_or(self.end, |next| next.start);
        let place = self.place(offset);
        let length = usize_from(segment_end - offset)
            .min(self.buffer.len() - place)
            .min(max);
        let bytes = self.buffer.get(place..place + length)?;
        Some(Piece {
            offset,
            stream,
            bytes,
        })
    }

    /// Forgets every byte. For a ring whose bytes were taken and are never asked for again.
    pub(crate) fn forget(&mut self) {
        self.start = self.end;
        self.buffer = Vec::new();
        self.segments = VecDeque::new();
    }

    /// Gives back what is not in use. For a ring that gets no more bytes.
    pub(crate) fn shrink(&mut self) {
        let held = usize_from(self.end - self.start);
        if held < self.buffer.len() {
            self.relocate(held);
        }
        self.segments.shrink_to_fit();
    }

    fn place(&self, offset: u64) -> usize {
        let length = u64_from(self.buffer.len());
        offset.checked_rem(length).map_or(0, usize_from)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let place = self.place(offset);
        let first = bytes.len().min(self.buffer.len() - place);
        let (head, tail) = bytes.split_at(first);
        if let Some(target) = self.buffer.get_mut(place..place + first) {
            target.copy_from_slice(head);
        }
        if let Some(target) = self.buffer.get_mut(..tail.len()) {
            target.copy_from_slice(tail);
        }
    }

    fn reserve(&mut self, needed: usize) {
        if needed <= self.buffer.len() {
            return;
        }
        let doubled = needed.max(BUFFER_BYTES_MIN).next_power_of_two();
        self.relocate(doubled.min(self.capacity.max(needed)));
    }

    /// Moves the retained bytes that were written so far into a buffer of another size.
    fn relocate(&mut self, length: usize) {
        let mut moved = Self {
            capacity: self.capacity,
            buffer: vec![0; length],
            start: self.start,
            end: self.end,
            segments: std::mem::take(&mut self.segments),
        };
        let mut offset = self.start;
        while offset < self.end {
            let place = self.place(offset);
            let run = usize_from(self.end - offset).min(self.buffer.len() - place);
            let Some(bytes) = self.buffer.get(place..place + run) else {
                break;
            };
            moved.write(offset, bytes);
            offset += u64_from(run);
        }
        *self = moved;
    }

    fn drop_old_segments(&mut self, floor: u64) {
        while let Some(second) = self.segments.get(1).map(|segment| segment.start) {
            let too_many = self.segments.len() > SEGMENTS_MAX && second <= floor;
            if second > self.start && !too_many {
                break;
            }
            self.start = self.start.max(second);
            self.segments.pop_front();
        }
    }
}

fn usize_from(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn u64_from(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_from(ring: &Ring, mut offset: u64, max: usize) -> Vec<(OutputStream, u8)> {
        let mut found = Vec::new();
        while let Some(piece) = ring.piece_at(offset, max) {
            assert_eq!(piece.offset, offset);
            assert!(!piece.bytes.is_empty() && piece.bytes.len() <= max);
            found.extend(piece.bytes.iter().map(|&byte| (piece.stream, byte)));
            offset += u64_from(piece.bytes.len());
        }
        assert_eq!(offset, ring.end());
        found
    }

    #[test]
    fn a_ring_that_holds_nothing_costs_nothing() {
        assert_eq!(Ring::new(1 << 20).buffer.capacity(), 0);
    }

    #[test]
    fn streams_that_alternate_with_every_byte_stay_bounded() {
        let mut ring = Ring::new(1 << 20);
        for _ in 0..SEGMENTS_MAX {
            ring.push(OutputStream::Stdout, b"o", None);
            ring.push(OutputStream::Stderr, b"e", None);
        }
        assert!(ring.segments.len() <= SEGMENTS_MAX + 1);
        assert_eq!(ring.end(), 2 * u64_from(SEGMENTS_MAX));
        assert!(!read_from(&ring, ring.start(), 10).is_empty());
        assert_eq!(ring.room_above(ring.start()), 0);
    }

    proptest! {
        #[test]
        fn it_retains_exactly_the_last_bytes_and_all_above_the_floor(
            capacity in 1_usize..40,
            pushes in proptest::collection::vec((any::<bool>(), 0_usize..60, any::<bool>()), 0..40),
            max in 1_usize..30,
        ) {
            let mut ring = Ring::new(capacity);
            let mut model: Vec<(OutputStream, u8)> = Vec::new();
            let mut floor = 0;
            for (out, length, hold) in pushes {
                let stream = if out { OutputStream::Stdout } else { OutputStream::Stderr };
                let bytes: Vec<u8> =
                    (0..length).map(|i| u8::try_from((model.len() + i) % 251).unwrap()).collect();
                if hold {
                    floor = floor.max(ring.start());
                } else {
                    floor = ring.end() + u64_from(length);
                }
                ring.push(stream, &bytes, hold.then_some(floor));
                model.extend(bytes.iter().map(|&byte| (stream, byte)));
                let oldest = model.len().saturating_sub(capacity);
                if length > 0 {
                    prop_assert!(usize_from(ring.start()) <= oldest);
                    if !hold {
                        prop_assert_eq!(usize_from(ring.start()), oldest);
                    }
                }
                prop_assert_eq!(ring.end(), u64_from(model.len()));
                let start = usize_from(ring.start());
                prop_assert_eq!(read_from(&ring, ring.start(), max), &model[start..]);
            }
            let before = read_from(&ring, ring.start(), max);
            ring.shrink();
            prop_assert_eq!(read_from(&ring, ring.start(), max), before);
        }
    }
}
