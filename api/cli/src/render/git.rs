//! Git's answers.

use chrono::DateTime;
use serde_json::Value;

use super::Tone;
use super::clean;
use super::count;
use super::finish;
use super::items;
use super::string;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;

/// Digits of a commit that people read.
const SHORT: usize = 10;

fn short(commit: &str) -> String {
    clean(&commit.chars().take(SHORT).collect::<String>())
}

/// The text of `agent git … status`.
pub(crate) fn status(answer: &Value, style: Style) -> String {
    let at = match string(answer, "commit") {
        "" => "without a commit yet".to_owned(),
        commit => format!("at {}", short(commit)),
    };
    let head = format!("On branch {} {at}.", clean(&text(answer, "/branch")));
    let changes = items(answer, "changes");
    if changes.is_empty() {
        return format!("{head} Nothing differs.");
    }
    let mut table = table(style, &["STAGED", "NOT STAGED", "PATH"]);
    for change in changes {
        let path = match string(change, "from") {
            "" => string(change, "path").to_owned(),
            from => format!("{from} -> {}", string(change, "path")),
        };
        table.add_row(vec![
            toned(string(change, "index"), Tone::Good),
            toned(string(change, "worktree"), Tone::Bad),
            toned(path, Tone::Plain),
        ]);
    }
    format!(
        "{head} {}:\n\n{}",
        count(changes.len(), "path"),
        finish(table)
    )
}

/// The text of `agent git … log`.
pub(crate) fn log(answer: &Value, style: Style) -> String {
    let commits = items(answer, "commits");
    if commits.is_empty() {
        return "No commit yet.".to_owned();
    }
    let mut table = table(style, &["COMMIT", "WHEN", "AUTHOR", "SUBJECT"]);
    for commit in commits {
        let at = commit.get("date").and_then(Value::as_i64);
        let at = at.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        table.add_row(vec![
            toned(short(string(commit, "commit")), Tone::Open),
            toned(
                at.map_or("-".to_owned(), |at| at.format("%Y-%m-%d %H:%M").to_string()),
                Tone::Plain,
            ),
            toned(string(commit, "author"), Tone::Plain),
            toned(string(commit, "subject"), Tone::Plain),
        ]);
    }
    finish(table)
}

/// The text of `agent git … commit`.
pub(crate) fn committed(answer: &Value, _: Style) -> String {
    format!(
        "Committed {} on {}, by {}.",
        short(string(answer, "commit")),
        clean(&text(answer, "/branch")),
        clean(string(answer, "author"))
    )
}

/// The text of `agent git … branch`.
pub(crate) fn branched(answer: &Value, _: Style) -> String {
    format!("On the new branch {}.", clean(string(answer, "branch")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn a_status_shows_both_sides_of_each_path() {
        let answer = json!({"branch": "main", "commit": "0123456789abcdef", "changes": [
            {"path": "b", "index": "R", "worktree": ".", "from": "a"},
            {"path": "new", "index": "?", "worktree": "?"}]});
        expect![[r#"
            On branch main at 0123456789. 2 paths:

            STAGED  NOT STAGED  PATH
            R       .           a -> b
            ?       ?           new"#]]
        .assert_eq(&status(&answer, Style::default()));
        let clean = json!({"branch": "main", "commit": null, "changes": []});
        let shown = status(&clean, Style::default());
        assert_eq!(
            shown,
            "On branch main without a commit yet. Nothing differs."
        );
    }
}
