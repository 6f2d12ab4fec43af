//! An exec's output: the ring that streams read, and the capture that polls read.
//!
//! Readers attach at an offset and hold the ring back: the child's pipes are not read further than
//! the slowest attached reader allows, so a reader that stays loses nothing however slow it is,
//! and memory stays at the ring's size. Without readers nothing holds the child back, and the ring
//! forgets the oldest bytes. A reader that leaves stops holding.
//!
//! What was handed to a reader may still be on its way, and is lost with its connection. So the last
//! bytes before a reader's place are kept too: coming back after a cut is not coming too late.

use std::task::Waker;

use agentd_protocol::ExitEvent;
use agentd_protocol::GapEvent;
use agentd_protocol::OutputStream;

use super::ring::Piece;
use super::ring::Ring;

/// Bytes kept before a reader's place, or half the ring if that is less. A connection's own buffer
/// and a Unix socket's hold less than this.
const ON_THEIR_WAY_BYTES: u64 = 512 * 1024;

/// What a poll returns of one stream.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    pub(crate) bytes: Vec<u8>,
    pub(crate) truncated: bool,
}

impl Capture {
    fn push(&mut self, bytes: &[u8], cap_bytes: usize) {
        let room = cap_bytes.saturating_sub(self.bytes.len());
        let kept = bytes.get(..room).unwrap_or(bytes);
        self.bytes.extend_from_slice(kept);
        self.truncated |= kept.len() < bytes.len();
    }
}

/// An attached reader.
#[derive(Debug)]
struct Reader {
    cursor: u64,
    gap: Option<GapEvent>,
    waker: Option<Waker>,
}

/// What is kept for readers whose connections the host has ended, until they come back.
#[derive(Clone, Copy, Debug)]
struct Hold {
    number: u64,
    floor: u64,
    readers_away: usize,
}

/// The name of an attached reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderKey(usize);

/// What a reader gets next.
#[derive(Debug)]
pub(crate) enum NextEvent<'a> {
    Gap(GapEvent),
    Output(Piece<'a>),
    Exit(&'a ExitEvent),
    /// Nothing yet; the reader's waker is called when there is.
    Wait,
}

/// Both streams of one exec.
#[derive(Debug)]
pub(crate) struct Output {
    ring: Ring,
    on_their_way_bytes: u64,
    capture_bytes_max: usize,
    captures: [Capture; 2],
    readers: Vec<Option<Reader>>,
    hold: Option<Hold>,
    /// Up to where the output was acknowledged, if it is held until it is.
    acknowledged: Option<u64>,
    exit: Option<ExitEvent>,
}

impl Output {
    pub(crate) fn new(ring_bytes: usize, capture_bytes_max: usize) -> Self {
        Self {
            ring: Ring::new(ring_bytes),
            on_their_way_bytes: ON_THEIR_WAY_BYTES.min(u64::try_from(ring_bytes / 2).unwrap_or(0)),
            capture_bytes_max,
            captures: Default::default(),
            readers: Vec::new(),
            hold: None,
            acknowledged: None,
            exit: None,
        }
    }

    /// Output that is held until it is acknowledged, up to `hold_bytes` of it. Nothing is captured.
    pub(crate) fn held(hold_bytes: usize) -> Self {
        Self {
            acknowledged: Some(0),
            ..Self::new(hold_bytes, 0)
        }
    }

    /// Takes note that bytes before `offset` are safe elsewhere. `false` when nothing is held.
    pub(crate) fn acknowledge_to(&mut self, offset: u64) -> bool {
        let end = self.ring.end();
        match &mut self.acknowledged {
            Some(acknowledged) => {
                *acknowledged = offset.min(end).max(*acknowledged);
                true
            }
            None => false,
        }
    }

    /// How many bytes may be read from the child now.
    pub(crate) fn room(&self) -> usize {
        self.floor()
            .map_or(usize::MAX, |floor| self.ring.room_above(floor))
    }

    /// Takes bytes that the child wrote.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let floor = self.floor();
        self.ring.push(stream, bytes, floor);
        let [stdout, stderr] = &mut self.captures;
        let capture = match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        capture.push(bytes, self.capture_bytes_max);
        self.wake_readers();
    }

    /// Publishes the end. Nothing is pushed after it.
    pub(crate) fn finish(&mut self, exit: ExitEvent) {
        self.ring.shrink();
        for capture in &mut self.captures {
            capture.bytes.shrink_to_fit();
        }
        self.exit = Some(exit);
        self.wake_readers();
    }

    /// The end, once published.
    pub(crate) fn exit(&self) -> Option<&ExitEvent> {
        self.exit.as_ref()
    }

    /// Bytes of output so far.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.ring.end()
    }

    /// Whether either capture hit its cap.
    pub(crate) fn truncated(&self) -> bool {
        self.captures.iter().any(|capture| capture.truncated)
    }

    /// Both captures, lossily decoded: standard output first.
    pub(crate) fn captured_text(&self) -> [String; 2] {
        let text = |capture: &Capture| String::from_utf8_lossy(&capture.bytes).into_owned();
        let [stdout, stderr] = &self.captures;
        [text(stdout), text(stderr)]
    }

    /// Forgets the captures, and held output with them.
    pub(crate) fn release_captures(&mut self) {
        self.captures = Default::default();
        if self.acknowledged.is_some() {
            self.ring.forget();
        }
    }

    /// Keeps what the attached readers have still to get when they go, until as many have come or
    /// the hold with this number is released. Says whether anything is held.
    pub(crate) fn hold(&mut self, number: u64) -> bool {
        if let Some(floor) = self.floor() {
            let readers = self.readers.iter().flatten().count();
            let away = self.hold.map_or(0, |hold| hold.readers_away);
            self.hold = Some(Hold {
                number,
                floor,
                readers_away: readers + away,
            });
        }
        self.hold.is_some()
    }

    /// Lets go of what is held under this number.
    pub(crate) fn release(&mut self, number: u64) {
        self.hold = self.hold.filter(|hold| hold.number != number);
    }

    /// Attaches a reader that wants the bytes from `offset` on.
    pub(crate) fn attach(&mut self, offset: u64) -> ReaderKey {
        self.hold = self.hold.and_then(|hold| {
            let readers_away = hold.readers_away.checked_sub(1).filter(|left| *left > 0)?;
            Some(Hold {
                readers_away,
                ..hold
            })
        });
        let start = self.ring.start();
        let gap = (offset < start).then_some(GapEvent {
            from: offset,
            to: start,
        });
        let reader = Reader {
            cursor: offset.max(start),
            gap,
            waker: None,
        };
        if let Some(free) = self.readers.iter().position(Option::is_none) {
            if let Some(slot) = self.readers.get_mut(free) {
                *slot = Some(reader);
            }
            return ReaderKey(free);
        }
        self.readers.push(Some(reader));
        ReaderKey(self.readers.len() - 1)
    }

    /// Detaches a reader, which stops holding the child back.
    pub(crate) fn detach(&mut self, key: ReaderKey) {
        if let Some(slot) = self.readers.get_mut(key.0) {
            *slot = None;
        }
    }

    /// What the reader gets next. The caller tells with [`Output::advance`] that it took a piece.
    pub(crate) fn next_event(
        &mut self,
        key: ReaderKey,
        max: usize,
        waker: &Waker,
    ) -> NextEvent<'_> {
        let Some(reader) = self.readers.get_mut(key.0).and_then(Option::as_mut) else {
            return NextEvent::Wait;
        };
        if let Some(gap) = reader.gap.take() {
            return NextEvent::Gap(gap);
        }
        if let Some(piece) = self.ring.piece_at(reader.cursor, max) {
            return NextEvent::Output(piece);
        }
        if let Some(exit) = &self.exit {
            return NextEvent::Exit(exit);
        }
        reader.waker = Some(waker.clone());
        NextEvent::Wait
    }

    /// Takes note that a reader got bytes.
    pub(crate) fn advance(&mut self, key: ReaderKey, bytes: usize) {
        if let Some(reader) = self.readers.get_mut(key.0).and_then(Option::as_mut) {
            reader.cursor = reader
                .cursor
                .saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// The first byte that an attached reader may still ask for, or that is held until it is acknowledged.
    fn floor(&self) -> Option<u64> {
        let cursors = self.readers.iter().flatten().map(|reader| reader.cursor);
        // A reader ahead of the end waits for bytes to come, and holds none.
        let cursors = cursors.map(|cursor| cursor.min(self.ring.end()));
        let asked_for = cursors.map(|cursor| cursor.saturating_sub(self.on_their_way_bytes));
        let held = self.hold.map(|hold| hold.floor);
        let floor = asked_for.chain(held).chain(self.acknowledged).min();
        floor.map(|floor| floor.max(self.ring.start()))
    }

    fn wake_readers(&mut self) {
        for reader in self.readers.iter_mut().flatten() {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_BYTES: usize = 8;

    fn output() -> Output {
        Output::new(RING_BYTES, 10)
    }

    fn taken(output: &mut Output, key: ReaderKey) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let NextEvent::Output(piece) = output.next_event(key, 3, Waker::noop()) {
            let length = piece.bytes.len();
            bytes.extend_from_slice(piece.bytes);
            output.advance(key, length);
        }
        bytes
    }

    #[test]
    fn an_attached_reader_holds_back_and_a_detached_one_does_not() {
        let mut output = output();
        assert_eq!(output.room(), usize::MAX);
        let key = output.attach(0);
        assert_eq!(output.room(), RING_BYTES);
        output.push(OutputStream::Stdout, b"12345");
        assert_eq!(output.room(), RING_BYTES - 5);
        assert_eq!(taken(&mut output, key), b"12345");
        // Half of the ring stays with what may still be on its way.
        assert_eq!(output.room(), RING_BYTES / 2);
        output.push(OutputStream::Stdout, b"123");
        output.detach(key);
        assert_eq!(output.room(), usize::MAX);
    }

    #[test]
    fn held_output_waits_for_its_acknowledgement_whoever_reads_it() {
        let mut output = Output::held(RING_BYTES);
        let key = output.attach(0);
        output.push(OutputStream::Stdout, b"123456");
        assert_eq!(taken(&mut output, key), b"123456");
        output.detach(key);
        assert_eq!(output.room(), 2, "it was read and not acknowledged");
        assert!(output.acknowledge_to(4));
        assert_eq!(output.room(), 6);
        assert!(output.acknowledge_to(1), "a late one changes nothing");
        let key = output.attach(4);
        assert_eq!(taken(&mut output, key), b"56");
        output.release_captures();
        let key = output.attach(4);
        let event = output.next_event(key, 9, Waker::noop());
        assert!(matches!(event, NextEvent::Gap(_)), "{event:?}");
    }

    #[test]
    fn a_late_reader_is_told_of_the_gap_once_and_gets_the_rest() {
        let mut output = output();
        output.push(OutputStream::Stdout, b"0123456789");
        let key = output.attach(1);
        let event = output.next_event(key, 9, Waker::noop());
        assert!(
            matches!(event, NextEvent::Gap(GapEvent { from: 1, to: 2 })),
            "{event:?}"
        );
        assert_eq!(taken(&mut output, key), b"23456789");
    }

    #[test]
    fn the_final_drain_may_exceed_the_ring_and_loses_nothing() {
        let mut output = output();
        let key = output.attach(0);
        output.push(OutputStream::Stdout, b"01234567");
        output.push(OutputStream::Stderr, b"abcdefgh");
        assert_eq!(taken(&mut output, key), b"01234567abcdefgh");
    }

    #[test]
    fn a_reader_ahead_of_the_end_gets_its_bytes_exactly_when_they_come() {
        let mut output = output();
        let key = output.attach(4);
        output.push(OutputStream::Stdout, b"012");
        assert_eq!(taken(&mut output, key), b"");
        output.push(OutputStream::Stdout, b"3456");
        assert_eq!(taken(&mut output, key), b"456");
    }

    #[test]
    fn what_is_held_stays_until_its_reader_comes_back_or_the_hold_is_released() {
        for comes_back in [true, false] {
            let mut output = output();
            assert!(!output.hold(1), "there is nobody to hold for");
            let key = output.attach(0);
            output.push(OutputStream::Stdout, b"0123");
            assert!(output.hold(2));
            output.detach(key);
            assert_eq!(output.room(), RING_BYTES - 4);
            output.release(1);
            assert_eq!(output.room(), RING_BYTES - 4);
            if comes_back {
                let key = output.attach(0);
                output.release(2);
                assert_eq!(taken(&mut output, key), b"0123");
                output.detach(key);
            } else {
                output.release(2);
            }
            assert_eq!(output.room(), usize::MAX);
        }
    }

    #[test]
    fn a_capture_stops_at_its_cap_and_says_so() {
        let mut output = output();
        output.push(OutputStream::Stderr, b"0123456789");
        assert!(!output.truncated());
        output.push(OutputStream::Stderr, b"x");
        assert!(output.truncated());
        let [stdout, stderr] = output.captured_text();
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", "0123456789"));
    }
}
