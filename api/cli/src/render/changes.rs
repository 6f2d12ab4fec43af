//! Differences and promotions, for people.

use std::fmt::Write;

use serde_json::Value;

use super::Tone;
use super::finish;
use super::items;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;
use crate::visible::clean_lines;

/// What `agent artifacts` says.
pub(crate) fn artifacts(id: &str, answer: &Value) -> String {
    let mut said = lines(answer.pointer("/workspace").unwrap_or(&Value::Null));
    let _ = write!(
        said,
        "{} unchanged. Commands: {}. Checkpoints: {}. Children: {}.\n\nNext:\n  fluxctl agent diff {id}",
        text(answer, "/workspace/unchanged"),
        text(answer, "/counters/execs"),
        text(answer, "/counters/checkpoints"),
        text(answer, "/counters/children"),
    );
    clean_lines(&said)
}

/// What `agent diff` says: patches, and a line for what has none.
pub(crate) fn diff(answer: &Value) -> String {
    let mut said = String::new();
    for item in items(answer, "items") {
        let patch = item.get("diff").and_then(Value::as_str).unwrap_or("");
        if patch.is_empty() {
            let why = item.get("omitted").and_then(Value::as_str);
            let why = why.map(|why| format!(" ({})", why.replace('_', " ")));
            let _ = writeln!(
                said,
                "{} {}{}",
                text(item, "/change"),
                text(item, "/path"),
                why.unwrap_or_default()
            );
        } else {
            said.push_str(patch);
            if !patch.ends_with('\n') {
                said.push('\n');
            }
        }
    }
    if said.is_empty() {
        said.push_str("No differences.\n");
    }
    clean_lines(said.trim_end())
}

/// What `agent promote` says.
pub(crate) fn promoted(id: &str, answer: &Value) -> String {
    let mut said = lines(answer.pointer("/plan/apply").unwrap_or(&Value::Null));
    let conflicts = answer.pointer("/plan/conflict_reasons");
    for (path, reason) in conflicts.and_then(Value::as_object).into_iter().flatten() {
        let reason = reason.as_str().unwrap_or_default();
        let _ = writeln!(said, "conflict {path}: {reason}");
    }
    let _ = match answer.get("checkpoint").and_then(Value::as_str) {
        Some(checkpoint) => write!(
            said,
            "Promoted to session {parent}. What it was before is its checkpoint {checkpoint}.\n\
             \nNext:\n  fluxctl agent restore {parent} {checkpoint}",
            parent = text(answer, "/parent"),
        ),
        None => write!(
            said,
            "Nothing is done yet.\n\nNext:\n  fluxctl agent promote {id} --plan-id {}",
            text(answer, "/plan_id"),
        ),
    };
    clean_lines(&said)
}

/// What `agent rewind ID bisect` says.
pub(crate) fn bisected(id: &str, answer: &Value, style: Style) -> String {
    let mut table = table(style, &["STATE", "TEST", "EXIT"]);
    for verdict in items(answer, "tested") {
        let good = verdict.get("good").and_then(Value::as_bool) == Some(true);
        let (word, tone) = if good {
            ("passed", Tone::Good)
        } else {
            ("failed", Tone::Bad)
        };
        table.add_row(vec![
            toned(text(verdict, "/state"), Tone::Plain),
            toned(word.to_owned(), tone),
            toned(text(verdict, "/exit_code"), Tone::Plain),
        ]);
    }
    let said = format!(
        "It was event {}: {}\n\nNext:\n  fluxctl agent diff {id} --from {}",
        text(answer, "/culprit/seq"),
        text(answer, "/culprit/command"),
        text(answer, "/last_good"),
    );
    format!("{}\n{}", finish(table), clean_lines(&said))
}

/// What `agent blame` says.
pub(crate) fn blamed(answer: &Value) -> String {
    let step = |step: &Value| {
        format!(
            "event {} at {}: {} {}",
            text(step, "/seq"),
            text(step, "/at"),
            text(step, "/kind"),
            text(step, "/command"),
        )
    };
    let mut said = String::new();
    if let Some(line) = answer.get("text").and_then(Value::as_str) {
        let _ = writeln!(said, "{}: {line}", text(answer, "/line"));
    }
    let after = text(answer, "/after");
    let before = text(answer, "/before");
    let _ = match answer.get("certainty").and_then(Value::as_str) {
        Some("one_step" | "done_again") => write!(
            said,
            "It was {}",
            step(answer.get("step").unwrap_or(&Value::Null))
        ),
        Some("one_of_several") => {
            let _ = write!(said, "It was one of these, between {after} and {before}:");
            let mut candidates = items(answer, "candidates").iter();
            candidates.try_for_each(|candidate| write!(said, "\n  {}", step(candidate)))
        }
        Some("from_the_beginning") => match answer.get("parent").and_then(Value::as_str) {
            Some(parent) => write!(
                said,
                "The session began with it. It was forked from {parent}."
            ),
            None => write!(said, "The session began with it."),
        },
        _ => write!(
            said,
            "No step wrote it: it came between {after} and {before} by something that ran on by itself."
        ),
    };
    clean_lines(&said)
}

fn lines(lists: &Value) -> String {
    let mut said = String::new();
    for (key, word) in [
        ("added", "added"),
        ("modified", "modified"),
        ("deleted", "deleted"),
    ] {
        for path in items(lists, key) {
            let _ = writeln!(said, "{word} {}", path.as_str().unwrap_or_default());
        }
    }
    said
}
