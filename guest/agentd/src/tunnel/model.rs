//! The verified tunnel's end, exhaustively: every way in which somebody on the path can drop, swap,
//! repeat and forge frames, close and hang up, against what the guest then sees.
//!
//! A frame is its position: encryption opens it at that position and nowhere else.

use stateright::Checker;
use stateright::Model;
use stateright::Property;

use super::relay::End;
use super::verified::was_cut_off;

/// Frames that the client sends: two of bytes, and the end of its stream.
const FRAMES: u8 = 3;
const END_FRAME: u8 = FRAMES - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Frame {
    /// The client's own, by its position.
    Of(u8),
    Forged,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    sent: u8,
    path: Vec<Frame>,
    /// The position that the daemon opens next.
    position: u8,
    /// What the guest got.
    relayed: Vec<u8>,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Send,
    Deliver,
    Drop,
    Swap,
    Repeat,
    Forge,
    Close,
    HangUp,
}

/// Whether the client offered to say when it ends.
struct Tunnel {
    offers_end: bool,
}

fn deliver(state: &mut State) {
    match state.path.remove(0) {
        Frame::Of(position) if position == state.position => {
            state.position += 1;
            if position == END_FRAME {
                state.end = Some(End::PeerEnded);
            } else {
                state.relayed.push(position);
            }
        }
        Frame::Of(_) | Frame::Forged => state.end = Some(End::PeerForged),
    }
}

impl Model for Tunnel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.end.is_some() {
            return;
        }
        let frames = if self.offers_end { FRAMES } else { END_FRAME };
        if state.sent < frames {
            steps.push(Step::Send);
        }
        if !state.path.is_empty() {
            steps.extend([Step::Deliver, Step::Drop]);
        }
        if state.path.len() >= 2 {
            steps.push(Step::Swap);
        }
        if state.path.len() < 4 {
            steps.extend([Step::Repeat, Step::Forge]);
        }
        steps.extend([Step::Close, Step::HangUp]);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Send => {
                state.path.push(Frame::Of(state.sent));
                state.sent += 1;
            }
            Step::Deliver => deliver(&mut state),
            Step::Drop => drop(state.path.remove(0)),
            Step::Swap => state.path.swap(0, 1),
            Step::Repeat => state.path.push(Frame::Of(state.sent.checked_sub(1)?)),
            Step::Forge => state.path.push(Frame::Forged),
            Step::Close => state.end = Some(End::PeerClosed),
            Step::HangUp => state.end = Some(End::PeerLost),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "the guest gets a prefix of what was sent",
                |_, state: &State| {
                    let prefix = 0..state.position.min(END_FRAME);
                    state.relayed.iter().copied().eq(prefix)
                },
            ),
            Property::always(
                "an end that looks whole is whole",
                |model: &Tunnel, state: &State| {
                    state.end.is_none_or(|end| {
                        let looks_whole = !was_cut_off(model.offers_end, end);
                        let whole = state.relayed.len() == usize::from(END_FRAME);
                        !looks_whole || whole || !model.offers_end
                    })
                },
            ),
            Property::always(
                "a proved end is never called a cut",
                |model: &Tunnel, state: &State| {
                    state.end != Some(End::PeerEnded)
                        || !was_cut_off(model.offers_end, End::PeerEnded)
                },
            ),
            Property::sometimes("a stream is cut or ends", |_, state: &State| {
                state.end.is_some()
            }),
        ]
    }
}

#[test]
fn whatever_the_path_does_a_stream_that_looks_whole_is_whole() {
    for offers_end in [true, false] {
        let checker = Tunnel { offers_end }.checker().spawn_bfs().join();
        checker.assert_properties();
        assert!(checker.unique_state_count() > 100);
    }
}
