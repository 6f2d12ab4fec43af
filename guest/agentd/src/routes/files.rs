//! The file routes. Errors are prose; there is no slug.

use agentd_protocol::paths;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Body as _;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::query;
use crate::app::App;
use crate::body::BodyFault;
use crate::files;
use crate::files::Fault;
use crate::files::Outgoing;
use crate::files::Portion;
use crate::files::Room;
use crate::files::TreeLimits;
use crate::files::Window;
use crate::respond;
use crate::respond::Answer;

type Incoming = hyper::body::Incoming;

pub(super) async fn read_file(request: Request<Incoming>) -> Answer {
    let answered = async {
        let path = path(&request)?;
        let (first, last) = (text(&request, "start_line")?, text(&request, "end_line")?);
        let window = Window::parse(first.as_deref(), last.as_deref()).map_err(Fault::Refused)?;
        let work = move |ready: Ready, outgoing| {
            files::read_file(&path, window, |head| ready.say(head), outgoing);
        };
        download("application/octet-stream", work).await
    };
    let answer = answered.await.unwrap_or_else(|fault| refused(&fault));
    super::refuse(request, answer).await
}

pub(super) async fn read_tree(request: Request<Incoming>) -> Answer {
    let answered = async {
        let path = path(&request)?;
        let limits = TreeLimits::default();
        let work = move |ready: Ready, outgoing| {
            files::read_tree(&path, limits, |head| ready.say(head), outgoing);
        };
        download("application/x-tar", work).await
    };
    let answer = answered.await.unwrap_or_else(|fault| refused(&fault));
    super::refuse(request, answer).await
}

pub(super) async fn write_file(app: &App, request: Request<Incoming>) -> Answer {
    let query = async {
        let path = path(&request)?;
        let mode = files::parse_mode(text(&request, "mode")?.as_deref());
        Ok::<_, Fault>((path, mode.map_err(Fault::Refused)?))
    };
    let (path, mode) = match query.await {
        Ok(query) => query,
        Err(fault) => return super::refuse(request, refused(&fault)).await,
    };
    let room = Room::new(app.settings.disk_reserve_bytes);
    upload(app, request, move |announced, incoming| {
        files::write_file(&path, mode, announced, room, incoming)
    })
    .await
}

pub(super) async fn write_tree(app: &App, request: Request<Incoming>) -> Answer {
    let query = async { Ok((path(&request)?, text(&request, paths::TAR_CHANGES)?)) };
    let (path, changes) = match query.await {
        Ok(query) => query,
        Err(fault) => return super::refuse(request, refused(&fault)).await,
    };
    let reserve_bytes = app.settings.disk_reserve_bytes;
    upload(app, request, move |announced, incoming| {
        let limits = TreeLimits::default();
        let write = match changes {
            Some(_) => files::apply_changes,
            None => files::write_tree,
        };
        write(&path, announced, limits, reserve_bytes, incoming)
    })
    .await
}

/// Lets a thread say whether there is something to send, before it sends it.
struct Ready(oneshot::Sender<Result<(), Fault>>);

impl Ready {
    fn say(self, head: Result<(), Fault>) {
        let _ = self.0.send(head);
    }
}

async fn download(
    kind: &'static str,
    work: impl FnOnce(Ready, Outgoing) + Send + 'static,
) -> Result<Answer, Fault> {
    let (ready, head) = oneshot::channel();
    let (outgoing, portions) = files::outgoing();
    spawn_blocking(move || work(Ready(ready), outgoing));
    head.await.unwrap_or_else(|_| Err(given_up()))?;
    Ok(respond::download(kind, portions))
}

/// Feeds a request's body to a thread. The thread may end before the body does, and then its
/// verdict is the answer.
async fn upload(
    app: &App,
    request: Request<Incoming>,
    work: impl FnOnce(u64, files::Incoming) -> Result<(), Fault> + Send + 'static,
) -> Answer {
    let bytes_max = app.settings.body_bytes_max;
    let (head, body) = request.into_parts();
    let announced = body.size_hint().lower();
    if announced > bytes_max {
        return super::unread(&head.headers, body, BodyFault::TooLong).await;
    }
    let (done, body) = feed(body, bytes_max, move |incoming| work(announced, incoming)).await;
    match done.unwrap_or_else(|| Err(given_up())) {
        Ok(()) => respond::empty(StatusCode::NO_CONTENT),
        Err(fault) => after_part(&head.headers, body, refused(&fault)).await,
    }
}

/// Feeds a body of at most so many bytes to a thread. Answers what the thread said, nothing if it
/// failed, and what is left of the body.
pub(super) async fn feed<T: Send + 'static>(
    mut body: Incoming,
    bytes_max: u64,
    work: impl FnOnce(files::Incoming) -> T + Send + 'static,
) -> (Option<T>, Incoming) {
    let (portions, incoming) = files::incoming();
    let worker = spawn_blocking(move || work(incoming));
    let mut left = bytes_max;
    let end = loop {
        let portion = match body.frame().await {
            None => break Portion::End,
            Some(Err(_)) => break Portion::Broken(Fault::CutOff),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => bytes,
                Err(_) => continue,
            },
        };
        match left.checked_sub(u64::try_from(portion.len()).unwrap_or(u64::MAX)) {
            Some(rest) => left = rest,
            None => break Portion::Broken(Fault::BodyTooLong),
        }
        if portions.send(Portion::Bytes(portion)).await.is_err() {
            break Portion::End;
        }
    };
    let _ = portions.send(end).await;
    drop(portions);
    (worker.await.ok(), body)
}

/// Answers a request whose body may not have been read to its end.
pub(super) async fn after_part(headers: &HeaderMap, mut body: Incoming, answer: Answer) -> Answer {
    if crate::body::drain(headers, &mut body).await {
        answer
    } else {
        respond::closing(answer)
    }
}

fn given_up() -> Fault {
    Fault::Failed("the daemon failed".into())
}

fn refused(fault: &Fault) -> Answer {
    let status = match fault {
        Fault::Refused(_) | Fault::CutOff => StatusCode::BAD_REQUEST,
        Fault::Absent(_) => StatusCode::NOT_FOUND,
        Fault::TooMuch(_) | Fault::BodyTooLong => StatusCode::PAYLOAD_TOO_LARGE,
        Fault::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
        Fault::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    respond::text(status, fault.to_string())
}

/// The path that every one of these routes needs; the refusal is the same on all.
fn path(request: &Request<Incoming>) -> Result<String, Fault> {
    match query::value(request.uri().query(), "path") {
        Ok(Some(path)) if !path.is_empty() => Ok(path),
        _ => Err(Fault::Refused("path query parameter is required".into())),
    }
}

fn text(request: &Request<Incoming>, name: &str) -> Result<Option<String>, Fault> {
    query::value(request.uri().query(), name)
        .map_err(|_| Fault::Refused(format!("{name} cannot be read, or is there twice")))
}
