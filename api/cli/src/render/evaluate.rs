//! Candidates and their scores, for people.

use std::fmt::Write;

use serde_json::Value;

use super::Tone;
use super::finish;
use super::items;
use super::number;
use super::table;
use super::text;
use super::toned;
use crate::duration::human_millis;
use crate::output::Style;
use crate::visible::clean_lines;

/// What `agent evaluate` and `agent rollout` say.
pub(crate) fn render(answer: &Value, style: Style) -> String {
    let mut table = table(
        style,
        &["#", "SCORE", "EXIT", "TEST", "TOOK", "CHILD", "COMMAND"],
    );
    let mut tails = String::new();
    for (index, item) in items(answer, "items").iter().enumerate() {
        let number_of = index + 1;
        let tone = match number(item, "score") {
            Some(100) => Tone::Good,
            Some(0) | None => Tone::Bad,
            Some(_) => Tone::Open,
        };
        let took = number(item, "duration_ms").map(human_millis);
        let kept = item.get("kept").and_then(Value::as_bool) == Some(true);
        table.add_row(vec![
            toned(number_of, Tone::Plain),
            toned(text(item, "/score"), tone),
            toned(ended(item, "exit_code"), Tone::Plain),
            toned(ended(item, "test_exit_code"), Tone::Plain),
            toned(took.unwrap_or_default(), Tone::Plain),
            toned(
                if kept {
                    text(item, "/child")
                } else {
                    "-".to_owned()
                },
                Tone::Plain,
            ),
            toned(text(item, "/command"), Tone::Plain),
        ]);
        for (key, of) in [
            ("output_tail", "wrote"),
            ("test_output_tail", "its test wrote"),
        ] {
            let tail = item.get(key).and_then(Value::as_str).unwrap_or_default();
            if !tail.trim().is_empty() {
                let _ = writeln!(tails, "\n{number_of} {of}:\n{}", tail.trim_end());
            }
        }
    }
    let said = match answer.get("winner").and_then(Value::as_str) {
        Some(winner) => format!(
            "{tails}\nThe winner is {winner}.\n\nNext:\n  fluxctl agent promote {winner} --dry-run"
        ),
        None => tails,
    };
    format!("{}\n{}", finish(table), clean_lines(said.trim_end()))
}

/// An exit code, or why there is none.
fn ended(item: &Value, key: &str) -> String {
    match item.get(key).and_then(Value::as_i64) {
        Some(code) => code.to_string(),
        None => "-".to_owned(),
    }
}
