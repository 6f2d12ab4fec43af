//! Checkpoints, forks and the ring of points.

use std::time::Duration;

use serde_json::Value;
use serde_json::json;

use super::Context;
use super::sessions::SESSIONS;
use super::sessions::resolve;
use super::sessions::section;
use super::sessions::word;
use crate::args::time_travel::CheckpointArgs;
use crate::args::time_travel::ForkArgs;
use crate::args::time_travel::RewindArgs;
use crate::args::time_travel::RewindMoveArgs;
use crate::args::time_travel::RewindOnArgs;
use crate::args::time_travel::RewindVerb;
use crate::args::time_travel::TagArgs;
use crate::client::Patience;
use crate::error::CliError;
use crate::output::Style;
use crate::render;

/// The daemon gives an engine two minutes for a snapshot, and as much for bringing one back.
const PATIENCE: Patience = Patience::AtMost(Duration::from_secs(600));

/// `agent checkpoint`.
pub(super) fn checkpoint(context: &Context, args: &CheckpointArgs) -> Result<u8, CliError> {
    let body = section([
        ("tag", args.tag.as_deref().map(Value::from)),
        ("memory", args.disk_only.then_some(Value::Bool(false))),
    ]);
    post(context, &args.session.id, "checkpoint", &body, |id| {
        move |answer: &Value, _: Style| render::time_travel::checkpointed(&id, answer)
    })
}

/// `agent checkpoints`.
pub(super) fn list(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.get(&format!("{SESSIONS}/{id}/checkpoints"))?;
    context.output.show(&answer, |answer, style| {
        render::time_travel::checkpoints(&id, answer, style)
    })?;
    Ok(0)
}

/// `agent rm-checkpoint`.
pub(super) fn remove(context: &Context, args: &TagArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, &args.session.id)?;
    let tag = &args.tag;
    client.delete(&format!("{SESSIONS}/{id}/checkpoints/{}", escaped(tag)))?;
    let done = json!({"id": id, "tag": tag, "deleted": true});
    context.output.show(&done, |_, _| {
        format!("Deleted checkpoint {tag} of session {id}.")
    })?;
    Ok(0)
}

/// `agent restore`.
pub(super) fn restore(context: &Context, args: &TagArgs) -> Result<u8, CliError> {
    let body = json!({"tag": args.tag});
    post(context, &args.session.id, "restore", &body, |id| {
        move |answer: &Value, _: Style| render::time_travel::restored(&id, answer)
    })
}

/// `agent fork`.
pub(super) fn fork(context: &Context, args: &ForkArgs) -> Result<u8, CliError> {
    let body = section([
        ("count", Some(Value::from(args.count))),
        ("identity", word(args.identity)),
        ("tag", args.tag.as_deref().map(Value::from)),
        ("memory", args.disk_only.then_some(Value::Bool(false))),
    ]);
    post(context, &args.session.id, "fork", &body, |id| {
        move |answer: &Value, style: Style| render::time_travel::forked(&id, answer, style)
    })
}

/// `agent rewind`.
pub(super) fn rewind(context: &Context, args: &RewindArgs) -> Result<u8, CliError> {
    let session = &args.session.id;
    match args.verb.as_ref().unwrap_or(&RewindVerb::List) {
        RewindVerb::List => points(context, session),
        RewindVerb::On(on) => configure(context, session, &on_body(on)),
        RewindVerb::Off => configure(context, session, &json!({"enabled": false})),
        RewindVerb::Undo(to) => go(context, session, "rewind/undo", to),
        RewindVerb::Redo(to) => go(context, session, "rewind/redo", to),
        RewindVerb::Pin { tag, unpin } => {
            let body = json!({"tag": tag, "pinned": !unpin});
            show_ring(context, session, "rewind/pin", &body)
        }
        RewindVerb::Bisect { test, good, bad } => {
            let body = section([
                ("test", Some(Value::from(test.as_str()))),
                ("good", good.as_deref().map(Value::from)),
                ("bad", bad.as_deref().map(Value::from)),
            ]);
            post(context, session, "rewind/bisect", &body, |id| {
                move |answer: &Value, style: Style| render::changes::bisected(&id, answer, style)
            })
        }
        RewindVerb::Branch {
            tag,
            count,
            identity,
        } => {
            let body = section([
                ("tag", Some(Value::from(tag.as_str()))),
                ("count", Some(Value::from(*count))),
                ("identity", word(*identity)),
            ]);
            post(context, session, "rewind/branch", &body, |id| {
                move |answer: &Value, style: Style| render::time_travel::forked(&id, answer, style)
            })
        }
    }
}

fn points(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.get(&format!("{SESSIONS}/{id}/rewind"))?;
    context.output.show(&answer, |answer, style| {
        render::time_travel::ring(&id, answer, style)
    })?;
    Ok(0)
}

fn configure(context: &Context, id: &str, body: &Value) -> Result<u8, CliError> {
    show_ring(context, id, "rewind/config", body)
}

fn show_ring(context: &Context, id: &str, verb: &str, body: &Value) -> Result<u8, CliError> {
    post(context, id, verb, body, |id| {
        move |answer: &Value, style: Style| render::time_travel::ring(&id, answer, style)
    })
}

fn go(context: &Context, id: &str, verb: &str, to: &RewindMoveArgs) -> Result<u8, CliError> {
    let body = section([
        ("steps", to.steps.map(Value::from)),
        ("to", to.to.as_deref().map(Value::from)),
    ]);
    post(context, id, verb, &body, |id| {
        move |answer: &Value, _: Style| render::time_travel::moved(&id, answer)
    })
}

fn on_body(on: &RewindOnArgs) -> Value {
    let triggers = on.triggers.as_ref().map(|triggers| {
        let words = triggers.iter().filter_map(|trigger| word(Some(*trigger)));
        words.collect::<Vec<_>>()
    });
    section([
        ("enabled", Some(Value::Bool(true))),
        ("max_points", on.max_points.map(Value::from)),
        ("memory", Some(Value::Bool(!on.disk_only))),
        ("triggers", triggers.map(Value::from)),
    ])
}

/// Posts to a session and shows the answer in the words that `render` has for it.
fn post<R: FnOnce(&Value, Style) -> String>(
    context: &Context,
    id: &str,
    verb: &str,
    body: &Value,
    render: impl FnOnce(String) -> R,
) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.post(&format!("{SESSIONS}/{id}/{verb}"), body, PATIENCE)?;
    context.output.show(&answer, render(id))?;
    Ok(0)
}

/// A tag as a part of a path: what a tag may not hold is escaped, so that the daemon sees what was typed.
fn escaped(tag: &str) -> String {
    tag.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Agent;
    use crate::args::Cli;
    use crate::args::Command;
    use clap::Parser;

    fn verb_of(words: &[&str]) -> Option<RewindVerb> {
        let all = ["fluxctl", "agent", "rewind"].iter().chain(words);
        match Cli::try_parse_from(all).expect("parses").command {
            Command::Agent(Agent::Rewind(args)) => args.verb,
            _ => panic!("parsed as another verb"),
        }
    }

    #[test]
    fn rewind_alone_lists() {
        assert!(verb_of(&["5f0c"]).is_none());
    }

    #[test]
    fn switching_on_says_what_was_said() {
        let Some(RewindVerb::On(on)) = verb_of(&[
            "5f0c",
            "on",
            "--max-points",
            "5",
            "--disk-only",
            "--triggers",
            "exec,file,git",
        ]) else {
            panic!("parsed as another verb")
        };
        let wanted = json!({"enabled": true, "max_points": 5, "memory": false, "triggers": ["exec", "file", "git"]});
        assert_eq!(on_body(&on), wanted);
    }

    #[test]
    fn where_to_is_said_one_way() {
        let words = [
            "fluxctl", "agent", "rewind", "5f0c", "undo", "--steps", "2", "--to", "rw-1",
        ];
        assert!(Cli::try_parse_from(words).is_err());
        assert!(verb_of(&["5f0c", "undo"]).is_some());
    }

    #[test]
    fn a_tag_is_one_part_of_a_path() {
        assert_eq!(escaped("a/../b c"), "a%2F..%2Fb%20c");
    }
}
