//! Whether a token may be made. Pure.

use chrono::DateTime;
use chrono::TimeDelta;
use chrono::Utc;
use fluxvm_projections::Event;
use fluxvm_projections::Session;
use fluxvm_projections::Token;
use fluxvm_projections::TokenId;
use fluxvm_projections::TokenMinted;

use super::MintToken;
use crate::book::Entry;
use crate::error::CommandError;
use crate::gate;
use crate::limits::TOKEN_LABEL_CHARS_MAX;
use crate::limits::TOKEN_TTL_SECONDS_DEFAULT;
use crate::limits::TOKEN_TTL_SECONDS_MAX;
use crate::limits::TOKENS_LIVE_MAX;

/// The operations that a token can be made for.
const TOKEN_OPS: &[&str] = &[
    "read",
    "exec",
    "jobs",
    "files.read",
    "files.write",
    "git",
    "checkpoint",
    "preview",
    "screen",
];

/// A request whose fields hold.
pub(super) struct Checked {
    ops: Vec<String>,
    ttl: TimeDelta,
    label: Option<String>,
}

/// Checks what can be checked without a session.
pub(super) fn check(request: MintToken) -> Result<Checked, CommandError> {
    let mut ops = request.ops;
    ops.sort();
    ops.dedup();
    if ops.is_empty() || !ops.iter().all(|op| TOKEN_OPS.contains(&op.as_str())) {
        let message = format!("must be one or more of {}", TOKEN_OPS.join(", "));
        return Err(invalid("ops", message));
    }
    let seconds = request.ttl_seconds.unwrap_or(TOKEN_TTL_SECONDS_DEFAULT);
    let ttl = i64::try_from(seconds)
        .ok()
        .filter(|_| (1..=TOKEN_TTL_SECONDS_MAX).contains(&seconds))
        .map(TimeDelta::seconds);
    let Some(ttl) = ttl else {
        let message = format!("must be 1 to {TOKEN_TTL_SECONDS_MAX}");
        return Err(invalid("ttl_seconds", message));
    };
    let label = request.label;
    let odd = |label: &String| {
        label.is_empty()
            || label.chars().count() > TOKEN_LABEL_CHARS_MAX
            || label.chars().any(char::is_control)
    };
    if label.as_ref().is_some_and(odd) {
        let message = format!("must be 1 to {TOKEN_LABEL_CHARS_MAX} characters of one line");
        return Err(invalid("label", message));
    }
    Ok(Checked { ops, ttl, label })
}

/// Decides on the session's state and its tokens.
pub(super) fn mint(
    session: &Session,
    tokens: &[&Token],
    checked: &Checked,
    token: TokenId,
    sha256: &str,
    now: DateTime<Utc>,
) -> Result<Entry, CommandError> {
    gate::running(session, now)?;
    if tokens.iter().filter(|token| token.is_live(now)).count() >= TOKENS_LIVE_MAX {
        return Err(CommandError::TooManyTokens {
            limit: TOKENS_LIVE_MAX,
        });
    }
    let end = now + checked.ttl;
    let expires_at = session.expires_at.map_or(end, |session| session.min(end));
    Ok(Entry::new(Event::TokenMinted(TokenMinted {
        token_id: token,
        sha256: sha256.to_owned(),
        ops: checked.ops.clone(),
        label: checked.label.clone(),
        expires_at,
    })))
}

fn invalid(field: &'static str, message: String) -> CommandError {
    CommandError::Invalid { field, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use crate::testing::session;
    use crate::testing::session_that_is;
    use fluxvm_projections::SessionId;
    use fluxvm_projections::SessionStatus;
    use uuid::Uuid;

    fn request(ops: &[&str], ttl_seconds: Option<u64>) -> MintToken {
        MintToken {
            ops: ops.iter().map(ToString::to_string).collect(),
            ttl_seconds,
            label: None,
        }
    }

    fn token(revoked: bool) -> Token {
        Token {
            id: TokenId(Uuid::nil()),
            session: SessionId(Uuid::nil()),
            ops: vec!["read".into()],
            label: None,
            created_at: now(),
            expires_at: now() + TimeDelta::minutes(1),
            revoked,
            refusals: 0,
        }
    }

    fn expiry(session: &Session, ttl_seconds: u64, tokens: &[&Token]) -> String {
        let checked = check(request(&["exec"], Some(ttl_seconds))).unwrap();
        match mint(session, tokens, &checked, TokenId(Uuid::nil()), "00", now()) {
            Ok(entry) => match entry.event {
                Event::TokenMinted(minted) => (minted.expires_at - now()).num_seconds().to_string(),
                _ => "another event".to_owned(),
            },
            Err(error) => error.code().to_owned(),
        }
    }

    #[test]
    fn a_token_is_for_known_operations_and_a_limited_time() {
        let refused = |request| check(request).err().and_then(|error| error.field());
        for ops in [&[][..], &["fork"], &["exec", "root"], &["EXEC"]] {
            assert_eq!(refused(request(ops, None)), Some("ops"), "{ops:?}");
        }
        for seconds in [0, TOKEN_TTL_SECONDS_MAX + 1, u64::MAX] {
            assert_eq!(
                refused(request(&["read"], Some(seconds))),
                Some("ttl_seconds")
            );
        }
        assert_eq!(refused(request(TOKEN_OPS, None)), None);
        assert_eq!(
            check(request(&["read", "exec", "read"], None))
                .unwrap()
                .ops
                .len(),
            2
        );
    }

    #[test]
    fn a_token_ends_with_its_session_at_the_latest() {
        assert_eq!(expiry(&session(), 10, &[]), "10");
        assert_eq!(expiry(&session(), 3_600, &[]), "60");
        let ended = session_that_is(SessionStatus::Expired);
        assert_eq!(expiry(&ended, 10, &[]), "session_not_running");
    }

    #[test]
    fn thirty_two_tokens_live_at_once() {
        let (live, dead) = (token(false), token(true));
        let mut tokens = vec![&live; TOKENS_LIVE_MAX];
        assert_eq!(expiry(&session(), 10, &tokens), "too_many_tokens");
        tokens[0] = &dead;
        assert_eq!(expiry(&session(), 10, &tokens), "10");
    }
}
