//! Files, transfers, and what a sandbox has to work with.

use chrono::DateTime;
use serde_json::Value;

use super::Tone;
use super::clean;
use super::finish;
use super::human_bytes;
use super::items;
use super::number;
use super::string;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;

/// The text of `agent files`.
pub(crate) fn listing(answer: &Value, style: Style) -> String {
    let folder = answer.get("entries").is_some();
    let one = [answer.clone()];
    let entries = if folder {
        items(answer, "entries")
    } else {
        &one
    };
    if entries.is_empty() {
        return "Nothing is in it.".to_owned();
    }
    let mut table = table(style, &["MODE", "SIZE", "CHANGED", "NAME"]);
    for entry in entries {
        table.add_row(vec![
            toned(
                format!("{}{}", letter(entry), string(entry, "mode")),
                Tone::Plain,
            ),
            toned(size(entry), Tone::Plain),
            toned(changed(entry), Tone::Plain),
            toned(name(entry), Tone::Plain),
        ]);
    }
    let more = match answer.get("truncated") {
        Some(Value::Bool(true)) => "\n\nThere is more in it than is listed.",
        _ => "",
    };
    format!("{}{more}", finish(table))
}

fn letter(entry: &Value) -> &'static str {
    match string(entry, "type") {
        "dir" => "d ",
        "symlink" => "l ",
        "file" => "- ",
        _ => "? ",
    }
}

fn size(entry: &Value) -> String {
    match string(entry, "type") {
        "file" => number(entry, "size").map_or("-".to_owned(), human_bytes),
        _ => "-".to_owned(),
    }
}

fn changed(entry: &Value) -> String {
    let seconds = entry.get("mtime").and_then(Value::as_i64);
    let at = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    at.map_or("-".to_owned(), |at| {
        at.format("%Y-%m-%d %H:%M:%S").to_string()
    })
}

fn name(entry: &Value) -> String {
    match string(entry, "target") {
        "" => string(entry, "name").to_owned(),
        target => format!("{} -> {target}", string(entry, "name")),
    }
}

/// The text of `agent put`.
pub(crate) fn written(answer: &Value, _: Style) -> String {
    let size = number(answer, "size").map_or("-".to_owned(), human_bytes);
    let replaced = match answer.get("replaced") {
        Some(Value::Bool(true)) => ", in the place of what was there",
        _ => "",
    };
    format!(
        "Wrote {size} to {}{replaced}.",
        clean(string(answer, "path"))
    )
}

/// The text of `agent upload`.
pub(crate) fn uploaded(answer: &Value, _: Style) -> String {
    let size = number(answer, "size").map_or("-".to_owned(), human_bytes);
    format!("Uploaded {size} to {}.", clean(string(answer, "path")))
}

/// The text of `agent download` and `agent pull`.
pub(crate) fn downloaded(answer: &Value, _: Style) -> String {
    let size = number(answer, "size").map_or("-".to_owned(), human_bytes);
    format!(
        "Downloaded {size} to {}; its SHA-256 is {}.",
        clean(string(answer, "file")),
        clean(string(answer, "sha256"))
    )
}

/// The text of `agent probe`.
pub(crate) fn probe(answer: &Value, style: Style) -> String {
    let rows = |key: &str| answer.get(key).and_then(Value::as_object).cloned();
    let mut tools = table(style, &["TOOL", "WHERE"]);
    for (tool, path) in rows("tools").unwrap_or_default() {
        let tone = if path.is_null() {
            Tone::Open
        } else {
            Tone::Plain
        };
        tools.add_row(vec![toned(tool, Tone::Plain), toned(text(&path, ""), tone)]);
    }
    let mut ready = table(style, &["READY FOR", ""]);
    for (what, is_ready) in rows("ready_for").unwrap_or_default() {
        let (word, tone) = match is_ready {
            Value::Bool(true) => ("yes", Tone::Good),
            _ => ("no", Tone::Open),
        };
        ready.add_row(vec![toned(what, Tone::Plain), toned(word, tone)]);
    }
    format!("{}\n\n{}", finish(tools), finish(ready))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn a_listing_shows_what_each_entry_is() {
        let answer = json!({"kind": "dir", "truncated": true, "entries": [
            {"name": "a\u{1b}[1m", "type": "file", "size": 1536, "mtime": 1_000_000_000, "mode": "0644"},
            {"name": "l", "type": "symlink", "size": 1, "mtime": 0, "mode": "0777", "target": "a"},
            {"name": "sub", "type": "dir", "size": 0, "mtime": 0, "mode": "0755"}]});
        expect![[r#"
            MODE    SIZE     CHANGED              NAME
            - 0644  1.5 KiB  2001-09-09 01:46:40  a\u{1b}[1m
            l 0777  -        1970-01-01 00:00:00  l -> a
            d 0755  -        1970-01-01 00:00:00  sub

            There is more in it than is listed."#]]
        .assert_eq(&listing(&answer, Style::default()));
    }

    #[test]
    fn a_probe_shows_tools_and_what_they_are_enough_for() {
        let answer = json!({"tools": {"git": "/usr/bin/git", "node": null},
            "ready_for": {"git": true, "build_node": false}});
        let shown = probe(&answer, Style::default());
        assert!(shown.contains("git   /usr/bin/git"), "{shown}");
        assert!(shown.contains("build_node  no"), "{shown}");
    }
}
