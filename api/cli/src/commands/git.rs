//! `agent git`.

use serde_json::Value;
use serde_json::json;

use super::Context;
use super::files::base;
use crate::args::files::Git;
use crate::args::files::GitArgs;
use crate::client::Patience;
use crate::client::with_query;
use crate::error::CliError;
use crate::output::note;
use crate::render;

/// Runs a verb of git.
pub(super) fn run(context: &Context, args: &GitArgs) -> Result<u8, CliError> {
    let client = context.client()?;
    let base = format!("{}/git", base(&client, &args.session.id)?);
    let repo = args.repo.clone();
    let get = |what: &str, pairs: &[(&str, Option<String>)]| {
        let mut all = vec![("repo", repo.clone())];
        all.extend(pairs.iter().cloned());
        client.get_slowly(&with_query(&format!("{base}/{what}"), &all))
    };
    let post = |what: &str, mut body: Value| {
        if let (Some(repo), Value::Object(map)) = (&args.repo, &mut body) {
            map.insert("repo".to_owned(), repo.clone().into());
        }
        client.post(&format!("{base}/{what}"), &body, Patience::Endless)
    };
    let output = &context.output;
    match &args.verb {
        Git::Status => output.show(&get("status", &[])?, render::git::status)?,
        Git::Log { number } => {
            let number = number.map(|number| number.to_string());
            output.show(&get("log", &[("n", number)])?, render::git::log)?;
        }
        Git::Diff { staged, path } => {
            let staged = staged.then(|| "true".to_owned());
            let answer = get("diff", &[("staged", staged), ("path", path.clone())])?;
            if context.global.json {
                output.json_document(&answer)?;
            } else {
                // A diff is text for people and for patch alike.
                output.bytes(render::string(&answer, "diff").as_bytes())?;
                if answer.get("truncated") == Some(&Value::Bool(true)) {
                    note("fluxctl: the diff is cut; name a path, or run git in the session");
                }
            }
        }
        Git::Commit {
            message,
            staged_only,
        } => {
            let body = json!({"message": message, "staged_only": staged_only});
            output.show(&post("commit", body)?, render::git::committed)?;
        }
        Git::Branch { name } => {
            output.show(
                &post("branch", json!({"name": name}))?,
                render::git::branched,
            )?;
        }
    }
    Ok(0)
}
