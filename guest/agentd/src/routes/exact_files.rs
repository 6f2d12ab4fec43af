//! The file routes below `/v1/x/fs/`. Errors have a stable name.

use agentd_protocol::ErrorBody;
use agentd_protocol::FileFault;
use agentd_protocol::SLICE_HEADER;
use agentd_protocol::SliceFacts;
use agentd_protocol::limits::PLACED_BYTES_MAX;
use bytes::Bytes;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::HeaderName;
use hyper::header::HeaderValue;
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::files::feed;
use super::query;
use crate::app::App;
use crate::body::BodyFault;
use crate::exec::default_owner;
use crate::files;
use crate::files::Room;
use crate::files::exact;
use crate::files::exact::Cut;
use crate::files::exact::Denial;
use crate::files::exact::Order;
use crate::files::exact::Owner;
use crate::respond;
use crate::respond::Answer;

type Incoming = hyper::body::Incoming;

pub(super) async fn facts(request: Request<Incoming>) -> Answer {
    let answer = match path(&request) {
        Ok(path) => json(on_a_thread(move || exact::facts(&path)).await),
        Err(denial) => denied(&denial),
    };
    super::refuse(request, answer).await
}

pub(super) async fn remove(request: Request<Incoming>) -> Answer {
    let asked = path(&request).and_then(|path| Ok((path, flag(&request, "recursive")?)));
    let answer = match asked {
        Ok((path, recursive)) => json(on_a_thread(move || exact::remove(&path, recursive)).await),
        Err(denial) => denied(&denial),
    };
    super::refuse(request, answer).await
}

pub(super) async fn slice(request: Request<Incoming>) -> Answer {
    let asked = path(&request).and_then(|path| Ok((path, cut(&request)?)));
    let answer = match asked {
        Ok((path, cut)) => match on_a_thread(move || exact::slice(&path, cut)).await {
            Ok((facts, bytes)) => sliced(&facts, bytes),
            Err(denial) => denied(&denial),
        },
        Err(denial) => denied(&denial),
    };
    super::refuse(request, answer).await
}

pub(super) async fn place(app: &App, request: Request<Incoming>) -> Answer {
    let order = match order(app, &request) {
        Ok(order) => order,
        Err(denial) => return super::refuse(request, denied(&denial)).await,
    };
    let room = Room::new(app.settings.disk_reserve_bytes);
    let (head, body) = request.into_parts();
    let size = order.size;
    if body.size_hint().lower() > size {
        return super::unread(&head.headers, body, BodyFault::TooLong).await;
    }
    let work = move |incoming| exact::place(&order, room, incoming);
    let (placed, body) = feed(body, size, work).await;
    let placed = placed.unwrap_or_else(|| Err(gave_up()));
    let failed = placed.is_err();
    let answer = json(placed);
    match failed {
        true => super::files::after_part(&head.headers, body, answer).await,
        false => answer,
    }
}

fn order(app: &App, request: &Request<Incoming>) -> Result<Order, Denial> {
    let path = path(request)?;
    let size =
        number(request, "size")?.ok_or_else(|| malformed("size query parameter is required"))?;
    if size > PLACED_BYTES_MAX {
        let why = format!("size is over {PLACED_BYTES_MAX} bytes");
        return Err(Denial::new(FileFault::TooLarge, why));
    }
    let mode = files::parse_mode(text(request, "mode")?.as_deref()).map_err(malformed)?;
    let (uid, gid) = default_owner(&app.settings.default_user)
        .map_err(|refusal| Denial::new(FileFault::Denied, refusal.detail))?;
    Ok(Order {
        path,
        mode,
        parents: flag(request, "parents")?,
        size,
        sha256: text(request, "sha256")?,
        owner: Owner { uid, gid },
    })
}

fn cut(request: &Request<Incoming>) -> Result<Cut, Denial> {
    Ok(Cut {
        offset: number(request, "offset")?.unwrap_or(0),
        length: number(request, "length")?
            .ok_or_else(|| malformed("length query parameter is required"))?,
        checksum: flag(request, "checksum")?,
    })
}

fn sliced(facts: &SliceFacts, bytes: Bytes) -> Answer {
    let facts = serde_json::to_string(facts)
        .ok()
        .and_then(|text| HeaderValue::from_str(&text).ok());
    let Some(facts) = facts else {
        return denied(&gave_up());
    };
    let mut answer = respond::bytes("application/octet-stream", bytes);
    answer
        .headers_mut()
        .insert(HeaderName::from_static(SLICE_HEADER), facts);
    answer
}

async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Denial> + Send + 'static,
) -> Result<T, Denial> {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(gave_up()))
}

fn gave_up() -> Denial {
    Denial::new(FileFault::Failed, "the daemon failed")
}

fn json<T: Serialize>(done: Result<T, Denial>) -> Answer {
    match done {
        Ok(done) => respond::json(StatusCode::OK, &done),
        Err(denial) => denied(&denial),
    }
}

fn denied(denial: &Denial) -> Answer {
    let status = match denial.fault {
        FileFault::Malformed | FileFault::MagicLink | FileFault::Symlink => StatusCode::BAD_REQUEST,
        FileFault::Absent => StatusCode::NOT_FOUND,
        FileFault::NotAFile
        | FileFault::NotAFolder
        | FileFault::NotEmpty
        | FileFault::SizeMismatch
        | FileFault::ChecksumMismatch
        | FileFault::Denied => StatusCode::CONFLICT,
        FileFault::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        FileFault::NoRoom => StatusCode::INSUFFICIENT_STORAGE,
        FileFault::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let body = ErrorBody {
        error: denial.fault.as_str().to_owned(),
        detail: denial.detail.clone(),
        x: None,
    };
    respond::json(status, &body)
}

fn malformed(why: impl Into<String>) -> Denial {
    Denial::new(FileFault::Malformed, why)
}

fn path(request: &Request<Incoming>) -> Result<String, Denial> {
    text(request, "path")?
        .filter(|path| !path.is_empty())
        .ok_or_else(|| malformed("path query parameter is required"))
}

fn text(request: &Request<Incoming>, name: &str) -> Result<Option<String>, Denial> {
    query::value(request.uri().query(), name)
        .map_err(|_| malformed(format!("{name} cannot be read, or is there twice")))
}

fn number(request: &Request<Incoming>, name: &str) -> Result<Option<u64>, Denial> {
    text(request, name)?
        .map(|text| text.parse())
        .transpose()
        .map_err(|_| malformed(format!("{name} is no number")))
}

fn flag(request: &Request<Incoming>, name: &str) -> Result<bool, Denial> {
    match text(request, name)?.as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(malformed(format!("{name} is true or false"))),
    }
}
