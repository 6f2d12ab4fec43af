//! What sessions made: differences, and carrying them on.

use std::time::Duration;

use serde_json::Value;

use super::Context;
use super::sessions::SESSIONS;
use super::sessions::resolve;
use super::sessions::section;
use crate::args::changes::BlameArgs;
use crate::args::changes::DiffArgs;
use crate::args::changes::PromoteArgs;
use crate::client::Patience;
use crate::client::with_query;
use crate::error::CliError;
use crate::render;

/// Three snapshots, two minutes each, and what a guest takes for half a GiB.
const PATIENCE: Patience = Patience::AtMost(Duration::from_secs(1_200));

/// `agent artifacts`.
pub(super) fn artifacts(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.get_within(&format!("{SESSIONS}/{id}/artifacts"), PATIENCE)?;
    context
        .output
        .show(&answer, |answer, _| render::changes::artifacts(&id, answer))?;
    Ok(0)
}

/// `agent diff`.
pub(super) fn diff(context: &Context, args: &DiffArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let query = [
        ("from", args.from.clone()),
        ("to", args.to.clone()),
        ("path", args.path.clone()),
    ];
    let path = with_query(&format!("{SESSIONS}/{id}/diff"), &query);
    let answer = client.get_within(&path, PATIENCE)?;
    context
        .output
        .show(&answer, |answer, _| render::changes::diff(answer))?;
    Ok(0)
}

/// `agent promote`.
pub(super) fn promote(context: &Context, args: &PromoteArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let paths = args.paths.iter().map(|path| Value::from(path.as_str()));
    let paths: Vec<Value> = paths.collect();
    let body = section([
        ("dry_run", args.dry_run.then_some(Value::Bool(true))),
        ("plan_id", args.plan_id.as_deref().map(Value::from)),
        (
            "skip_conflicts",
            args.skip_conflicts.then_some(Value::Bool(true)),
        ),
        ("paths", (!paths.is_empty()).then_some(Value::Array(paths))),
    ]);
    let answer = client.post(&format!("{SESSIONS}/{id}/promote"), &body, PATIENCE)?;
    context
        .output
        .show(&answer, |answer, _| render::changes::promoted(&id, answer))?;
    Ok(0)
}

/// `agent blame`.
pub(super) fn blame(context: &Context, args: &BlameArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let (path, line) = args.parts();
    let query = [
        ("path", Some(path.to_owned())),
        ("line", line.map(|line| line.to_string())),
    ];
    let path = with_query(&format!("{SESSIONS}/{id}/blame"), &query);
    let answer = client.get_within(&path, Patience::Endless)?;
    context
        .output
        .show(&answer, |answer, _| render::changes::blamed(answer))?;
    Ok(0)
}
