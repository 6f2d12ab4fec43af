//! Who asks.
//!
//! A caller is known by a bearer token and by nothing else. Tokens are compared as digests, all of them
//! and in constant time, so that neither the time of an answer nor a dump of this table gives one away.
//! Open access exists for those who ask for it and whose listener nobody else can reach; a browser can
//! reach it all the same, on behalf of any page, so that there the request must name this machine.

use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::header;
use fluxvm_commands::LiveToken;
use fluxvm_commands::TOKEN_PREFIX;
use subtle::ConditionallySelectable;
use subtle::ConstantTimeEq;

use crate::config::Role;
use crate::config::TokenConfig;
use crate::scope::Scope;

/// The actor of every request under open access.
const ANONYMOUS: &str = "anonymous-admin";

/// Who asks, as far as the server could find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The name that the audit and the ledger have.
    pub(crate) actor: String,
    /// What it may do.
    pub(crate) role: Role,
    /// The tenant that it is confined to.
    pub(crate) tenant: Option<String>,
    /// What the token is for, where it is one of a session.
    pub(crate) scope: Option<Scope>,
}

impl Identity {
    /// The holder of a session token. It has a role that may nothing by itself.
    pub(crate) fn of_token(live: LiveToken) -> Self {
        Self {
            actor: format!("session-token:{}", live.token.id),
            role: Role::ReadOnly,
            tenant: live.tenant,
            scope: Some(Scope {
                token: live.token.id,
                session: live.token.session,
                ops: live.token.ops,
            }),
        }
    }
}

/// The secret of a session token, if the request has one.
pub(crate) fn session_secret(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers)
        .ok()
        .filter(|token| token.starts_with(TOKEN_PREFIX.as_bytes()))
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthRefusal {
    /// It has no token.
    Missing,
    /// Its `Authorization` is not one bearer token.
    Malformed,
    /// Nobody has this token.
    Unknown,
    /// Under open access: it does not name this machine, or comes from another site's page.
    Foreign,
}

/// Knows every token.
#[derive(Debug)]
pub(crate) struct Authenticator(Access);

#[derive(Debug)]
enum Access {
    Open,
    Tokens(Vec<Known>),
}

struct Known {
    digest: [u8; 32],
    identity: Identity,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Everyone is an administrator. Whoever builds this has made sure that the listener is loopback.
    #[must_use]
    pub(crate) fn open() -> Self {
        Self(Access::Open)
    }

    /// The admin token of the state folder, and those of the config.
    #[must_use]
    pub(crate) fn with_tokens(admin_token: &str, configured: &[TokenConfig]) -> Self {
        let local = Identity {
            actor: "admin:local".into(),
            role: Role::Admin,
            tenant: None,
            scope: None,
        };
        let mut known = vec![Known {
            digest: digest(admin_token.as_bytes()),
            identity: local,
        }];
        for (index, token) in configured.iter().enumerate() {
            let name = token
                .name
                .clone()
                .unwrap_or_else(|| format!("token-{}", index + 1));
            let identity = Identity {
                actor: format!("{}:{name}", token.role.as_str()),
                role: token.role,
                tenant: token.tenant.clone(),
                scope: None,
            };
            known.push(Known {
                digest: digest(token.token.as_bytes()),
                identity,
            });
        }
        Self(Access::Tokens(known))
    }

    /// Finds out who asks.
    ///
    /// # Errors
    ///
    /// [`AuthRefusal`], which says no more than that.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Identity, AuthRefusal> {
        match &self.0 {
            Access::Open if is_local(headers) => Ok(Identity {
                actor: ANONYMOUS.into(),
                role: Role::Admin,
                tenant: None,
                scope: None,
            }),
            Access::Open => Err(AuthRefusal::Foreign),
            Access::Tokens(known) => identify_by_token(known, bearer(headers)?),
        }
    }
}

fn identify_by_token(known: &[Known], token: &[u8]) -> Result<Identity, AuthRefusal> {
    let presented = digest(token);
    let mut found = u32::MAX;
    for (index, candidate) in (0_u32..).zip(known) {
        found.conditional_assign(&index, candidate.digest.ct_eq(&presented));
    }
    let index = usize::try_from(found).unwrap_or(usize::MAX);
    known
        .get(index)
        .map(|known| known.identity.clone())
        .ok_or(AuthRefusal::Unknown)
}

/// The one bearer token of a request.
fn bearer(headers: &HeaderMap) -> Result<&[u8], AuthRefusal> {
    let mut values = headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .map(HeaderValue::as_bytes);
    let value = values.next().ok_or(AuthRefusal::Missing)?;
    if values.next().is_some() {
        return Err(AuthRefusal::Malformed);
    }
    let (scheme, token) = value.split_at_checked(7).ok_or(AuthRefusal::Malformed)?;
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return Err(AuthRefusal::Malformed);
    }
    let token = token.trim_ascii();
    if token.is_empty() {
        Err(AuthRefusal::Malformed)
    } else {
        Ok(token)
    }
}

/// A page of another site can make a browser send requests here, and a name that it owns can be made to
/// resolve to 127.0.0.1. Both show: in `Origin`, and in `Host`.
fn is_local(headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let origin = headers.get(header::ORIGIN);
    let origin_is_local = origin.is_none_or(|origin| {
        let host = origin
            .to_str()
            .ok()
            .and_then(|origin| origin.split_once("://"));
        host.is_some_and(|(_, host)| names_this_machine(host))
    });
    host.is_some_and(names_this_machine) && origin_is_local
}

fn names_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn digest(token: &[u8]) -> [u8; 32] {
    *blake3::hash(token).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADMIN: &str = "fxad_0000000000000000000000000000000000000000000000000000000000000000";

    fn tokens() -> Authenticator {
        let token = |token: &str, role, name: Option<&str>, tenant: Option<&str>| TokenConfig {
            token: token.into(),
            role,
            name: name.map(Into::into),
            tenant: tenant.map(Into::into),
        };
        let configured = [
            token("tenant-a-admin-token", Role::Admin, Some("ops"), Some("a")),
            token("a-read-only-token", Role::ReadOnly, None, None),
        ];
        Authenticator::with_tokens(ADMIN, &configured)
    }

    fn ask(authenticator: &Authenticator, lines: &[(&str, &str)]) -> Result<String, AuthRefusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: axum::http::HeaderName = name.parse().expect("name");
            headers.append(name, value.parse().expect("value"));
        }
        let identity = authenticator.identify(&headers)?;
        let tenant = identity.tenant.unwrap_or_default();
        Ok(format!(
            "{} {} {tenant}",
            identity.actor,
            identity.role.as_str()
        ))
    }

    #[test]
    fn a_caller_is_who_its_token_says() {
        let tokens = tokens();
        let with = |value: &str| ask(&tokens, &[("authorization", value)]);
        assert_eq!(
            with(&format!("Bearer {ADMIN}")).as_deref(),
            Ok("admin:local admin ")
        );
        assert_eq!(
            with("bearer tenant-a-admin-token").as_deref(),
            Ok("admin:ops admin a")
        );
        let read_only = with("Bearer a-read-only-token");
        assert_eq!(read_only.as_deref(), Ok("read-only:token-2 read-only "));
    }

    #[test]
    fn anything_but_one_known_token_is_refused() {
        let tokens = tokens();
        let with = |value: &str| ask(&tokens, &[("authorization", value)]);
        assert_eq!(ask(&tokens, &[]), Err(AuthRefusal::Missing));
        assert_eq!(with("Basic dXNlcjpwYXNz"), Err(AuthRefusal::Malformed));
        assert_eq!(with("Bearer"), Err(AuthRefusal::Malformed));
        assert_eq!(with("Bearer  "), Err(AuthRefusal::Malformed));
        assert_eq!(with("Bearer nobody"), Err(AuthRefusal::Unknown));
        assert_eq!(with(&format!("Bearer {ADMIN}0")), Err(AuthRefusal::Unknown));
        let twice = format!("Bearer {ADMIN}");
        let lines = [
            ("authorization", twice.as_str()),
            ("authorization", twice.as_str()),
        ];
        assert_eq!(ask(&tokens, &lines), Err(AuthRefusal::Malformed));
    }

    #[test]
    fn open_access_is_for_those_who_name_this_machine() {
        let open = Authenticator::open();
        for host in ["127.0.0.1:7788", "localhost", "[::1]:7788", "LOCALHOST:1"] {
            let answer = ask(&open, &[("host", host)]);
            assert_eq!(answer.as_deref(), Ok("anonymous-admin admin "), "{host}");
        }
        for host in [
            "evil.example:7788",
            "127.0.0.1.evil.example",
            "10.0.0.1:7788",
            "",
        ] {
            assert_eq!(
                ask(&open, &[("host", host)]),
                Err(AuthRefusal::Foreign),
                "{host}"
            );
        }
        let from = |origin: &str| ask(&open, &[("host", "127.0.0.1"), ("origin", origin)]);
        assert!(from("http://localhost:3000").is_ok());
        assert_eq!(from("https://evil.example"), Err(AuthRefusal::Foreign));
        assert_eq!(from("null"), Err(AuthRefusal::Foreign));
        assert_eq!(ask(&open, &[]), Err(AuthRefusal::Foreign));
    }

    #[test]
    fn what_is_printed_of_it_holds_no_token() {
        let printed = format!("{:?}", tokens());
        assert!(
            !printed.contains("tenant-a-admin-token") && !printed.contains(ADMIN),
            "{printed}"
        );
    }
}
