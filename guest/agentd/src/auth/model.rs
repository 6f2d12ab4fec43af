//! Bootstrap, exhaustively: every order of launches and identities of the host, of a racer inside the
//! guest and of somebody who holds an old token.

use hyper::header::HeaderValue;
use stateright::Checker;
use stateright::Model;
use stateright::Property;

use super::*;

/// Tokens: two of the host, one of the racer.
const TOKENS: [&str; 3] = ["host", "host-next", "racer"];
const GENERATIONS: [u64; 3] = [0, 1, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Launch(usize),
    /// Somebody who shows one token brings another. The host never shows or brings the racer's.
    Renew {
        shown: usize,
        brought: usize,
        generation: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    bootstrap: Bootstrap,
    /// Whose launch won.
    winner: Option<usize>,
    /// Whether a step broke a rule that is about two states.
    broken: bool,
    steps: u8,
}

struct Guest;

fn grants(bootstrap: &Bootstrap, token: usize) -> bool {
    let mut headers = HeaderMap::new();
    let shown = format!("Bearer {}", TOKENS[token]);
    headers.insert(AUTHORIZATION, HeaderValue::from_str(&shown).unwrap());
    bootstrap.judge(&headers) == Access::Granted
}

fn granted(bootstrap: &Bootstrap) -> Vec<usize> {
    let tokens = 0..TOKENS.len();
    tokens.filter(|token| grants(bootstrap, *token)).collect()
}

fn launch(state: &mut State, token: usize) {
    let before = state.bootstrap.clone();
    let payload = RunHookPayload::new(AgentToken::new(TOKENS[token]));
    let launched = state.bootstrap.install(payload);
    match launched {
        Launch::Won => {
            state.broken |= before.is_done();
            state.winner = Some(token);
        }
        Launch::Repeated => state.broken |= before != state.bootstrap || !grants(&before, token),
        Launch::Conflicted => state.broken |= before != state.bootstrap || !before.is_done(),
    }
}

fn renew(state: &mut State, brought: usize, generation: u64) {
    let before = state.bootstrap.clone();
    let renewal = state.bootstrap.renew(NewIdentity {
        generation,
        token: &AgentToken::new(TOKENS[brought]),
        env: None,
        identity: None,
    });
    state.broken |= match renewal {
        Renewal::Taken => {
            generation <= before.generation() || granted(&state.bootstrap) != [brought]
        }
        Renewal::Repeated | Renewal::Conflicted { .. } => before != state.bootstrap,
    };
}

impl Model for Guest {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            bootstrap: Bootstrap::default(),
            winner: None,
            broken: false,
            steps: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.steps == 6 {
            return;
        }
        steps.extend((0..TOKENS.len()).map(Step::Launch));
        for shown in 0..TOKENS.len() {
            for (brought, generation) in (0..TOKENS.len()).flat_map(|b| GENERATIONS.map(|g| (b, g)))
            {
                // Each side keeps to its own tokens.
                if (shown == 2) == (brought == 2) {
                    steps.push(Step::Renew {
                        shown,
                        brought,
                        generation,
                    });
                }
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        state.steps += 1;
        match step {
            Step::Launch(token) => launch(&mut state, token),
            // The router asks before the route does.
            Step::Renew { shown, .. } if !grants(&state.bootstrap, shown) => return None,
            Step::Renew {
                brought,
                generation,
                ..
            } => renew(&mut state, brought, generation),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no step breaks a rule", |_, state: &State| !state.broken),
            Property::always(
                "exactly one token opens a launched guest",
                |_, state: &State| {
                    granted(&state.bootstrap).len() == usize::from(state.winner.is_some())
                },
            ),
            Property::always(
                "a racer that came second never gets in",
                |_, state: &State| state.winner == Some(2) || !grants(&state.bootstrap, 2),
            ),
            // The rest of the risk, which an image has to exclude: whoever launches first wins.
            Property::sometimes("a racer that came first is in", |_, state: &State| {
                grants(&state.bootstrap, 2)
            }),
            Property::sometimes("identities follow each other", |_, state: &State| {
                state.bootstrap.generation() == 2
            }),
        ]
    }
}

#[test]
fn every_order_of_launches_and_identities_keeps_the_rules_of_bootstrap() {
    let checker = Guest.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 50);
}
