//! The exec routes.

use std::rc::Rc;
use std::str::FromStr;

use agentd_protocol::ExecId;
use agentd_protocol::KillState;
use agentd_protocol::Phase;
use agentd_protocol::ResizeState;
use agentd_protocol::Slug;
use agentd_protocol::StartRequest;
use agentd_protocol::StartedExtension;
use agentd_protocol::StartedState;
use agentd_protocol::StdinRequest;
use agentd_protocol::StdinState;
use agentd_protocol::StdinStateExtension;
use agentd_protocol::TerminalSize;
use agentd_protocol::paths::ACK_OFFSET;
use agentd_protocol::paths::ACK_WITHOUT_OUTCOME;
use agentd_protocol::paths::ExecVerb;
use agentd_protocol::paths::KILL_SIGNAL;
use agentd_protocol::paths::decode_segment;
use hyper::Request;
use hyper::StatusCode;
use hyper::body::Incoming;
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::body;
use crate::exec::AckAnswer;
use crate::exec::Exec;
use crate::exec::Follow;
use crate::exec::Refusal;
use crate::respond;
use crate::respond::Answer;

/// Bytes of a JSON body, which is held in memory: far more than any kernel takes as arguments.
const JSON_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Starts an exec, or finds the one that has the id.
pub(super) async fn start(app: &App, request: Request<Incoming>) -> Answer {
    let exec = match begin(app, request).await {
        Ok((exec, _)) => exec,
        Err(answer) => return answer,
    };
    match exec.started().await {
        Ok(_) => {
            let exec_id = exec.id().clone();
            let x = exec.enforcement().map(|enforcement| StartedExtension {
                enforcement: Some(enforcement),
            });
            respond::json(
                StatusCode::OK,
                &StartedState {
                    exec_id,
                    phase: Phase::Running,
                    x,
                },
            )
        }
        Err(refusal) => respond::refused(&refusal),
    }
}

/// Starts an exec, or finds it, and follows it from its first byte. The reader is attached before
/// there is a process, so that nothing can be missed.
pub(super) async fn run(app: &App, request: Request<Incoming>) -> Answer {
    let follow = match begin(app, request).await {
        Ok((exec, keepalive)) => (Follow::attach(Rc::clone(&exec), 0, keepalive), exec),
        Err(answer) => return answer,
    };
    match follow.1.started().await {
        Ok(_) => respond::event_stream(follow.0),
        Err(refusal) => respond::refused(&refusal),
    }
}

/// Everything that is asked of one exec.
pub(super) async fn one(app: &App, id: &str, verb: ExecVerb, request: Request<Incoming>) -> Answer {
    let query = request.uri().query().map(str::to_owned);
    let answer = match answer_one(app, id, verb, query.as_deref()).await {
        Ok(answer) => answer,
        Err(refusal) => respond::refused(&refusal),
    };
    // None of these has a body; one that is sent all the same must not confuse the connection.
    super::refuse(request, answer).await
}

async fn answer_one(
    app: &App,
    id: &str,
    verb: ExecVerb,
    query: Option<&str>,
) -> Result<Answer, Refusal> {
    let id = exec_id(id)?;
    if verb == ExecVerb::Stream {
        let offset = offset(query)?;
        let exec = app.registry.find(&id).await?;
        let follow = Follow::attach(exec, offset, app.settings.sse_keepalive);
        return Ok(respond::event_stream(follow));
    }
    let exec = app.registry.find(&id).await?;
    Ok(match verb {
        ExecVerb::Poll | ExecVerb::Stream | ExecVerb::Stdin => {
            respond::json(StatusCode::OK, &exec.state())
        }
        ExecVerb::Ack if has(query, ACK_OFFSET) => {
            let offset = number(query, ACK_OFFSET)?.unwrap_or_default();
            respond::json(StatusCode::OK, &exec.acknowledge_to(offset)?)
        }
        ExecVerb::Ack => {
            let bare =
                query.is_some_and(|query| query.split('&').any(|q| q == ACK_WITHOUT_OUTCOME));
            let answer = if bare {
                AckAnswer::Phase
            } else {
                AckAnswer::Outcome
            };
            respond::json(StatusCode::OK, &exec.acknowledge(answer)?)
        }
        ExecVerb::Kill => {
            let killed = match signal(query)? {
                Some(signal) => exec.signal(signal).await,
                None => exec.kill().await,
            };
            respond::json(
                StatusCode::OK,
                &KillState {
                    exec_id: id,
                    killed,
                },
            )
        }
    })
}

/// Writes to an exec's standard input.
pub(super) async fn stdin(app: &App, id: &str, request: Request<Incoming>) -> Answer {
    let bytes = match read_json(app, request).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer,
    };
    let answered = async {
        let request: StdinRequest = parse(&bytes)?;
        let id = exec_id(id)?;
        let exec = app.registry.find(&id).await?;
        let bytes_max = app.settings.stdin_write_bytes_max;
        let took = exec.write_stdin(&request, bytes_max).await?;
        // Only whoever knows of offsets is told where the next write belongs.
        let told = request.x.is_some();
        Ok(StdinState {
            exec_id: id,
            written: took.written,
            eof: took.eof,
            x: told.then_some(StdinStateExtension { taken: took.taken }),
        })
    };
    match answered.await {
        Ok(state) => respond::json(StatusCode::OK, &state),
        Err(refusal) => respond::refused(&refusal),
    }
}

/// Gives an exec's terminal another size.
pub(super) async fn resize(app: &App, id: &str, request: Request<Incoming>) -> Answer {
    let bytes = match read_json(app, request).await {
        Ok(bytes) => bytes,
        Err(answer) => return answer,
    };
    let answered = async {
        let size: TerminalSize = parse(&bytes)?;
        let exec_id = exec_id(id)?;
        app.registry.find(&exec_id).await?.resize(size)?;
        let TerminalSize { cols, rows } = size;
        Ok(ResizeState {
            exec_id,
            cols,
            rows,
        })
    };
    match answered.await {
        Ok(state) => respond::json(StatusCode::OK, &state),
        Err(refusal) => respond::refused(&refusal),
    }
}

fn exec_id(segment: &str) -> Result<ExecId, Refusal> {
    let decoded = decode_segment(segment).and_then(|text| ExecId::new(text).ok());
    decoded.ok_or_else(|| malformed("the id in the path is not percent-encoded UTF-8"))
}

/// A body that is JSON, and is held in memory.
pub(super) async fn read_json(app: &App, request: Request<Incoming>) -> Result<Vec<u8>, Answer> {
    let bytes_max = app.settings.body_bytes_max.min(JSON_BYTES_MAX);
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let (head, mut body) = request.into_parts();
    match body::read(&mut body, bytes_max).await {
        Ok(bytes) => Ok(bytes),
        Err(fault) => Err(super::unread(&head.headers, body, fault).await),
    }
}

async fn begin(
    app: &App,
    request: Request<Incoming>,
) -> Result<(Rc<Exec>, std::time::Duration), Answer> {
    let bytes = read_json(app, request).await?;
    let start: StartRequest = parse(&bytes).map_err(|refusal| respond::refused(&refusal))?;
    drop(bytes);
    let launch = app.bootstrap.borrow().env();
    let begun = app.registry.begin(&start, &launch);
    let exec = begun.map_err(|refusal| respond::refused(&refusal))?;
    Ok((exec, app.settings.sse_keepalive))
}

/// Reads a JSON body. The refusal says where it went wrong and never what was there.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json);
    let request: T = parsed.map_err(|error| {
        let inner = error.inner();
        let what = match inner.classify() {
            serde_json::error::Category::Data => "a value is missing or of the wrong kind",
            _ => "the body is not JSON",
        };
        let place = format!("line {}, column {}", inner.line(), inner.column());
        match error.path().to_string() {
            path if path == "." => malformed(format!("{what} ({place})")),
            path => malformed(format!("{what} at `{path}` ({place})")),
        }
    })?;
    json.end()
        .map_err(|_| malformed("something follows the JSON value"))?;
    Ok(request)
}

/// Reads a start, for fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_start(bytes: &[u8]) -> Result<StartRequest, Refusal> {
    parse(bytes)
}

/// The offset that a stream is asked for from; without one, from the start.
fn offset(query: Option<&str>) -> Result<u64, Refusal> {
    Ok(number(query, "offset")?.unwrap_or_default())
}

/// The signal that a kill names, if it names one.
fn signal(query: Option<&str>) -> Result<Option<Signal>, Refusal> {
    let mut given = values(query, KILL_SIGNAL);
    let Some(name) = given.next() else {
        return Ok(None);
    };
    let signal = Signal::from_str(&format!("SIG{name}")).ok();
    let signal = signal.filter(|_| given.next().is_none());
    let wrong = || malformed(format!("`{KILL_SIGNAL}` is not one signal's name"));
    signal.map(Some).ok_or_else(wrong)
}

/// A non-negative integer of a query.
fn number(query: Option<&str>, name: &str) -> Result<Option<u64>, Refusal> {
    let mut given = values(query, name);
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let value = decode_segment(value).filter(|_| given.next().is_none());
    let number = value
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    let wrong = || malformed(format!("`{name}` is not one non-negative integer"));
    number.map(Some).ok_or_else(wrong)
}

fn has(query: Option<&str>, name: &str) -> bool {
    values(query, name).next().is_some()
}

/// What a query says under a name, as it stands there.
fn values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = query.unwrap_or_default().split('&');
    pairs.filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then_some(value)
    })
}

pub(super) fn malformed(detail: impl Into<String>) -> Refusal {
    Refusal::new(Slug::MalformedRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_one_non_negative_integer() {
        assert_eq!(offset(None), Ok(0));
        assert_eq!(offset(Some("other=1")), Ok(0));
        assert_eq!(offset(Some("a=b&offset=12")), Ok(12));
        for bad in [
            "offset=-1",
            "offset=",
            "offset",
            "offset=1.5",
            "offset=+1",
            "offset=1&offset=2",
        ] {
            assert!(offset(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_signal_is_one_name() {
        assert_eq!(signal(Some("a=b")), Ok(None));
        assert_eq!(signal(Some("x_signal=INT")), Ok(Some(Signal::SIGINT)));
        for bad in [
            "x_signal=",
            "x_signal=9",
            "x_signal=SIGINT",
            "x_signal=INT&x_signal=INT",
        ] {
            assert!(signal(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_malformed_start_names_the_place_and_never_the_value() {
        let secret = "do-not-quote-me";
        for (body, place) in [
            (
                format!(r#"{{"exec_id":"e","command":"{secret}"}}"#),
                "command",
            ),
            (
                format!(r#"{{"exec_id":"e","command":["a"],"timeout_sec":"{secret}"}}"#),
                "timeout",
            ),
            (
                format!(r#"{{"exec_id":"e","command":["a"],"env":{{"K":["{secret}"]}}}}"#),
                "env.K",
            ),
            (r#"{"exec_id":"","command":["a"]}"#.to_owned(), "exec_id"),
            (r#"{"exec_id":"e"}"#.to_owned(), "line 1"),
            (secret.to_owned(), "not JSON"),
            (
                format!(r#"{{"exec_id":"e","command":["a"]}} {secret}"#),
                "follows",
            ),
            (String::new(), "not JSON"),
        ] {
            let refusal = parse::<StartRequest>(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.slug, Slug::MalformedRequest);
            assert!(refusal.detail.contains(place), "{}", refusal.detail);
            assert!(!refusal.detail.contains(secret), "{}", refusal.detail);
        }
    }
}
