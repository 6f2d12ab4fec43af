//! Who may call: the one place that holds the token, and the one that compares it.
//!
//! The token comes with the first run hook and stays until the guest ends. It is in no log, no
//! error and no child's environment; nothing but this module reads it.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use agentd_protocol::AgentToken;
use agentd_protocol::IdentityPair;
use agentd_protocol::RunHookPayload;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use subtle::ConstantTimeEq;

/// What the winning launch installed.
#[derive(Debug)]
struct Installed {
    token: AgentToken,
    env: BTreeMap<String, String>,
    identity: Option<TunnelIdentity>,
}

/// The keys of verified tunnels: the guest's secret, and the one host that it is for.
#[derive(Clone)]
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

/// The launch of this guest, once there was one.
#[derive(Debug, Default)]
pub(crate) struct Bootstrap {
    installed: OnceCell<Installed>,
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
    pub(crate) fn install(&self, payload: RunHookPayload) -> Launch {
        if let Some(installed) = self.installed.get() {
            let same = same(
                installed.token.expose(),
                payload.agent_token.expose().as_bytes(),
            );
            return if same {
                Launch::Repeated
            } else {
                Launch::Conflicted
            };
        }
        let installed = Installed {
            token: payload.agent_token,
            env: payload.env,
            identity: payload.identity.as_ref().and_then(TunnelIdentity::decode),
        };
        match self.installed.set(installed) {
            Ok(()) => Launch::Won,
            Err(_) => Launch::Conflicted,
        }
    }

    /// Whether there was a launch.
    pub(crate) fn is_done(&self) -> bool {
        self.installed.get().is_some()
    }

    /// The launch's variables.
    pub(crate) fn env(&self) -> Option<&BTreeMap<String, String>> {
        self.installed.get().map(|installed| &installed.env)
    }

    /// The launch's keys for verified tunnels.
    pub(crate) fn tunnel_identity(&self) -> Option<TunnelIdentity> {
        self.installed.get()?.identity.clone()
    }

    /// Judges a request by its head alone.
    pub(crate) fn judge(&self, headers: &HeaderMap) -> Access {
        let Some(installed) = self.installed.get() else {
            return Access::NotBootstrapped;
        };
        let shown = headers
            .get(AUTHORIZATION)
            .and_then(|value| bearer(value.as_bytes()));
        match shown {
            Some(shown) if same(installed.token.expose(), shown) => Access::Granted,
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

/// Compares bytes in a time that does not depend on where they differ.
fn same(token: &str, shown: &[u8]) -> bool {
    bool::from(token.as_bytes().ct_eq(shown))
}

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
        let bootstrap = Bootstrap::default();
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
        let bootstrap = Bootstrap::default();
        assert_eq!(bootstrap.install(launch("t", "FIRST")), Launch::Won);
        assert_eq!(bootstrap.install(launch("t", "SECOND")), Launch::Repeated);
        assert_eq!(bootstrap.install(launch("u", "THIRD")), Launch::Conflicted);
        assert!(bootstrap.env().is_some_and(|env| env.keys().eq(["FIRST"])));
        assert_eq!(judge(&bootstrap, Some(b"Bearer u")), Access::Denied);
    }
}
