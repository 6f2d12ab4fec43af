//! `agent replay`.

use chrono::Utc;
use serde_json::Value;
use serde_json::json;

use super::Context;
use super::sessions;
use crate::args::ReplayArgs;
use crate::client::Patience;
use crate::error::CliError;
use crate::error::EXIT_FAILED;
use crate::render;

/// Runs the recorded commands again; exit code 1 when one ended otherwise than recorded
/// or did not run.
pub(super) fn run(context: &Context, args: &ReplayArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let source = sessions::resolve(&client, &args.session.id)?;
    let target = match &args.target {
        Some(target) => Some(sessions::resolve(&client, target)?),
        None => None,
    };
    let path = format!("{}/{source}/replay", sessions::SESSIONS);
    let answer = client.post(&path, &body(args, target.as_deref()), Patience::Endless)?;
    context.output.show(&answer, render::replay::render)?;
    Ok(if render::replay::differs(&answer) {
        EXIT_FAILED
    } else {
        0
    })
}

fn body(args: &ReplayArgs, target: Option<&str>) -> Value {
    let now = Utc::now();
    let from = args.from.as_deref();
    let seq = from.and_then(|from| from.parse::<u64>().ok());
    let tag = from.filter(|_| seq.is_none());
    let mut body = json!({});
    if let Value::Object(map) = &mut body {
        let entries = [
            ("target", target.map(Value::from)),
            ("dry_run", args.dry_run.then_some(Value::Bool(true))),
            (
                "since",
                args.since.map(|moment| Value::from(moment.to_rfc3339(now))),
            ),
            (
                "until",
                args.until.map(|moment| Value::from(moment.to_rfc3339(now))),
            ),
            ("from", seq.map(Value::from)),
            ("checkpoint", tag.map(Value::from)),
            ("to", args.to.map(Value::from)),
            (
                "stop_on_failure",
                args.keep_going.then_some(Value::Bool(false)),
            ),
            ("timeout_seconds", args.timeout.map(Value::from)),
        ];
        for (key, value) in entries {
            if let Some(value) = value {
                map.insert(key.to_owned(), value);
            }
        }
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Agent;
    use crate::args::Cli;
    use crate::args::Command;
    use clap::Parser;

    #[test]
    fn every_option_has_its_place_in_the_body() {
        let words = [
            "fluxctl",
            "agent",
            "replay",
            "aa",
            "--target",
            "bb",
            "--since",
            "2026-12-01T10:00:00Z",
            "--until",
            "2026-12-01T11:00:00Z",
            "--keep-going",
            "--timeout",
            "5m",
            "--dry-run",
        ];
        let Command::Agent(Agent::Replay(args)) =
            Cli::try_parse_from(words).expect("parses").command
        else {
            panic!("parsed as another verb");
        };
        let wanted = json!({"target": "bb", "dry_run": true, "since": "2026-12-01T10:00:00Z",
            "until": "2026-12-01T11:00:00Z", "stop_on_failure": false, "timeout_seconds": 300});
        assert_eq!(body(&args, Some("bb")), wanted);
    }
}
