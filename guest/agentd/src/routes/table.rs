//! What a route is, and which one a request means.

use agentd_protocol::Hook;
use agentd_protocol::paths::ExecVerb;
use hyper::Method;

use super::all::ROUTES;

/// The HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    Put,
}

/// Who may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Who shows the token.
    Bearer,
    /// Everybody.
    Open,
    /// Everybody, meant for the platform.
    Platform,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Hook(Hook),
    Health,
    Schema,
    Discovery,
    Procs,
    Identity,
    Quiesce,
    Tunnel,
    Start,
    Run,
    Stdin,
    Resize,
    Exec(ExecVerb),
    ReadFile,
    WriteFile,
    ReadTree,
    WriteTree,
    Facts,
    Slice,
    Place,
    Remove,
}

/// A status that a route answers with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) error: Option<&'static str>,
    pub(super) meaning: &'static str,
}

/// What a request or an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Nothing,
    /// JSON of this definition.
    Json(&'static str),
    /// Anything else, by its media type.
    Media(&'static str),
}

/// A route.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) verb: Verb,
    /// `{id}` stands for one percent-encoded segment.
    pub(super) path: &'static str,
    pub(super) audience: Audience,
    pub(super) action: Action,
    pub(super) summary: &'static str,
    /// The definition of its query.
    pub(super) query: Option<&'static str>,
    pub(super) request: Content,
    pub(super) response: Content,
    /// Beyond those that every route of its audience has.
    pub(super) statuses: &'static [Status],
}

impl Verb {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
        }
    }

    fn means(self, method: &Method) -> bool {
        match self {
            Self::Get => method == Method::GET || method == Method::HEAD,
            Self::Post => method == Method::POST,
            Self::Put => method == Method::PUT,
        }
    }
}

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match<'a> {
    path: &'static str,
    /// The segment in the place of `{id}`.
    pub(super) id: Option<&'a str>,
}

impl Match<'_> {
    /// Finds the routes of a path. A path that is spelled out comes before one with a place in it.
    pub(super) fn of(path: &str) -> Option<Match<'_>> {
        let mut placed = None;
        for route in ROUTES {
            if route.path == path {
                return Some(Match {
                    path: route.path,
                    id: None,
                });
            }
            if let Some(id) = segment(route.path, path) {
                placed = Some(Match {
                    path: route.path,
                    id: Some(id),
                });
            }
        }
        placed
    }

    fn routes(&self) -> impl Iterator<Item = &'static Route> {
        let path = self.path;
        ROUTES.iter().filter(move |route| route.path == path)
    }

    /// Whether a token has to be shown, whatever the method.
    pub(super) fn needs_token(&self) -> bool {
        self.routes()
            .all(|route| route.audience == Audience::Bearer)
    }

    /// The route for a method.
    pub(super) fn with(&self, method: &Method) -> Option<&'static Route> {
        self.routes().find(|route| route.verb.means(method))
    }

    /// The methods that the path knows.
    pub(super) fn allowed(&self) -> String {
        let names = self.routes().map(|route| match route.verb {
            Verb::Get => "GET,HEAD",
            verb => verb.as_str(),
        });
        names.collect::<Vec<_>>().join(",")
    }
}

/// The segment of `path` where `template` has its place.
fn segment<'a>(template: &str, path: &'a str) -> Option<&'a str> {
    let (before, after) = template.split_once("{id}")?;
    let segment = path.strip_prefix(before)?.strip_suffix(after)?;
    (!segment.is_empty() && !segment.contains('/')).then_some(segment)
}

#[cfg(test)]
mod tests {
    use agentd_protocol::ExecId;
    use agentd_protocol::paths;

    use super::*;

    #[test]
    fn paths_lead_where_the_contract_says() {
        let get = |path: &str| {
            let found = Match::of(path)?;
            let route = found.with(&Method::GET).or(found.with(&Method::POST))?;
            Some((route.action, found.id.map(str::to_owned)))
        };
        let exec = |id: &str, verb| Some((Action::Exec(verb), Some(id.to_owned())));
        for (path, expected) in [
            ("/v1/health", Some((Action::Health, None))),
            ("/v1/health/", None),
            ("/v1/exec/start", Some((Action::Start, None))),
            ("/v1/x/exec/run", Some((Action::Run, None))),
            (
                "/v1/x/exec/a/resize",
                Some((Action::Resize, Some("a".into()))),
            ),
            ("/v1/exec/a", exec("a", ExecVerb::Poll)),
            ("/v1/exec/a%2Fb", exec("a%2Fb", ExecVerb::Poll)),
            ("/v1/exec/a/kill", exec("a", ExecVerb::Kill)),
            ("/v1/exec/start/ack", exec("start", ExecVerb::Ack)),
            ("/v1/exec/a/stdin", Some((Action::Stdin, Some("a".into())))),
            ("/v1/exec/", None),
            ("/v1/exec/a/", None),
            ("/v1/exec/a/b/kill", None),
            ("/v1/exec/a/unknown", None),
            ("/run", None),
        ] {
            assert_eq!(get(path), expected, "{path}");
        }
    }

    #[test]
    fn the_table_spells_every_path_as_the_protocol_does() {
        for hook in Hook::ALL {
            let path = hook.path();
            let found = Match::of(&path).unwrap();
            let route = found.with(&Method::POST).unwrap();
            assert_eq!(route.action, Action::Hook(hook));
        }
        let id = ExecId::new("i").unwrap();
        for path in [
            paths::HEALTH,
            paths::SCHEMA,
            paths::DISCOVERY,
            paths::PROCS,
            paths::TCP,
            paths::EXEC_START,
            paths::EXEC_RUN,
            paths::IDENTITY,
            paths::QUIESCE,
            paths::FILE,
            paths::TAR,
            paths::FILE_FACTS,
            paths::FILE_SLICE,
            paths::FILE_PLACE,
            paths::FILE_REMOVE,
            &paths::exec(&id, ExecVerb::Stdin),
            &paths::resize(&id),
        ] {
            assert!(Match::of(path).is_some(), "{path}");
        }
    }

    #[test]
    fn all_routes_of_a_path_have_one_audience_and_no_method_twice() {
        for route in ROUTES {
            let same = |other: &&Route| other.path == route.path;
            for other in ROUTES.iter().filter(same) {
                assert_eq!(other.audience, route.audience, "{}", route.path);
                let twice = other.verb == route.verb && !std::ptr::eq(other, route);
                assert!(!twice, "{}", route.path);
            }
        }
        assert_eq!(Match::of(paths::FILE).unwrap().allowed(), "GET,HEAD,PUT");
    }
}
