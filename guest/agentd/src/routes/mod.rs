//! From a request to its answer: which route it means, whether it may, and who answers.
//!
//! The order is the contract's. A path that is no route is 404 before anything else. On a bearer
//! route the token is judged from the head alone, before the method and before the body. Then the
//! method, then the body.

mod exec;
mod health;
mod hooks;

pub(crate) use hooks::HookLog;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use agentd_protocol::ExecId;
use agentd_protocol::Hook;
use agentd_protocol::VERSION_HEADER;
use agentd_protocol::paths;
use agentd_protocol::paths::ExecVerb;
use futures_util::FutureExt;
use hyper::HeaderMap;
use hyper::Method;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;

use crate::app::App;
use crate::auth::Access;
use crate::body;
use crate::body::BodyFault;
use crate::respond;
use crate::respond::Answer;

/// This daemon's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Something that can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Hook(Hook),
    Health,
    Start,
    Run,
    /// An exec by the id in the path; `None` when that segment cannot be decoded.
    Exec(Option<ExecId>, ExecVerb),
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        if let Some(name) = path.strip_prefix(paths::HOOKS_PREFIX) {
            return Hook::from_name(name).map(Self::Hook);
        }
        match path {
            paths::HEALTH => return Some(Self::Health),
            paths::EXEC_START => return Some(Self::Start),
            paths::EXEC_RUN => return Some(Self::Run),
            _ => {}
        }
        let rest = path.strip_prefix(paths::EXEC_PREFIX)?;
        let (segment, verb) = rest.split_once('/').unwrap_or((rest, ""));
        if segment.is_empty() || (verb.is_empty() && rest.contains('/')) {
            return None;
        }
        let verbs = [
            ExecVerb::Poll,
            ExecVerb::Stream,
            ExecVerb::Ack,
            ExecVerb::Kill,
        ];
        let verb = verbs.into_iter().find(|known| known.segment() == verb)?;
        let id = paths::decode_segment(segment).and_then(|text| ExecId::new(text).ok());
        Some(Self::Exec(id, verb))
    }

    fn is_open(&self) -> bool {
        matches!(self, Self::Hook(_) | Self::Health)
    }

    fn allows(&self, method: &Method) -> bool {
        let reads = matches!(
            self,
            Self::Health | Self::Exec(_, ExecVerb::Poll | ExecVerb::Stream)
        );
        if reads {
            method == Method::GET || method == Method::HEAD
        } else {
            method == Method::POST
        }
    }

    fn allowed(&self) -> &'static str {
        if self.allows(&Method::GET) {
            "GET,HEAD"
        } else {
            "POST"
        }
    }
}

/// Answers a request, whatever happens on the way.
pub(crate) async fn answer(app: Rc<App>, request: Request<Incoming>) -> Answer {
    let answered = AssertUnwindSafe(route(app, request)).catch_unwind().await;
    let mut answer = answered.unwrap_or_else(|_| {
        tracing::error!("a request's handler panicked");
        respond::text(StatusCode::INTERNAL_SERVER_ERROR, "the daemon failed")
    });
    let version = HeaderName::from_static(VERSION_HEADER);
    answer
        .headers_mut()
        .insert(version, HeaderValue::from_static(VERSION));
    answer
}

async fn route(app: Rc<App>, request: Request<Incoming>) -> Answer {
    let Some(route) = Route::of(request.uri().path()) else {
        return refuse(request, respond::empty(StatusCode::NOT_FOUND)).await;
    };
    if !route.is_open() {
        let status = match app.bootstrap.judge(request.headers()) {
            Access::Granted => None,
            Access::Denied => Some(StatusCode::UNAUTHORIZED),
            Access::NotBootstrapped => Some(StatusCode::SERVICE_UNAVAILABLE),
        };
        if let Some(status) = status {
            return refuse(request, respond::empty(status)).await;
        }
    }
    if !route.allows(request.method()) {
        return refuse(request, respond::method_not_allowed(route.allowed())).await;
    }
    match route {
        Route::Hook(hook) => hooks::answer(&app, hook, request).await,
        Route::Health => health::answer(&app),
        Route::Start => exec::start(&app, request).await,
        Route::Run => exec::run(&app, request).await,
        Route::Exec(id, verb) => exec::one(&app, id, verb, request).await,
    }
}

/// Answers without having asked for the body, and leaves the connection usable if that is cheap.
async fn refuse(request: Request<Incoming>, answer: Answer) -> Answer {
    let (head, mut body) = request.into_parts();
    if body::drain(&head.headers, &mut body).await {
        answer
    } else {
        respond::closing(answer)
    }
}

/// Answers a request whose body was not read to its end, and closes. What is under way is read
/// within the usual bounds all the same, so that the peer sees the answer and not a reset.
async fn unread(headers: &HeaderMap, mut body: Incoming, fault: BodyFault) -> Answer {
    respond::closing(match fault {
        BodyFault::TooLong => {
            body::drain(headers, &mut body).await;
            respond::text(StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded")
        }
        BodyFault::TooSlow => respond::empty(StatusCode::REQUEST_TIMEOUT),
        BodyFault::CutOff => respond::empty(StatusCode::BAD_REQUEST),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_mean_what_the_contract_says() {
        let exec = |id: &str, verb| Some(Route::Exec(ExecId::new(id).ok(), verb));
        for (path, route) in [
            ("/v1/health", Some(Route::Health)),
            ("/v1/health/", None),
            ("/v1/exec/start", Some(Route::Start)),
            ("/v1/x/exec/run", Some(Route::Run)),
            ("/v1/exec/a", exec("a", ExecVerb::Poll)),
            ("/v1/exec/a%2Fb", exec("a/b", ExecVerb::Poll)),
            ("/v1/exec/a/kill", exec("a", ExecVerb::Kill)),
            ("/v1/exec/start/ack", exec("start", ExecVerb::Ack)),
            ("/v1/exec/%zz", Some(Route::Exec(None, ExecVerb::Poll))),
            ("/v1/exec/", None),
            ("/v1/exec/a/", None),
            ("/v1/exec/a/b/kill", None),
            ("/v1/exec/a/unknown", None),
            ("/run", None),
        ] {
            assert_eq!(Route::of(path), route, "{path}");
        }
        for hook in Hook::ALL {
            assert_eq!(Route::of(&hook.path()), Some(Route::Hook(hook)));
        }
    }
}
