//! From a request to its answer: which route it means, whether it may, and who answers.
//!
//! The order is the contract's. A path that is no route is 404 before anything else. On a bearer
//! route the token is judged from the head alone, before the method and before the body. Then the
//! method, then the body.

mod all;
mod exact_files;
mod exec;
mod files;
mod health;
mod hooks;
mod query;
mod renewal;
mod schema;
mod table;
mod tunnel;

#[cfg(feature = "fuzzing")]
pub(crate) use exec::parse_start;
pub(crate) use hooks::HookLog;
pub(crate) use renewal::Renewing;

use std::panic::AssertUnwindSafe;
use std::rc::Rc;

use agentd_protocol::Discovery;
use agentd_protocol::DiscoveryExtension;
use agentd_protocol::VERSION_HEADER;
use futures_util::FutureExt;
use hyper::HeaderMap;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;

use self::table::Action;
use self::table::Match;
use crate::app::App;
use crate::auth::Access;
use crate::body;
use crate::body::BodyFault;
use crate::confine;
use crate::respond;
use crate::respond::Answer;
use crate::server::Place;
use crate::settings::DefaultUser;

/// This daemon's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Answers a request, whatever happens on the way.
pub(crate) async fn answer(app: Rc<App>, place: Rc<Place>, request: Request<Incoming>) -> Answer {
    let mut answer = caught(route(app, place, request)).await;
    let version = HeaderName::from_static(VERSION_HEADER);
    answer
        .headers_mut()
        .insert(version, HeaderValue::from_static(VERSION));
    answer
}

/// A handler that falls over is an answer all the same, and its connection lives on.
async fn caught(handling: impl Future<Output = Answer>) -> Answer {
    let answered = AssertUnwindSafe(handling).catch_unwind().await;
    answered.unwrap_or_else(|_| {
        tracing::error!("a request's handler panicked");
        respond::text(StatusCode::INTERNAL_SERVER_ERROR, "the daemon failed")
    })
}

async fn route(app: Rc<App>, place: Rc<Place>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path().to_owned();
    let Some(found) = Match::of(&path) else {
        return refuse(request, respond::empty(StatusCode::NOT_FOUND)).await;
    };
    if found.needs_token() {
        let status = match app.bootstrap.borrow().judge(request.headers()) {
            Access::Granted => None,
            Access::Denied => Some(StatusCode::UNAUTHORIZED),
            Access::NotBootstrapped => Some(StatusCode::SERVICE_UNAVAILABLE),
        };
        if let Some(status) = status {
            return refuse(request, respond::empty(status)).await;
        }
    }
    let Some(route) = found.with(request.method()) else {
        return refuse(request, respond::method_not_allowed(&found.allowed())).await;
    };
    let id = found.id.unwrap_or_default();
    match route.action {
        Action::Hook(hook) => hooks::answer(app, hook, request).await,
        Action::Start => exec::start(&app, request).await,
        Action::Run => exec::run(&app, request).await,
        Action::Stdin => exec::stdin(&app, id, request).await,
        Action::Resize => exec::resize(&app, id, request).await,
        Action::Exec(verb) => exec::one(&app, id, verb, request).await,
        Action::Health => refuse(request, health::answer(&app)).await,
        Action::Schema => refuse(request, schema::answer(&app)).await,
        Action::Discovery => refuse(request, discovery(&app)).await,
        Action::Procs => {
            refuse(
                request,
                respond::json(StatusCode::OK, &app.registry.procs()),
            )
            .await
        }
        Action::Identity => renewal::take(&app, &place, request).await,
        Action::Quiesce => renewal::quiesce(&app, &place, request).await,
        Action::ReadFile => files::read_file(request).await,
        Action::WriteFile => files::write_file(&app, request).await,
        Action::ReadTree => files::read_tree(request).await,
        Action::WriteTree => files::write_tree(&app, request).await,
        Action::Facts => exact_files::facts(request).await,
        Action::Slice => exact_files::slice(request).await,
        Action::Place => exact_files::place(&app, request).await,
        Action::Remove => exact_files::remove(request).await,
        Action::Tunnel => tunnel::open(&app, place, request).await,
    }
}

fn discovery(app: &App) -> Answer {
    let default_user = match &app.settings.default_user {
        DefaultUser::Named(name) => Some(name.clone()),
        DefaultUser::Captured(user) => Some(format!("{}:{}", user.uid, user.gid)),
        DefaultUser::Daemon | DefaultUser::Broken(_) => None,
    };
    let x = Some(DiscoveryExtension {
        generation: app.bootstrap.borrow().generation(),
        landlock_abi: confine::landlock_abi(),
        seccomp: confine::seccomp_available(),
    });
    respond::json(StatusCode::OK, &Discovery { default_user, x })
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

    #[tokio::test]
    async fn a_handler_that_panics_is_500_and_no_lost_connection() {
        let answer = caught(async { panic!("a fault of ours") }).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
