//! Who may call: the one place that knows the token, and the one that compares it.
//!
//! Only its hash is kept, so that no image of this process's memory gives it away. It comes with
//! the first run hook and stays until the guest takes another identity, which only a caller who
//! shows the present token can ask for. It is in no log, no error and no child's environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentd_protocol::AgentToken;
use agentd_protocol::IdentityPair;
use agentd_protocol::RunHookPayload;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::Digest;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Variables that a launch or an identity brings along.
pub(crate) type LaunchEnvironment = Arc<BTreeMap<String, String>>;

/// What stands for a token.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TokenHash([u8; 32]);

impl TokenHash {
    fn of(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Compares in a time that does not depend on where two differ.
    fn is(&self, other: &Self) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }
}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TokenHash(…)")
    }
}

/// What the winning launch, or the last identity, installed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Installed {
    generation: u64,
    token: TokenHash,
    env: LaunchEnvironment,
    identity: Option<TunnelIdentity>,
}

/// The keys of verified tunnels: the guest's secret, and the one host that it is for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TunnelIdentity {
    pub(crate) seed: [u8; 32],
    pub(crate) host_public_key: [u8; 32],
}

impl std::fmt::Debug for TunnelIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("TunnelIdentity(…)")
    }
}

impl TunnelIdentity {
    /// Decodes a pair whose shape was checked when it was parsed.
    fn decode(pair: &IdentityPair) -> Option<Self> {
        let key = |text: &str| -> Option<[u8; 32]> {
            let bytes = base64_simd::STANDARD.decode_to_vec(text.as_bytes()).ok()?;
            bytes.try_into().ok()
        };
        Some(Self {
            seed: key(&pair.seed)?,
            host_public_key: key(&pair.host_public_key)?,
        })
    }
}

/// The launch of this guest, once there was one, and what came after it. A plain value: every
/// change of it is one call, and nothing else decides who may call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Bootstrap {
    installed: Option<Installed>,
}

/// What a run hook came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launch {
    /// It was the first, and is installed.
    Won,
    /// It was the same launch again; nothing changed.
    Repeated,
    /// It carried another token; nothing changed.
    Conflicted,
}

/// What a request to take another identity came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It is installed; nobody can use the token before it any more.
    Taken,
    /// It was installed before; nothing changed.
    Repeated,
    /// The guest has a later identity, or another of this number; nothing changed.
    Conflicted {
        /// The number of the one that it has.
        generation: u64,
    },
}

/// An identity to take.
#[derive(Clone, Debug)]
pub(crate) struct NewIdentity<'a> {
    pub(crate) generation: u64,
    pub(crate) token: &'a AgentToken,
    /// `None` keeps the variables.
    pub(crate) env: Option<BTreeMap<String, String>>,
    pub(crate) identity: Option<&'a IdentityPair>,
}

/// Whether a request may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// It showed the token.
    Granted,
    /// It did not.
    Denied,
    /// There is no token to show yet.
    NotBootstrapped,
}

impl Bootstrap {
    /// Installs a launch if there was none: token, environment and identity at once, or none.
    pub(crate) fn install(&mut self, payload: RunHookPayload) -> Launch {
        let token = TokenHash::of(payload.agent_token.expose().as_bytes());
        match &self.installed {
            None => {
                self.installed = Some(Installed {
                    generation: 0,
                    token,
                    env: Arc::new(payload.env),
                    identity: payload.identity.as_ref().and_then(TunnelIdentity::decode),
                });
                Launch::Won
            }
            Some(installed) if installed.token.is(&token) => Launch::Repeated,
            Some(_) => Launch::Conflicted,
        }
    }

    /// Takes another identity in the place of the present one, all of it at once. The caller has
    /// shown the present token.
    pub(crate) fn renew(&mut self, new: NewIdentity<'_>) -> Renewal {
        let token = TokenHash::of(new.token.expose().as_bytes());
        let Some(present) = &mut self.installed else {
            return Renewal::Conflicted { generation: 0 };
        };
        if new.generation <= present.generation {
            let same = new.generation == present.generation && present.token.is(&token);
            return if same {
                Renewal::Repeated
            } else {
                Renewal::Conflicted {
                    generation: present.generation,
                }
            };
        }
        *present = Installed {
            generation: new.generation,
            token,
            env: new.env.map_or_else(|| Arc::clone(&present.env), Arc::new),
            identity: new.identity.and_then(TunnelIdentity::decode),
        };
        Renewal::Taken
    }

    /// Whether there was a launch.
    pub(crate) fn is_done(&self) -> bool {
        self.installed.is_some()
    }

    /// The number of the present identity.
    pub(crate) fn generation(&self) -> u64 {
        self.installed
            .as_ref()
            .map_or(0, |installed| installed.generation)
    }

    /// The launch's variables.
    pub(crate) fn env(&self) -> LaunchEnvironment {
        let installed = self.installed.as_ref();
        installed.map_or_else(Arc::default, |installed| Arc::clone(&installed.env))
    }

    /// The keys for verified tunnels.
    pub(crate) fn tunnel_identity(&self) -> Option<TunnelIdentity> {
        self.installed.as_ref()?.identity.clone()
    }

    /// Judges a request by its head alone.
    pub(crate) fn judge(&self, headers: &HeaderMap) -> Access {
        let Some(installed) = &self.installed else {
            return Access::NotBootstrapped;
        };
        let shown = headers
            .get(AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        match shown {
            Some(shown) if installed.token.is(&TokenHash::of(shown)) => Access::Granted,
            _ => Access::Denied,
        }
    }
}

/// What follows the scheme and exactly one space.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let space = value.iter().position(|&byte| byte == b' ')?;
    let (scheme, rest) = value.split_at(space);
    if scheme.eq_ignore_ascii_case(b"bearer") {
        rest.get(1..)
    } else {
        None
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn judge(bootstrap: &Bootstrap, value: Option<&[u8]>) -> Access {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        bootstrap.judge(&headers)
    }

    #[test]
    fn only_the_token_after_one_space_is_let_in() {
        let mut bootstrap = Bootstrap::default();
        assert_eq!(
            judge(&bootstrap, Some(b"Bearer t")),
            Access::NotBootstrapped
        );
        assert_eq!(judge(&bootstrap, None), Access::NotBootstrapped);
        bootstrap.install(RunHookPayload::new(AgentToken::new("t")));
        for good in [&b"Bearer t"[..], b"bearer t", b"BEARER t"] {
            assert_eq!(judge(&bootstrap, Some(good)), Access::Granted);
        }
        let bad = [
            &b"Bearer  t"[..],
            b"Bearer",
            b"Bearer ",
            b"Basic t",
            b"t",
            b"Bearer \xff\xfe",
        ];
        for bad in bad {
            assert_eq!(judge(&bootstrap, Some(bad)), Access::Denied);
        }
        assert_eq!(judge(&bootstrap, None), Access::Denied);
    }

    #[test]
    fn the_first_launch_wins_all_of_it() {
        let launch = |token: &str, variable: &str| {
            let mut payload = RunHookPayload::new(AgentToken::new(token));
            payload.env.insert(variable.to_owned(), String::new());
            payload
        };
        let mut bootstrap = Bootstrap::default();
        assert_eq!(bootstrap.install(launch("t", "FIRST")), Launch::Won);
        assert_eq!(bootstrap.install(launch("t", "SECOND")), Launch::Repeated);
        assert_eq!(bootstrap.install(launch("u", "THIRD")), Launch::Conflicted);
        assert!(bootstrap.env().keys().eq(["FIRST"]));
        assert_eq!(judge(&bootstrap, Some(b"Bearer u")), Access::Denied);
    }

    #[test]
    fn an_identity_is_taken_once_and_numbers_only_grow() {
        let mut bootstrap = Bootstrap::default();
        let take = |bootstrap: &mut Bootstrap, generation, token: &str| {
            bootstrap.renew(NewIdentity {
                generation,
                token: &AgentToken::new(token),
                env: None,
                identity: None,
            })
        };
        let conflict = |generation| Renewal::Conflicted { generation };
        assert_eq!(take(&mut bootstrap, 1, "u"), conflict(0));
        assert!(!bootstrap.is_done(), "only a launch opens a guest");
        bootstrap.install(RunHookPayload::new(AgentToken::new("t")));
        assert_eq!(take(&mut bootstrap, 0, "u"), conflict(0));
        assert_eq!(take(&mut bootstrap, 7, "u"), Renewal::Taken);
        assert_eq!(judge(&bootstrap, Some(b"Bearer t")), Access::Denied);
        assert_eq!(judge(&bootstrap, Some(b"Bearer u")), Access::Granted);
        assert_eq!(take(&mut bootstrap, 7, "u"), Renewal::Repeated);
        for (generation, token) in [(7, "v"), (6, "u"), (6, "v")] {
            assert_eq!(take(&mut bootstrap, generation, token), conflict(7));
        }
        assert_eq!(bootstrap.generation(), 7);
        // A launch cannot win it back.
        let launch = RunHookPayload::new(AgentToken::new("t"));
        assert_eq!(bootstrap.install(launch), Launch::Conflicted);
    }
}
