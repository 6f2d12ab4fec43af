//! What the holder of a session token may ask.
//!
//! Which operation a route is, is said here for all routes of a session, also for those that this version
//! does not have: a route that nobody listed is for administrators.

use axum::http::Method;
use fluxvm_projections::SessionId;
use fluxvm_projections::TokenId;

/// The path of all sessions.
const SESSIONS: &str = "/v1/agents/sessions/";

/// The session and the operations that a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The token.
    pub(crate) token: TokenId,
    /// The only session that it reaches.
    pub(crate) session: SessionId,
    /// The operations that it may do.
    pub(crate) ops: Vec<String>,
}

impl Scope {
    /// It may do this operation.
    pub(crate) fn has(&self, op: &str) -> bool {
        self.ops.iter().any(|own| own == op)
    }

    /// Whether a request is one that the token is for.
    ///
    /// # Errors
    ///
    /// Why it is not, for people.
    pub(crate) fn allows(&self, method: &Method, path: &str, route: &str) -> Result<(), String> {
        let id = self.session.to_string();
        let own = path
            .strip_prefix(SESSIONS)
            .and_then(|rest| rest.strip_prefix(&id))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !own {
            return Err(format!("this token reaches session {id} and nothing else"));
        }
        let Some(needed) = needed(method, route) else {
            return Err(
                "this is for administrators: no session token can be made for it".to_owned(),
            );
        };
        match needed.iter().find(|op| !self.has(op)) {
            Some(missing) => Err(format!("this token was not made for `{missing}`")),
            None => Ok(()),
        }
    }
}

impl Scope {
    /// Whether recorded commands may be run again there: a replay runs commands in its target.
    ///
    /// # Errors
    ///
    /// Why not, for people.
    pub(crate) fn replays_into(&self, target: Option<SessionId>) -> Result<(), String> {
        match target {
            None => Ok(()),
            Some(target) if target != self.session => Err(format!(
                "this token reaches session {} and nothing else",
                self.session
            )),
            Some(_) if self.has("exec") => Ok(()),
            Some(_) => Err("this token was not made for `exec`".to_owned()),
        }
    }
}

impl Scope {
    /// Whether all of these sessions are the token's own: a state may be held against another session's.
    ///
    /// # Errors
    ///
    /// Why not, for people.
    pub(crate) fn reaches_only(
        &self,
        sessions: impl IntoIterator<Item = SessionId>,
    ) -> Result<(), String> {
        let id = self.session;
        match sessions.into_iter().any(|session| session != id) {
            true => Err(format!("this token reaches session {id} and nothing else")),
            false => Ok(()),
        }
    }
}

/// The operations that a route is; `None` for administrators only.
fn needed(method: &Method, route: &str) -> Option<&'static [&'static str]> {
    let rest = route.strip_prefix("/v1/agents/sessions/{id}")?;
    let reads = method == Method::GET || method == Method::HEAD;
    let ops: &'static [&'static str] = match rest {
        "" | "/events" | "/events/stream" | "/trajectory" | "/artifacts" | "/previews"
        | "/export" | "/approvals" | "/rewind"
            if reads =>
        {
            &["read"]
        }
        // What differs is shown line by line.
        "/diff" if reads => &["read", "files.read"],
        // It may run recorded commands again.
        "/blame" if reads => &["read", "files.read", "exec"],
        "/usage" if method == Method::POST => &["exec"],
        "/exec" | "/exec/stream" => &["exec"],
        "/probe" if reads => &["exec"],
        // Where it runs the commands again is looked at where the body is.
        "/replay" => &["read"],
        "/files" | "/files/content" | "/files/range" | "/uploads" | "/uploads/{upload}"
            if reads =>
        {
            &["files.read"]
        }
        "/files" | "/files/content" => &["files.write"],
        "/checkpoint" if method == Method::POST => &["checkpoint"],
        "/preview" => &["preview"],
        "/screenshot" | "/input" | "/screen/wait" | "/rewind/{tag}/screenshot" => &["screen"],
        "/browser" => &["exec", "jobs", "preview"],
        "/jobs" => &["jobs"],
        below if below.starts_with("/jobs/") => &["jobs"],
        below if below.starts_with("/git/") => &["git"],
        below if below.starts_with("/uploads") => &["files.write"],
        below if below.starts_with("/preview/") => &["preview"],
        _ => return None,
    };
    Some(ops)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn scope(ops: &[&str]) -> Scope {
        Scope {
            token: TokenId(Uuid::nil()),
            session: SessionId(Uuid::nil()),
            ops: ops.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_token_reaches_its_own_session_only() {
        let all = scope(&["read", "exec"]);
        let own = format!("{SESSIONS}{}", Uuid::nil());
        let allowed = |path: &str, route: &str| all.allows(&Method::GET, path, route).is_ok();
        assert!(allowed(&own, "/v1/agents/sessions/{id}"));
        assert!(allowed(
            &format!("{own}/events"),
            "/v1/agents/sessions/{id}/events"
        ));
        assert!(!allowed(&format!("{own}0"), "/v1/agents/sessions/{id}"));
        assert!(!allowed("/v1/agents/sessions", "/v1/agents/sessions"));
        assert!(!allowed("/v1/ledger/info", "/v1/ledger/info"));
        assert!(all.reaches_only([SessionId(Uuid::nil())]).is_ok());
        assert!(all.reaches_only([SessionId(Uuid::from_u128(1))]).is_err());
        let other = format!("{SESSIONS}{}", Uuid::from_u128(1));
        assert!(!allowed(&other, "/v1/agents/sessions/{id}"));
    }

    #[test]
    fn each_operation_opens_its_routes_and_no_other() {
        let own = format!("{SESSIONS}{}/x", Uuid::nil());
        let table = [
            (Method::GET, "", "read"),
            (Method::GET, "/events/stream", "read"),
            (Method::POST, "/exec", "exec"),
            (Method::POST, "/exec/stream", "exec"),
            (Method::POST, "/jobs", "jobs"),
            (Method::DELETE, "/jobs/{job}", "jobs"),
            (Method::GET, "/files/content", "files.read"),
            (Method::PUT, "/files/content", "files.write"),
            (Method::DELETE, "/files", "files.write"),
            (Method::GET, "/uploads/{upload}", "files.read"),
            (Method::PUT, "/uploads/{upload}", "files.write"),
            (Method::POST, "/git/commit", "git"),
            (Method::POST, "/checkpoint", "checkpoint"),
            (Method::DELETE, "/preview/{token}", "preview"),
            (Method::GET, "/rewind/{tag}/screenshot", "screen"),
        ];
        for (method, rest, op) in table {
            let route = format!("/v1/agents/sessions/{{id}}{rest}");
            assert!(scope(&[op]).allows(&method, &own, &route).is_ok(), "{rest}");
            assert!(scope(&[]).allows(&method, &own, &route).is_err(), "{rest}");
        }
        let diff = |ops: &[&str]| {
            let route = "/v1/agents/sessions/{id}/diff";
            scope(ops).allows(&Method::GET, &own, route).is_ok()
        };
        assert!(diff(&["read", "files.read"]));
        assert!(!diff(&["read"]) && !diff(&["files.read"]));
        let all = [
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
        for (method, rest) in [
            (Method::DELETE, ""),
            (Method::POST, "/tokens"),
            (Method::GET, "/tokens"),
            (Method::POST, "/approvals/{approval}/approve"),
            (Method::POST, "/restore"),
            (Method::POST, "/fork"),
            (Method::POST, "/grants"),
            (Method::POST, "/promote"),
            (Method::POST, "/rewind/undo"),
            (Method::POST, "/rewind/bisect"),
            (Method::POST, "/evaluate"),
            (Method::POST, "/rollout"),
            (Method::GET, "/pty"),
            (Method::GET, "/something-new"),
        ] {
            let route = format!("/v1/agents/sessions/{{id}}{rest}");
            assert!(scope(&all).allows(&method, &own, &route).is_err(), "{rest}");
        }
    }
}
