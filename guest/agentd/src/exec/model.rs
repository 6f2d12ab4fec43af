//! The life of an exec, exhaustively: every order of output, readers that come, are cut and come
//! back, the end and its acknowledgement, up to a length; and random orders that are much longer.

use std::task::Waker;

use agentd_protocol::ExitEvent;
use agentd_protocol::OutputStream;
use agentd_protocol::Phase;
use proptest::prelude::*;
use stateright::Checker;
use stateright::Model;
use stateright::Property;

use super::may_acknowledge;
use super::output::NextEvent;
use super::output::Output;
use super::output::ReaderKey;
use super::phase;

const RING_BYTES: usize = 8;
const CAPTURE_BYTES: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The command writes three bytes, if it is not held back.
    Write,
    /// The reader comes back to where it was, or comes for the first time.
    Attach,
    /// The reader takes one event.
    Take,
    /// The reader's connection ends without the host's will.
    Cut,
    /// The host ends the reader's connection and holds what it has still to get.
    Quiesce,
    Exit,
    Acknowledge,
}

const STEPS: [Step; 7] = [
    Step::Write,
    Step::Attach,
    Step::Take,
    Step::Cut,
    Step::Quiesce,
    Step::Exit,
    Step::Acknowledge,
];

/// An exec's output with one reader, and what is true of both.
struct Life {
    output: Output,
    reader: Option<ReaderKey>,
    /// What the command wrote.
    written: Vec<u8>,
    /// Where the reader is.
    next: usize,
    /// Whether the reader may be told of a gap: it was away and nothing was held for it.
    may_miss: bool,
    read_exit: bool,
    acknowledged: bool,
    broken: Option<&'static str>,
}

fn byte(place: usize) -> u8 {
    u8::try_from(place % 251).unwrap()
}

impl Life {
    fn new() -> Self {
        Self {
            output: Output::new(RING_BYTES, CAPTURE_BYTES),
            reader: None,
            written: Vec::new(),
            next: 0,
            may_miss: true,
            read_exit: false,
            acknowledged: false,
            broken: None,
        }
    }

    fn after(steps: &[Step]) -> Self {
        let mut life = Self::new();
        steps.iter().for_each(|step| life.step(*step));
        life
    }

    fn phase(&self) -> Phase {
        phase(self.output.exit().is_some(), self.acknowledged)
    }

    fn require(&mut self, holds: bool, rule: &'static str) {
        if !holds {
            self.broken.get_or_insert(rule);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write => self.write(),
            Step::Attach if self.reader.is_none() => {
                let offset = u64::try_from(self.next).unwrap();
                self.reader = Some(self.output.attach(offset));
            }
            Step::Take => self.take(),
            Step::Cut | Step::Quiesce => {
                if let Some(reader) = self.reader.take() {
                    let held = step == Step::Quiesce && self.output.hold(1);
                    self.output.detach(reader);
                    self.may_miss |= !held;
                }
            }
            Step::Exit if self.output.exit().is_none() => self.exit(),
            Step::Acknowledge => self.acknowledge(),
            Step::Attach | Step::Exit => {}
        }
    }

    fn write(&mut self) {
        if self.output.exit().is_some() {
            return;
        }
        let room = self.output.room().min(3);
        let from = self.written.len();
        let bytes: Vec<u8> = (from..from + room).map(byte).collect();
        self.output.push(OutputStream::Stdout, &bytes);
        self.written.extend(bytes);
    }

    fn take(&mut self) {
        let Some(reader) = self.reader else { return };
        let (next, may_miss) = (self.next, self.may_miss);
        let ended = self.output.exit().is_some();
        let total = self.written.len();
        let mut taken = 0;
        let (to, holds, rule) = match self.output.next_event(reader, 2, Waker::noop()) {
            NextEvent::Output(piece) => {
                taken = piece.bytes.len();
                let whole = piece.bytes.iter().enumerate();
                let exact = whole.clone().all(|(at, found)| *found == byte(next + at));
                let here = piece.offset == u64::try_from(next).unwrap();
                (
                    next + taken,
                    exact && here,
                    "a reader gets the bytes of its place",
                )
            }
            NextEvent::Gap(gap) => {
                let from = gap.from == u64::try_from(next).unwrap() && gap.to > gap.from;
                let to = usize::try_from(gap.to).unwrap();
                (
                    to,
                    from && may_miss,
                    "only who was away unheld misses bytes",
                )
            }
            NextEvent::Exit(exit) => {
                let last = exit.offset == u64::try_from(total).unwrap();
                self.read_exit = true;
                (
                    next,
                    last && next == total,
                    "the end comes after the last byte",
                )
            }
            NextEvent::Wait => (next, !ended && next == total, "nobody waits for nothing"),
        };
        self.output.advance(reader, taken);
        self.next = to;
        // A reader that is there and keeps its place misses nothing from here on.
        self.may_miss &= taken == 0;
        self.require(holds, rule);
    }

    fn exit(&mut self) {
        let exit = ExitEvent {
            exit_code: Some(0),
            signal: None,
            truncated: self.output.truncated(),
            writers_may_be_alive: false,
            offset: self.output.total_bytes(),
            timed_out: false,
            x: None,
        };
        self.output.finish(exit);
    }

    fn acknowledge(&mut self) {
        let before = self.phase();
        let allowed = may_acknowledge(before).is_ok();
        let rule = "it is released once, when there is a result";
        self.require(allowed == (before == Phase::Exited), rule);
        if allowed {
            let [stdout, _] = self.output.captured_text();
            let kept = self.written.len().min(CAPTURE_BYTES);
            let agrees = stdout.as_bytes() == &self.written[..kept];
            let cut = self.output.truncated() == (self.written.len() > CAPTURE_BYTES);
            self.require(
                agrees && cut,
                "the result is what was written, up to its cap",
            );
            self.acknowledged = true;
            self.output.release_captures();
        }
    }
}

/// A life by what happened in it: nothing is merged, every order is looked at.
struct Lives;

impl Model for Lives {
    type State = Vec<Step>;
    type Action = Step;

    fn init_states(&self) -> Vec<Vec<Step>> {
        vec![Vec::new()]
    }

    fn actions(&self, steps: &Vec<Step>, next: &mut Vec<Step>) {
        const STEPS_MAX: usize = 6;
        if steps.len() < STEPS_MAX {
            next.extend(STEPS);
        }
    }

    fn next_state(&self, steps: &Vec<Step>, next: Step) -> Option<Vec<Step>> {
        Some(steps.iter().copied().chain([next]).collect())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every rule holds", |_, steps: &Vec<Step>| {
                Life::after(steps).broken.is_none()
            }),
            Property::sometimes("a reader sees the end", |_, steps: &Vec<Step>| {
                Life::after(steps).read_exit
            }),
            Property::sometimes("a result is released", |_, steps: &Vec<Step>| {
                Life::after(steps).acknowledged
            }),
        ]
    }
}

#[test]
fn every_order_of_an_execs_life_keeps_its_rules() {
    let checker = Lives.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 7_usize.pow(6));
}

proptest! {
    #[test]
    fn poll_stream_and_acknowledgement_agree_over_random_interleavings(
        steps in proptest::collection::vec(prop::sample::select(STEPS.to_vec()), 0..200),
    ) {
        prop_assert_eq!(Life::after(&steps).broken, None, "{:?}", steps);
    }
}
