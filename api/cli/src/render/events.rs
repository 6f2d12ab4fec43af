//! Events as a table, one event as a line, and what an event says in a few words.

use serde_json::Value;

use super::Tone;
use super::clean;
use super::count;
use super::finish;
use super::first_line;
use super::human_bytes;
use super::number;
use super::string;
use super::table;
use super::text;
use super::time_travel::children_of;
use super::toned;
use crate::output::Style;

/// The table of `agent events`.
pub(crate) fn list(events: &[Value], style: Style) -> String {
    if events.is_empty() {
        return "No events.".to_owned();
    }
    let mut table = table(style, &["SEQ", "AT", "KIND", "ACTOR", "WHAT"]);
    for event in events {
        table.add_row(vec![
            toned(text(event, "/seq"), Tone::Plain),
            toned(text(event, "/at"), Tone::Plain),
            toned(text(event, "/kind"), Tone::Plain),
            toned(text(event, "/actor"), Tone::Plain),
            toned(what_and_exit(event), Tone::Plain),
        ]);
    }
    finish(table)
}

/// One line of `agent events --follow`.
pub(crate) fn line(event: &Value) -> String {
    let line = format!(
        "{:>6}  {}  {:<22}  {}",
        text(event, "/seq"),
        text(event, "/at"),
        text(event, "/kind"),
        what_and_exit(event)
    );
    clean(line.trim_end())
}

/// What an event says, with the exit code where it has one.
fn what_and_exit(event: &Value) -> String {
    match event.pointer("/data/exit_code") {
        Some(code) => format!("exit {code}: {}", what(event)),
        None => what(event),
    }
}

fn is_file_work(kind: &str) -> bool {
    ["file", "upload", "git"].contains(&kind.split('.').next().unwrap_or_default())
}

/// What was done to a file or a repository, or would have been.
fn file_words(kind: &str, data: &Value) -> String {
    let subject = match string(data, "path") {
        "" => format!("{} {}", string(data, "message"), string(data, "name")),
        path => path.to_owned(),
    };
    let subject = first_line(subject.trim());
    let size = || number(data, "size").map_or(String::new(), human_bytes);
    match kind {
        "file.failed" | "git.failed" => {
            let action = string(data, "action");
            format!("{action} {subject}: {}", string(data, "reason"))
        }
        "file.write" | "file.upload" | "upload.open" | "upload.abort" => {
            format!("{subject} ({})", size())
        }
        "file.delete" => format!("{subject} ({} entries)", text(data, "/entries")),
        "git.commit" => format!("{subject} ({:.10})", string(data, "commit")),
        _ => subject,
    }
}

/// What an event says, in a few words.
pub(crate) fn what(event: &Value) -> String {
    let kind = string(event, "kind");
    let Some(data) = event.get("data").filter(|data| !data.is_null()) else {
        return "(redacted)".to_owned();
    };
    let words = match kind {
        "exec.started" | "job.start" => first_line(string(data, "command")),
        "exec" | "job.exit" => format!(
            "{}{}",
            first_line(string(data, "command")),
            exec_notes(data)
        ),
        "job.stdin.started" | "job.stdin" => stdin_words(data),
        "exec.failed" | "exec.refused" | "job.failed" | "job.refused" => {
            format!(
                "{}: {}",
                first_line(string(data, "command")),
                string(data, "reason")
            )
        }
        "session.create" => {
            let note = string(data, "workspace_note");
            let note = if note.is_empty() {
                String::new()
            } else {
                format!(" ({note})")
            };
            format!(
                "{} in {}{note}",
                string(data, "agent"),
                string(data, "backend")
            )
        }
        "session.create.started" => {
            format!("{} in {}", string(data, "agent"), string(data, "backend"))
        }
        "replay" => replay_words(data),
        "replay.started" => {
            format!(
                "{} commands of {}",
                text(data, "/steps"),
                string(data, "source")
            )
        }
        _ if is_file_work(kind) => file_words(kind, data),
        _ => time_travel_words(kind, data).unwrap_or_else(|| scalars(data)),
    };
    words.trim_end().to_owned()
}

/// What was written to a job, or is about to be: the job by the start of its id.
fn stdin_words(data: &Value) -> String {
    let bytes = number(data, "written").or_else(|| number(data, "bytes"));
    let mut words = format!(
        "{} to {:.8}",
        human_bytes(bytes.unwrap_or_default()),
        string(data, "job")
    );
    let is_closed = ["closed", "close"]
        .iter()
        .any(|key| data.get(key) == Some(&true.into()));
    if is_closed {
        words.push_str(", closed");
    }
    match string(data, "code") {
        "" => {}
        code => words.push_str(&format!(" ({code})")),
    }
    words
}

/// What an event about a state of the past says.
fn time_travel_words(kind: &str, data: &Value) -> Option<String> {
    let (verb, end) = match kind.rsplit_once('.') {
        Some((verb, "started" | "failed")) => (verb, kind),
        _ => (kind, ""),
    };
    let tag = string(data, "tag");
    let words = match verb {
        _ if end.ends_with(".failed") => format!("{tag} {}", string(data, "reason")),
        "checkpoint" | "checkpoint.delete" | "restore" => tag.to_owned(),
        "rewind.undo" | "rewind.redo" => match number(data, "steps") {
            Some(steps) => format!("to {tag}, {}", count(usize::try_from(steps).ok()?, "step")),
            None => format!("to {tag}"),
        },
        "rewind.pin" if data.get("pinned").and_then(Value::as_bool) == Some(false) => {
            format!("{tag} no longer")
        }
        "rewind.pin" => tag.to_owned(),
        "rewind.config" => config_words(data),
        "fork" | "session.branch_child" => {
            let children = data.get("children").and_then(Value::as_array);
            let children = children_of(children.map_or(0, Vec::len));
            match tag {
                "" => children,
                tag => format!("{children} from {tag}"),
            }
        }
        "promote" if end.is_empty() => {
            let listed = |key: &str| data.get(key).and_then(Value::as_array).map_or(0, Vec::len);
            let paths = listed("added") + listed("modified") + listed("deleted");
            format!("{} from {}", count(paths, "path"), string(data, "child"))
        }
        "promote" => format!("from {}", string(data, "child")),
        "evaluate" | "rollout" => {
            let key = if end.is_empty() {
                "results"
            } else {
                "candidates"
            };
            let tried = data.get(key).and_then(Value::as_array).map_or(0, Vec::len);
            let tried = count(tried, "candidate");
            match data.get("winner").and_then(Value::as_str) {
                Some(winner) => format!("{tried}, won by {winner}"),
                None if end.is_empty() && verb == "evaluate" => format!("{tried}, none passed"),
                None => tried,
            }
        }
        "promote.out" => match number(data, "carried") {
            Some(carried) => format!("{carried} paths to {}", string(data, "parent")),
            None => return None,
        },
        "rewind.bisect" => match data.pointer("/culprit/command").and_then(Value::as_str) {
            Some(command) => format!("it was: {command}"),
            None => string(data, "test").to_owned(),
        },
        "rewind.point" => match number(data, "before") {
            Some(before) => format!("{tag} before event {before}"),
            None => format!("{tag} before {}", string(data, "label")),
        },
        _ => return None,
    };
    Some(words.trim().to_owned())
}

fn config_words(data: &Value) -> String {
    if data.get("enabled").and_then(Value::as_bool) != Some(true) {
        return "off".to_owned();
    }
    let triggers = data.get("triggers").and_then(Value::as_array);
    let words: Vec<&str> = triggers
        .map(|triggers| triggers.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    format!(
        "on, before {}, {} points",
        words.join(", "),
        text(data, "/max_points")
    )
}

/// What was unusual about a command, as `  [timed out]`.
pub(crate) fn exec_notes(data: &Value) -> String {
    let flag = |key: &str| data.get(key).and_then(Value::as_bool).unwrap_or_default();
    let dropped = ["stdout", "stderr"]
        .iter()
        .filter_map(|stream| data.pointer(&format!("/{stream}/dropped_bytes")))
        .any(|bytes| bytes.as_u64().is_some_and(|bytes| bytes > 0));
    let survivors = data
        .pointer("/survivors/total")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let mut notes = String::new();
    for (holds, note) in [
        (flag("timed_out"), "timed out".to_owned()),
        (dropped, "output cut".to_owned()),
        (survivors > 0, format!("{survivors} left running")),
        (
            flag("readopted"),
            "went on over a restart of the daemon".to_owned(),
        ),
    ] {
        if holds {
            notes.push_str(&format!("  [{note}]"));
        }
    }
    notes
}

fn replay_words(data: &Value) -> String {
    let stopped = number(data, "stopped_at")
        .map(|seq| format!("; stopped at {seq}: {}", string(data, "stopped_because")))
        .unwrap_or_default();
    format!(
        "{} commands of {}: {} same exit code, {} same output{stopped}",
        text(data, "/ran"),
        string(data, "source"),
        text(data, "/same_exit_code"),
        text(data, "/same_output"),
    )
}

/// `key=value` of what is neither a list nor an object; enough for kinds that we do not know.
fn scalars(data: &Value) -> String {
    let Value::Object(map) = data else {
        return first_line(&data.to_string());
    };
    let words: Vec<String> = map
        .iter()
        .filter(|(key, value)| *key != "op" || value.is_string())
        .filter_map(|(key, value)| match value {
            Value::String(text) => Some(format!("{key}={}", first_line(text))),
            Value::Number(_) | Value::Bool(_) => Some(format!("{key}={value}")),
            Value::Array(list) if !list.is_empty() => Some(format!("{key}={}", list.len())),
            _ => None,
        })
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn known_kinds_are_said_in_words_and_unknown_ones_by_their_scalars() {
        let exec = json!({"op": 3, "command": "make\nmake test", "exit_code": 124, "timed_out": true,
            "stdout": {"bytes": 9, "dropped_bytes": 4}, "survivors": {"total": 2, "listed": []}});
        let events = [
            json!({"seq": 3, "at": "t3", "kind": "exec.started", "actor": "admin:a", "data": {"command": "make"}}),
            json!({"seq": 4, "at": "t4", "kind": "exec", "actor": "admin:a", "data": exec}),
            json!({"seq": 5, "at": "t5", "kind": "shiny.new", "actor": "x", "data": {"op": 4, "n": 1, "s": "a b", "l": [1, 2], "o": {}}}),
            json!({"seq": 6, "at": "t6", "kind": "exec", "actor": "x", "data": null}),
        ];
        expect![[r#"
            SEQ  AT  KIND          ACTOR    WHAT
            3    t3  exec.started  admin:a  make
            4    t4  exec          admin:a  exit 124: make …  [timed out]  [output cut]  [2 left running]
            5    t5  shiny.new     x        l=2 n=1 s=a b
            6    t6  exec          x        (redacted)"#]]
        .assert_eq(&list(&events, Style::default()));
    }

    #[test]
    fn what_happened_to_states_is_said_in_words() {
        let say = |kind: &str, data: Value| what(&json!({"kind": kind, "data": data}));
        for (kind, data, said) in [
            ("checkpoint", json!({"op": 1, "tag": "a"}), "a"),
            (
                "restore.failed",
                json!({"op": 1, "tag": "a", "code": "c", "reason": "damaged"}),
                "a damaged",
            ),
            (
                "fork",
                json!({"op": 1, "children": ["x", "y"]}),
                "2 children",
            ),
            (
                "session.branch_child",
                json!({"tag": "rw-1", "children": ["x"]}),
                "1 child from rw-1",
            ),
            (
                "rewind.undo",
                json!({"tag": "rw-1", "steps": 2}),
                "to rw-1, 2 steps",
            ),
            (
                "promote",
                json!({"op": 1, "child": "c", "added": ["a"], "modified": [], "deleted": ["b"]}),
                "2 paths from c",
            ),
            (
                "promote.out",
                json!({"parent": "p", "carried": 2}),
                "2 paths to p",
            ),
            (
                "rewind.bisect",
                json!({"op": 1, "test": "make", "culprit": {"command": "rm a"}}),
                "it was: rm a",
            ),
            ("rewind.bisect.started", json!({"test": "make"}), "make"),
            (
                "rewind.point",
                json!({"tag": "rw-1", "before": 9}),
                "rw-1 before event 9",
            ),
            (
                "rewind.point.started",
                json!({"tag": "rw-1", "label": "write /a"}),
                "rw-1 before write /a",
            ),
            (
                "rewind.config",
                json!({"enabled": true, "max_points": 5, "triggers": ["exec"]}),
                "on, before exec, 5 points",
            ),
        ] {
            assert_eq!(say(kind, data), said, "{kind}");
        }
    }

    #[test]
    fn a_followed_event_is_one_line() {
        let event = json!({"seq": 12, "at": "2026-12-01T10:00:00.123456Z", "kind": "exec.started", "data": {"command": "ls"}});
        expect!["    12  2026-12-01T10:00:00.123456Z  exec.started            ls"]
            .assert_eq(&line(&event));
    }
}
