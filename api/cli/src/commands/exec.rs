//! `agent exec`: a command's bytes and its exit code, as if it had run here.

use std::io;
use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::bond::Bond;
use super::feed::Target;
use super::feed::feed;
use super::follow_job::Follow;
use super::jobs;
use super::sessions;
use crate::args::ExecArgs;
use crate::client::Client;
use crate::client::Patience;
use crate::client::with_query;
use crate::duplex;
use crate::error::CliError;
use crate::output::note;
use crate::render::human_bytes;
use crate::render::string;
use crate::shell::command_line;

/// The daemon's own limit on a command that names none, in seconds.
const TIMEOUT_DEFAULT_SECONDS: u64 = 30;
/// How long beyond the command's own limit we wait for the answer. The daemon answers within
/// seconds of the limit; a machine under load gets the rest.
const ANSWER_MARGIN: Duration = Duration::from_secs(90);
/// The most output that the daemon keeps of each stream of a job.
const OUTPUT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// How long the command goes on without anybody who feeds it, in seconds: time for a daemon to be started
/// anew and for us to find it.
const LOST_SECONDS: u64 = 15;
/// Survivors that are named on stderr.
const SURVIVORS_SHOWN_MAX: usize = 3;

/// Runs the command; the exit code is the command's own.
pub(super) fn run(context: &Context, args: &ExecArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = sessions::resolve(&client, &args.session.id)?;
    if args.stream {
        return match args.stdin {
            true => stream_fed(context, client, id, args),
            false => stream_unfed(context, client, id, args),
        };
    }
    let answer = ask(&client, &id, args, ANSWER_MARGIN)?;
    show(
        context,
        &format!("{}/{id}/exec", sessions::SESSIONS),
        &answer,
        seconds_of(args),
    )
}

/// The command's own limit.
fn seconds_of(args: &ExecArgs) -> u64 {
    args.timeout.unwrap_or(TIMEOUT_DEFAULT_SECONDS)
}

/// The daemon's answer, awaited for `margin` longer than the command may take.
fn ask(client: &Client, id: &str, args: &ExecArgs, margin: Duration) -> Result<Value, CliError> {
    let path = format!("{}/{id}/exec", sessions::SESSIONS);
    let wait = Duration::from_secs(args.approval_wait.unwrap_or(0));
    let limit = Duration::from_secs(seconds_of(args))
        .saturating_add(wait)
        .saturating_add(margin);
    let patience = Patience::AtMost(limit);
    let answer = if args.stdin {
        let text = |seconds: Option<u64>| seconds.map(|seconds| seconds.to_string());
        let pairs = [
            ("command", Some(command_line(&args.command))),
            ("timeout_seconds", text(args.timeout)),
            ("approval_id", args.approval_id.clone()),
            ("approval_wait_seconds", text(args.approval_wait)),
        ];
        let mut pieces = duplex::read_stdin();
        let body = stream::poll_fn(move |context| pieces.poll_recv(context));
        client.post_while_sending(&with_query(&path, &pairs), body, patience)
    } else {
        client.post(&path, &body(args), patience)
    };
    answer.map_err(|error| match error {
        CliError::Late { waited, .. } => CliError::CommandLate {
            id: id.to_owned(),
            waited,
        },
        other => other,
    })
}

/// The request as JSON.
fn body(args: &ExecArgs) -> Value {
    let mut body = json!({"command": command_line(&args.command)});
    if let (Some(seconds), Value::Object(map)) = (args.timeout, &mut body) {
        map.insert("timeout_seconds".to_owned(), seconds.into());
    }
    if let (Some(approval), Value::Object(map)) = (&args.approval_id, &mut body) {
        map.insert("approval_id".to_owned(), approval.as_str().into());
    }
    if let (Some(seconds), Value::Object(map)) = (args.approval_wait, &mut body) {
        map.insert("approval_wait_seconds".to_owned(), seconds.into());
    }
    body
}

/// The command's output as it comes.
fn stream_unfed(
    context: &Context,
    client: Client,
    id: String,
    args: &ExecArgs,
) -> Result<u8, CliError> {
    let bond = Bond::of_owner(&id);
    bond.watch(context);
    let path = format!("{}/{id}/exec/stream", sessions::SESSIONS);
    let patience = Patience::with_approval(args.approval_wait);
    let stream = client.post_stream(&path, &body(args), patience)?;
    Follow::started(context, id, client, stream, bond)
}

/// The same, of a command that reads what we read: a job with a standard input, which is ended if we are
/// gone for too long.
fn stream_fed(
    context: &Context,
    client: Client,
    id: String,
    args: &ExecArgs,
) -> Result<u8, CliError> {
    let bond = Bond::of_owner(&id);
    bond.watch(context);
    let mut request = body(args);
    if let Value::Object(map) = &mut request {
        map.insert("timeout_seconds".to_owned(), seconds_of(args).into());
        map.insert("max_output_bytes".to_owned(), OUTPUT_BYTES_MAX.into());
        map.insert("stdin".to_owned(), true.into());
        map.insert("stdin_lost_seconds".to_owned(), LOST_SECONDS.into());
    }
    let patience = Patience::with_approval(args.approval_wait);
    let answer = client.post(&jobs::path(&id), &request, patience)?;
    let job = string(&answer, "job").to_owned();
    let target = Target {
        session: id.clone(),
        job: job.clone(),
        offset: Some(0),
    };
    let follow = Follow::new(context, id, job, bond);
    let feeder = context.anew();
    let own = context.client()?;
    // Not waited for: a command that ends without reading everything leaves nothing to wait for.
    std::thread::spawn(move || {
        if let Err(error) = feed(&feeder, own, target, true) {
            let closed = matches!(&error, CliError::Api { status: 409, .. });
            if !closed {
                note(&format!("fluxctl: {error}"));
            }
        }
    });
    follow.run(client)
}

/// Writes what the command wrote, and remarks on what was unusual.
fn show(context: &Context, path: &str, answer: &Value, seconds: u64) -> Result<u8, CliError> {
    let wrong = |reason: &str| CliError::Answer {
        method: "POST",
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let code = answer
        .get("exit_code")
        .and_then(Value::as_i64)
        .and_then(|code| u8::try_from(code & 0xff).ok())
        .ok_or_else(|| wrong("no `exit_code`"))?;
    if context.global.json {
        context.output.json_document(answer)?;
        return Ok(code);
    }
    let stdout =
        output_of(answer, "stdout").ok_or_else(|| wrong("`stdout_base64` is not base64"))?;
    let stderr =
        output_of(answer, "stderr").ok_or_else(|| wrong("`stderr_base64` is not base64"))?;
    // A reader that has seen enough changes nothing about how the command ended.
    match context.output.bytes(&stdout) {
        Err(error) if !error.is_broken_pipe() => return Err(error),
        _ => {}
    }
    let _ = io::stderr().lock().write_all(&stderr);
    for remark in remarks(answer, seconds) {
        note(&format!("fluxctl: {remark}"));
    }
    Ok(code)
}

/// A stream's bytes: exact from base64 when the daemon sent it, else the text.
fn output_of(answer: &Value, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = answer.get(format!("{name}_base64")).and_then(Value::as_str) {
        return STANDARD.decode(text).ok();
    }
    let text = answer.get(name).and_then(Value::as_str).unwrap_or_default();
    Some(text.as_bytes().to_vec())
}

/// What the person should know beside the output.
fn remarks(answer: &Value, seconds: u64) -> Vec<String> {
    let mut remarks = Vec::new();
    if answer
        .get("timed_out")
        .and_then(Value::as_bool)
        .unwrap_or_default()
    {
        remarks.push(format!(
            "the command ran into its time limit of {seconds} s and was ended; --timeout gives it more"
        ));
    }
    for name in ["stdout", "stderr"] {
        let dropped = answer
            .get(format!("{name}_dropped_bytes"))
            .and_then(Value::as_u64);
        if let Some(bytes) = dropped.filter(|bytes| *bytes > 0) {
            remarks.push(format!(
                "{name} was cut: {} more were written",
                human_bytes(bytes)
            ));
        }
    }
    if let Some(text) = survivors(answer.get("survivors")) {
        remarks.push(text);
    }
    remarks
}

/// Processes that outlived the command, named so that they can be found.
fn survivors(value: Option<&Value>) -> Option<String> {
    let value = value?;
    let listed = value
        .as_array()
        .or_else(|| value.get("listed").and_then(Value::as_array));
    let listed: &[Value] = listed.map_or(&[], Vec::as_slice);
    let total = value
        .get("total")
        .and_then(Value::as_u64)
        .unwrap_or_else(|| u64::try_from(listed.len()).unwrap_or(u64::MAX));
    if total == 0 {
        return None;
    }
    let names: Vec<String> = listed
        .iter()
        .take(SURVIVORS_SHOWN_MAX)
        .map(|one| {
            let pid = one.get("pid").and_then(Value::as_u64).unwrap_or_default();
            let command = one
                .get("command")
                .and_then(Value::as_str)
                .unwrap_or_default();
            format!("{pid} {}", crate::render::first_line(command))
        })
        .collect();
    let plural = if total == 1 { "process" } else { "processes" };
    Some(format!(
        "the command left {total} {plural} running: {}",
        names.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Agent;
    use crate::args::Cli;
    use crate::args::Command;
    use crate::commands::failure_code;
    use crate::discover::Endpoint;
    use crate::error::EXIT_EXEC_FAILED;
    use clap::Parser;
    use std::net::TcpListener;

    #[test]
    fn an_answer_that_is_only_late_is_no_daemon_that_is_not_there() {
        // The system takes the connection, and nobody ever reads from it.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let client = Client::new(Endpoint { url, token: None });
        let words = "fluxctl agent exec 5f0c --timeout 0 -- sleep 9".split(' ');
        let command = Cli::try_parse_from(words).expect("parses").command;
        assert_eq!(failure_code(&command), Some(EXIT_EXEC_FAILED));
        let Command::Agent(Agent::Exec(args)) = command else {
            panic!("parsed as another verb");
        };
        let error = ask(&client, "5f0c", &args, Duration::from_millis(50)).expect_err("no answer");
        assert_eq!(
            error.to_string(),
            "the daemon did not answer in 0.05 s; the command may still be running"
        );
        assert_eq!(
            error.advice().as_deref(),
            Some("See what became of it with `fluxctl agent timeline 5f0c`.")
        );
    }

    #[test]
    fn bytes_that_are_no_text_come_from_base64() {
        let answer = json!({"stdout": "\u{fffd}(", "stdout_base64": "wyg=", "stderr": "plain\n"});
        assert_eq!(output_of(&answer, "stdout").expect("decodes"), b"\xc3\x28");
        assert_eq!(output_of(&answer, "stderr").expect("text"), b"plain\n");
        assert_eq!(output_of(&json!({}), "stdout").expect("empty"), b"");
        assert_eq!(output_of(&json!({"stdout_base64": "!"}), "stdout"), None);
    }

    #[test]
    fn what_is_unusual_is_remarked_on() {
        let answer = json!({"timed_out": true, "stdout_dropped_bytes": 2048, "stderr_dropped_bytes": 0,
            "survivors": {"total": 2, "listed": [{"pid": 7, "command": "sleep 300"}]}});
        assert_eq!(
            remarks(&answer, 30),
            [
                "the command ran into its time limit of 30 s and was ended; --timeout gives it more",
                "stdout was cut: 2.0 KiB more were written",
                "the command left 2 processes running: 7 sleep 300",
            ]
        );
        assert!(remarks(&json!({"exit_code": 0, "survivors": []}), 30).is_empty());
    }
}
