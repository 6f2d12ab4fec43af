//! `agent evaluate` and `agent rollout`: candidates, side by side.

use serde_json::Value;

use super::Context;
use super::sessions::SESSIONS;
use super::sessions::resolve;
use super::sessions::section;
use crate::args::evaluate::EvaluateArgs;
use crate::args::evaluate::RolloutArgs;
use crate::client::Patience;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::render;
use crate::shell::command_line;

/// `agent evaluate`; exit code 1 when nothing passed.
pub(super) fn evaluate(context: &Context, args: &EvaluateArgs) -> Result<u8, CliError> {
    let candidates = args.candidates.iter().map(|it| Value::from(it.as_str()));
    let body = section([
        ("candidates", Some(candidates.collect())),
        ("test", args.test.as_deref().map(Value::from)),
        ("keep_all", args.keep_all.then_some(Value::Bool(true))),
        ("timeout_seconds", args.timeout.map(Value::from)),
    ]);
    let answer = ask(context, &args.session.id, "evaluate", &body)?;
    Ok(match answer.get("winner").is_some_and(Value::is_string) {
        true => 0,
        false => EXIT_FAILED,
    })
}

/// `agent rollout`.
pub(super) fn rollout(context: &Context, args: &RolloutArgs) -> Result<u8, CliError> {
    let body = section([
        ("command", Some(Value::from(command_line(&args.command)))),
        ("count", Some(Value::from(args.count))),
        ("keep", args.keep.then_some(Value::Bool(true))),
        ("timeout_seconds", args.timeout.map(Value::from)),
    ]);
    ask(context, &args.session.id, "rollout", &body)?;
    Ok(0)
}

fn ask(context: &Context, id: &str, verb: &str, body: &Value) -> Result<Value, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.post(&format!("{SESSIONS}/{id}/{verb}"), body, Patience::Endless)?;
    context.output.show(&answer, render::evaluate::render)?;
    Ok(answer)
}
