//! Starting, listing, showing and deleting sessions, and finding the one that was meant.

use chrono::Utc;
use clap::ValueEnum;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;

use super::Context;
use crate::args::RunArgs;
use crate::client::Client;
use crate::client::Patience;
use crate::error::CliError;
use crate::output::note;
use crate::render;

/// The sessions' route.
pub(super) const SESSIONS: &str = "/v1/agents/sessions";
/// Characters of a whole session id: a UUID with its dashes.
const ID_CHARS: usize = 36;
/// Candidates that an ambiguous prefix lists.
const CANDIDATES_MAX: usize = 5;
/// Making a session may clone a repository.
const CREATE_PATIENCE: Patience = Patience::AtMost(std::time::Duration::from_secs(600));

/// `agent run`.
pub(super) fn run(context: &Context, args: &RunArgs) -> Result<u8, CliError> {
    let answer = context
        .client()?
        .post(SESSIONS, &body(args), CREATE_PATIENCE)?;
    context
        .output
        .show(&answer, |answer, _| render::sessions::started(answer))?;
    Ok(0)
}

/// `agent ls`.
pub(super) fn list(context: &Context) -> Result<u8, CliError> {
    let answer = context.client()?.get(SESSIONS)?;
    let now = Utc::now();
    context.output.show(&answer, |answer, style| {
        render::sessions::list(answer, now, style)
    })?;
    Ok(0)
}

/// `agent get`.
pub(super) fn get(context: &Context, id: &str) -> Result<u8, CliError> {
    let client = context.client()?;
    let id = resolve(&client, id)?;
    let answer = client.get(&format!("{SESSIONS}/{id}"))?;
    context.output.show(&answer, render::sessions::page)?;
    Ok(0)
}

/// `agent rm`. Goes on after a failure, so that one bad id does not keep the others alive.
pub(super) fn remove(context: &Context, ids: &[String]) -> Result<u8, CliError> {
    let client = context.client()?;
    let mut failure = None;
    for id in ids {
        let removed = resolve(&client, id)
            .and_then(|id| client.delete(&format!("{SESSIONS}/{id}")).map(|()| id));
        match removed {
            Ok(id) if context.output.is_json() => {
                context
                    .output
                    .json_document(&json!({"id": id, "deleted": true}))?;
            }
            Ok(id) => context
                .output
                .text(&format!("Deleted session {id}; its ledger stays."))?,
            Err(error) => {
                if let Some(before) = failure.replace(error) {
                    note(&format!("fluxctl: {before}"));
                }
            }
        }
    }
    failure.map_or(Ok(0), Err)
}

/// The whole id of the session that was meant. A whole id is not looked up: the daemon knows
/// sessions that it no longer lists.
pub(super) fn resolve(client: &Client, id: &str) -> Result<String, CliError> {
    let id = id.to_ascii_lowercase();
    if id.is_empty()
        || !id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
    {
        return Err(CliError::Usage(format!(
            "`{id}` is not a session id: `fluxctl agent ls` lists them"
        )));
    }
    if id.len() >= ID_CHARS {
        return Ok(id);
    }
    let answer = client.get(SESSIONS)?;
    choose(&id, render::items(&answer, "items"))
}

fn choose(prefix: &str, sessions: &[Value]) -> Result<String, CliError> {
    let matching: Vec<&str> = sessions
        .iter()
        .map(|session| render::string(session, "id"))
        .filter(|id| id.starts_with(prefix))
        .collect();
    match matching.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(CliError::Usage(format!(
            "no session's id starts with `{prefix}`: `fluxctl agent ls` lists them"
        ))),
        several => {
            let shown = several
                .iter()
                .take(CANDIDATES_MAX)
                .copied()
                .collect::<Vec<_>>()
                .join(", ");
            let more = if several.len() > CANDIDATES_MAX {
                ", …"
            } else {
                ""
            };
            Err(CliError::Usage(format!(
                "`{prefix}` fits {} sessions ({shown}{more}): type more of the id",
                several.len()
            )))
        }
    }
}

/// The create body: only what was said, so that the daemon's defaults stay the daemon's.
fn body(args: &RunArgs) -> Value {
    let workspace = section([
        ("path", args.workspace.as_deref().map(Value::from)),
        ("git", args.git.as_deref().map(Value::from)),
        ("mode", word(args.mode)),
        (
            "require_ready",
            args.require_ready.then_some(Value::Bool(true)),
        ),
    ]);
    let runtime = section([
        ("image", args.image.as_deref().map(Value::from)),
        ("cpus", args.cpus.map(Value::from)),
        ("memory_mb", args.memory_mb.map(Value::from)),
    ]);
    let budget = section([
        ("max_execs", args.max_execs.map(Value::from)),
        ("max_exec_seconds", args.max_exec_seconds.map(Value::from)),
    ]);
    section([
        ("agent", Some(Value::from(args.agent.as_str()))),
        (
            "workspace",
            Some(workspace).filter(|section| *section != json!({})),
        ),
        (
            "runtime",
            Some(runtime).filter(|section| *section != json!({})),
        ),
        ("policy", policy(args)),
        (
            "budget",
            Some(budget).filter(|section| *section != json!({})),
        ),
        ("record", word(args.record)),
        ("ttl_seconds", args.ttl_seconds.map(Value::from)),
    ])
}

/// The policy, if anything of one was said.
fn policy(args: &RunArgs) -> Option<Value> {
    let list = |patterns: &[String]| (!patterns.is_empty()).then(|| json!(patterns));
    let process = section([
        ("allow", list(&args.cmd_allow)),
        ("deny", list(&args.cmd_deny)),
        ("ask", list(&args.cmd_ask)),
        ("enforce", args.cmd_enforce.then(|| json!("exec"))),
    ]);
    let files = section([
        ("read", list(&args.fs_read)),
        ("write", list(&args.fs_write)),
    ]);
    let confines = args.confine || files != json!({});
    let policy = section([
        ("preset", word(args.policy)),
        (
            "process",
            Some(process).filter(|section| *section != json!({})),
        ),
        ("filesystem", confines.then_some(files)),
    ]);
    Some(policy).filter(|section| *section != json!({}))
}

pub(super) fn section<const N: usize>(entries: [(&str, Option<Value>); N]) -> Value {
    let map: Map<String, Value> = entries
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| (key.to_owned(), value)))
        .collect();
    Value::Object(map)
}

/// The word of an option as the API spells it, which is how the command line spells it too.
pub(super) fn word<E: ValueEnum>(option: Option<E>) -> Option<Value> {
    option
        .and_then(|value| value.to_possible_value())
        .map(|possible| Value::from(possible.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Agent;
    use crate::args::Cli;
    use crate::args::Command;
    use clap::Parser;

    fn body_of(options: &[&str]) -> Value {
        let words = ["fluxctl", "agent", "run"].iter().chain(options);
        match Cli::try_parse_from(words).expect("parses").command {
            Command::Agent(Agent::Run(args)) => body(&args),
            _ => panic!("parsed as another verb"),
        }
    }

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(body_of(&[]), json!({"agent": "agent"}));
    }

    #[test]
    fn every_option_has_its_place_in_the_body() {
        let body = body_of(&[
            "codex",
            "--ttl-seconds",
            "30m",
            "--memory-mb",
            "512",
            "--cpus",
            "2",
            "--image",
            "slim",
            "--workspace",
            "/w",
            "--git",
            "https://h/r",
            "--mode",
            "readonly",
            "--require-ready",
            "--policy",
            "developer-safe",
            "--record",
            "digest",
            "--fs-write",
            "/data/out",
        ]);
        let wanted = json!({
            "agent": "codex", "ttl_seconds": 1800, "record": "digest",
            "policy": {"preset": "developer-safe", "filesystem": {"write": ["/data/out"]}},
            "workspace": {"path": "/w", "git": "https://h/r", "mode": "readonly", "require_ready": true},
            "runtime": {"image": "slim", "cpus": 2, "memory_mb": 512},
        });
        assert_eq!(body, wanted);
    }

    #[test]
    fn a_prefix_must_fit_exactly_one_session() {
        let sessions = [
            json!({"id": "aa11"}),
            json!({"id": "aa22"}),
            json!({"id": "bb33"}),
        ];
        assert_eq!(choose("bb", &sessions).expect("one"), "bb33");
        let error = choose("aa", &sessions).expect_err("two");
        assert_eq!(
            error.to_string(),
            "`aa` fits 2 sessions (aa11, aa22): type more of the id"
        );
        assert!(choose("cc", &sessions).is_err());
    }
}
