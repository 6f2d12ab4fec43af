//! Jobs: start one, list them, read one, write to it, signal it.

use std::io;
use std::io::IsTerminal;
use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::bond::Bond;
use super::feed::Target;
use super::feed::feed;
use super::follow_job::Follow;
use super::follow_job::RoomWait;
use super::sessions;
use crate::args::jobs::BgArgs;
use crate::args::jobs::JobArg;
use crate::args::jobs::KillArgs;
use crate::args::jobs::LogsArgs;
use crate::args::jobs::StdinArgs;
use crate::client::Client;
use crate::client::Patience;
use crate::client::with_query;
use crate::error::CliError;
use crate::output::note;
use crate::render;
use crate::shell::command_line;

/// Characters of a whole id.
const ID_CHARS: usize = 36;
/// Bytes of one write: what the daemon takes at once.
const STDIN_BYTES_MAX: usize = 48 * 1024;
/// Writes in a row of which a job takes nothing before we give up. The daemon waits 5 s with each.
const IDLE_WRITES_MAX: u32 = 12;

/// The path of a session's jobs.
pub(super) fn path(session: &str) -> String {
    format!("{}/{session}/jobs", sessions::SESSIONS)
}

/// `agent bg`.
pub(super) fn start(context: &Context, args: &BgArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = sessions::resolve(&client, &args.session.id)?;
    let mut body = json!({"command": command_line(&args.command)});
    if let Value::Object(map) = &mut body {
        if args.stdin {
            map.insert("stdin".to_owned(), true.into());
        }
        if let Some(bytes) = args.max_output_bytes {
            map.insert("max_output_bytes".to_owned(), bytes.into());
        }
        if let Some(seconds) = args.timeout {
            map.insert("timeout_seconds".to_owned(), seconds.into());
        }
        if let Some(approval) = &args.approval_id {
            map.insert("approval_id".to_owned(), approval.as_str().into());
        }
        if let Some(seconds) = args.approval_wait {
            map.insert("approval_wait_seconds".to_owned(), seconds.into());
        }
    }
    let patience = Patience::with_approval(args.approval_wait);
    let job = client.post(&path(&id), &body, patience)?;
    context
        .output
        .show(&job, |job, _| render::jobs::started(&id, job))?;
    Ok(0)
}

/// `agent jobs`.
pub(super) fn list(context: &Context, session: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = sessions::resolve(&client, session)?;
    let answer = client.get(&path(&id))?;
    context.output.show(&answer, |answer, style| {
        render::jobs::list(answer, Utc::now(), style)
    })?;
    Ok(0)
}

/// `agent logs`.
pub(super) fn logs(context: &Context, args: &LogsArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let (session, job) = if args.follow {
        RoomWait::default().ask(|| resolve(&client, &args.job))?
    } else {
        resolve(&client, &args.job)?
    };
    if args.follow {
        let bond = Bond::of_onlooker(&session);
        bond.watch(context);
        return Follow::new(context, session, job, bond).run(client);
    }
    let path = format!("{}/{job}", path(&session));
    let (mut offset, mut stderr_offset) = (0, 0);
    loop {
        let pairs = [
            ("offset", Some(offset.to_string())),
            ("stderr_offset", Some(stderr_offset.to_string())),
        ];
        let page = client.get(&with_query(&path, &pairs))?;
        if context.global.json {
            context.output.json_document(&page)?;
        } else {
            write_part(&page, "output_base64", io::stdout().lock())?;
            write_part(&page, "stderr_base64", io::stderr().lock())?;
        }
        let next = |key: &str, from: u64| render::number(&page, key).unwrap_or(from);
        let before = (offset, stderr_offset);
        offset = next("next_offset", offset);
        stderr_offset = next("stderr_next_offset", stderr_offset);
        let more = page.get("more").and_then(Value::as_bool).unwrap_or(false);
        if !more || (offset, stderr_offset) == before {
            dropped(&page);
            return Ok(0);
        }
    }
}

/// Says how much of a job's output was not kept.
pub(super) fn dropped(end: &Value) {
    let bytes = render::number(end, "dropped_bytes").unwrap_or_default();
    if bytes > 0 {
        note(&format!(
            "fluxctl: the output was cut: {} more were written; --max-output-bytes keeps more",
            render::human_bytes(bytes)
        ));
    }
}

fn write_part(page: &Value, key: &str, mut out: impl Write) -> Result<(), CliError> {
    let bytes = STANDARD.decode(render::string(page, key));
    let bytes = bytes.map_err(|_| CliError::Answer {
        method: "GET",
        path: key.to_owned(),
        reason: "it is not base64".to_owned(),
    })?;
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}

/// `agent stdin`.
pub(super) fn stdin(context: &Context, args: &StdinArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let (session, job) = resolve(&client, &args.job)?;
    let written = match args.text.as_deref() {
        // Nobody types what is to be closed at once.
        None if args.close && io::stdin().is_terminal() => {
            write(&client, &session, &job, &[], true)?
        }
        None | Some("-") => {
            let target = Target {
                session,
                job,
                offset: None,
            };
            feed(context, client, target, args.close)?
        }
        Some(text) => write(&client, &session, &job, text.as_bytes(), args.close)?,
    };
    context.output.show(&written, |answer, _| {
        match answer.get("closed").and_then(Value::as_bool) {
            Some(true) => "Written, and closed.".to_owned(),
            _ => "Written.".to_owned(),
        }
    })?;
    Ok(0)
}

/// Writes bytes to a job, piece by piece, each again until it took all of it.
fn write(
    client: &Client,
    session: &str,
    job: &str,
    mut bytes: &[u8],
    close: bool,
) -> Result<Value, CliError> {
    let path = format!("{}/{job}/stdin", path(session));
    let mut idle_writes = 0;
    loop {
        let (piece, later) = bytes.split_at(bytes.len().min(STDIN_BYTES_MAX));
        let closes = close && later.is_empty();
        let body = json!({"data_base64": STANDARD.encode(piece), "close": closes});
        let answer = client.post(&path, &body, Patience::Normal)?;
        let taken = render::number(&answer, "written").unwrap_or_default();
        let taken = usize::try_from(taken).unwrap_or(usize::MAX);
        bytes = bytes.get(taken..).unwrap_or_default();
        let closed = answer.get("closed").and_then(Value::as_bool);
        if bytes.is_empty() && (!close || closed == Some(true)) {
            return Ok(answer);
        }
        idle_writes = if taken == 0 { idle_writes + 1 } else { 0 };
        if idle_writes >= IDLE_WRITES_MAX {
            let reason = format!(
                "the job does not read: {} bytes were not taken",
                bytes.len()
            );
            return Err(CliError::Usage(reason));
        }
    }
}

/// `agent kill`.
pub(super) fn kill(context: &Context, args: &KillArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let (session, job) = resolve(&client, &args.job)?;
    let path = format!("{}/{job}", path(&session));
    let path = with_query(&path, &[("signal", Some(args.signal.clone()))]);
    let answer = client.delete_answered(&path)?;
    context
        .output
        .show(&answer, |answer, _| render::jobs::signalled(answer))?;
    Ok(0)
}

/// The session's and the job's whole ids.
fn resolve(client: &Client, arg: &JobArg) -> Result<(String, String), CliError> {
    let session = sessions::resolve(client, &arg.session.id)?;
    let prefix = arg.job.to_ascii_lowercase();
    if prefix.len() >= ID_CHARS {
        return Ok((session, prefix));
    }
    let answer = client.get(&path(&session))?;
    let jobs = render::items(&answer, "items");
    let ids = jobs.iter().map(|job| render::string(job, "job"));
    let mut matching = ids.filter(|id| !prefix.is_empty() && id.starts_with(&prefix));
    match (matching.next(), matching.next()) {
        (Some(one), None) => Ok((session, one.to_owned())),
        (None, _) => Err(CliError::Usage(format!(
            "no job's id starts with `{prefix}`: `fluxctl agent jobs {session}` lists them"
        ))),
        (Some(_), Some(_)) => Err(CliError::Usage(format!(
            "several jobs' ids start with `{prefix}`: give more of it"
        ))),
    }
}
