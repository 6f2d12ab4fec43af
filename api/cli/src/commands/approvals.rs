//! Commands that wait for people: listed, approved, denied.

use std::collections::BTreeSet;
use std::io::BufReader;

use serde_json::Value;
use serde_json::json;

use super::Context;
use super::sessions::SESSIONS;
use super::sessions::resolve;
use crate::args::approvals::ApprovalsArgs;
use crate::args::approvals::DecideArgs;
use crate::client::Client;
use crate::client::Patience;
use crate::error::CliError;
use crate::output::note;
use crate::render;
use crate::sse::Frames;
use crate::visible::clean;

/// `agent approvals`.
pub(super) fn list(context: &Context, args: &ApprovalsArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    if args.watch {
        return watch(context, &client, &id);
    }
    let answer = client.get(&path(&id))?;
    context.output.show(&answer, render::approvals::list)?;
    Ok(0)
}

/// `agent approve` and `agent deny`.
pub(super) fn decide(context: &Context, args: &DecideArgs, verb: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let mut body = json!({});
    if let (Some(text), Some(fields)) = (&args.note, body.as_object_mut()) {
        fields.insert("note".to_owned(), json!(text));
    }
    let path = format!("{}/{}/{verb}", path(&id), args.approval);
    let answer = client.post(&path, &body, Patience::Normal)?;
    context.output.show(&answer, |answer: &Value, _| {
        let status = render::string(answer, "status");
        let command = clean(render::string(answer, "command"));
        format!("{status}: {command}")
    })?;
    Ok(0)
}

/// Prints each request as it comes, until the stream of the session's events ends.
fn watch(context: &Context, client: &Client, id: &str) -> Result<u8, CliError> {
    let mut shown = BTreeSet::new();
    let reader = client.stream(&format!("{SESSIONS}/{id}/events/stream"), &[])?;
    note("Waiting for requests; Ctrl-C ends this.");
    let mut frames = Frames::new(BufReader::new(reader));
    while let Ok(Some(frame)) = frames.next_frame() {
        let event: Value = serde_json::from_str(&frame.data).unwrap_or_default();
        if frame.event == "error" {
            note(&format!("fluxctl: {}", render::string(&event, "error")));
            break;
        }
        if render::string(&event, "kind") == "approval.requested" {
            show_pending(context, client, id, &mut shown)?;
        }
    }
    Ok(0)
}

fn show_pending(
    context: &Context,
    client: &Client,
    id: &str,
    shown: &mut BTreeSet<String>,
) -> Result<(), CliError> {
    let answer = client.get(&path(id))?;
    for approval in render::items(&answer, "items") {
        let key = render::string(approval, "id").to_owned();
        if render::string(approval, "status") == "pending" && shown.insert(key) {
            context.output.show(approval, render::approvals::request)?;
        }
    }
    Ok(())
}

fn path(id: &str) -> String {
    format!("{SESSIONS}/{id}/approvals")
}
