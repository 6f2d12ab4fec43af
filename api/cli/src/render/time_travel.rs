//! Checkpoints, forks and the ring of points, for people.

use serde_json::Value;

use super::Tone;
use super::count;
use super::finish;
use super::first_line;
use super::items;
use super::number;
use super::string;
use super::table;
use super::text;
use super::toned;
use crate::output::Style;
use crate::visible::clean_lines;

/// What `agent checkpoint` says.
pub(crate) fn checkpointed(id: &str, answer: &Value) -> String {
    let tag = text(answer, "/tag");
    clean_lines(&format!(
        "Checkpoint {tag} taken in {} ms ({}; disk {}).\n\n\
         Next:\n  \
         fluxctl agent restore {id} {tag}\n  \
         fluxctl agent fork {id} --tag {tag}\n  \
         fluxctl agent checkpoints {id}",
        text(answer, "/elapsed_ms"),
        processes(answer),
        digest(answer, "/snapshot/disk"),
    ))
}

/// The list of `agent checkpoints`.
pub(crate) fn checkpoints(id: &str, answer: &Value, style: Style) -> String {
    let checkpoints = items(answer, "items");
    if checkpoints.is_empty() {
        return format!("No checkpoints. Take one with `fluxctl agent checkpoint {id}`.");
    }
    let mut table = table(style, &["TAG", "TAKEN", "PROCESSES", "STORED", "DISK"]);
    for checkpoint in checkpoints {
        table.add_row(vec![
            toned(text(checkpoint, "/tag"), Tone::Plain),
            toned(text(checkpoint, "/created_at"), Tone::Plain),
            toned(processes(checkpoint), Tone::Plain),
            toned(stored(checkpoint), Tone::Plain),
            toned(digest(checkpoint, "/snapshot/disk"), Tone::Plain),
        ]);
    }
    finish(table)
}

/// What `agent restore` says.
pub(crate) fn restored(id: &str, answer: &Value) -> String {
    clean_lines(&format!(
        "Session {id} is at {} again ({} ms; {}; disk {} as recorded).{}\n\n\
         Next:\n  \
         fluxctl agent exec {id} -- 'ls -la'\n  \
         fluxctl agent timeline {id}",
        text(answer, "/tag"),
        text(answer, "/elapsed_ms"),
        alive(answer),
        digest(answer, "/disk"),
        unconfined(answer),
    ))
}

/// What `agent fork` and `agent rewind ID branch` say.
pub(crate) fn forked(id: &str, answer: &Value, style: Style) -> String {
    let children = items(answer, "items");
    let mut table = table(style, &["CHILD", "STATUS", "PROCESSES", "IDENTITY"]);
    for child in children {
        let own = child.pointer("/origin/identity_renewed");
        let identity = match own.and_then(Value::as_bool) {
            Some(true) => "its own".to_owned(),
            _ => match child
                .pointer("/origin/identity_note")
                .and_then(Value::as_str)
            {
                Some(note) => first_line(note),
                None => "the parent's".to_owned(),
            },
        };
        let origin = child.get("origin").unwrap_or(&Value::Null);
        table.add_row(vec![
            toned(text(child, "/id"), Tone::Plain),
            toned(text(child, "/status"), Tone::Good),
            toned(alive(origin), Tone::Plain),
            toned(identity, Tone::Plain),
        ]);
    }
    let first = children.first().map(|child| text(child, "/id"));
    let next = first.map_or_else(String::new, |child| {
        format!("\n\nNext:\n  fluxctl agent exec {child} -- 'ls -la'\n  fluxctl agent rm {child}")
    });
    format!(
        "{}\n\n{} of {id} in {} ms.{next}",
        finish(table),
        children_of(children.len()),
        text(answer, "/elapsed_ms"),
    )
}

/// What `agent rewind` shows: the ring, with the state that the session is in marked.
pub(crate) fn ring(id: &str, answer: &Value, style: Style) -> String {
    let (points, undone) = (items(answer, "points"), items(answer, "undone"));
    let state = settings(answer);
    if points.is_empty() && undone.is_empty() {
        return format!(
            "{state}\nNo points yet. `fluxctl agent rewind {id} on` takes one before every command."
        );
    }
    let mut table = table(
        style,
        &["", "POINT", "TAKEN", "BEFORE", "PROCESSES", "PINNED"],
    );
    for point in points {
        table.add_row(row(point, ""));
    }
    for (index, point) in undone.iter().enumerate() {
        table.add_row(row(point, if index == 0 { "now" } else { "undone" }));
    }
    let redo = undone.len().saturating_sub(1);
    format!(
        "{state}\n{}\n\n{} to undo, {} to redo.",
        finish(table),
        count(points.len(), "step"),
        count(redo, "step"),
    )
}

/// `1 child`, `8 children`.
pub(crate) fn children_of(count: usize) -> String {
    match count {
        1 => "1 child".to_owned(),
        count => format!("{count} children"),
    }
}

fn row(point: &Value, mark: &str) -> Vec<comfy_table::Cell> {
    let before = point.get("command").and_then(Value::as_str);
    let before = match (before, string(point, "trigger")) {
        (Some(command), _) => first_line(command),
        (None, "") => "(what an undo left)".to_owned(),
        (None, trigger) => trigger.to_owned(),
    };
    let pinned = point.get("pinned").and_then(Value::as_bool);
    let tone = if mark == "now" {
        Tone::Good
    } else {
        Tone::Plain
    };
    vec![
        toned(mark, tone),
        toned(text(point, "/tag"), Tone::Plain),
        toned(text(point, "/created_at"), Tone::Plain),
        toned(before, Tone::Plain),
        toned(processes(point), Tone::Plain),
        toned(
            if pinned.unwrap_or_default() {
                "yes"
            } else {
                ""
            },
            Tone::Plain,
        ),
    ]
}

fn settings(answer: &Value) -> String {
    let config = answer.get("config").unwrap_or(&Value::Null);
    let on = config.get("enabled").and_then(Value::as_bool);
    if !on.unwrap_or_default() {
        return "Rewind is off.".to_owned();
    }
    let triggers: Vec<&str> = items(config, "triggers")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let memory = config.get("memory").and_then(Value::as_bool);
    format!(
        "Rewind is on: a point before every {}; {} are kept{}.",
        triggers.join(", "),
        text(config, "/max_points"),
        if memory.unwrap_or_default() {
            ", with processes where that is possible"
        } else {
            ", disk only"
        },
    )
}

/// What `agent rewind ID undo` and `redo` say.
pub(crate) fn moved(id: &str, answer: &Value) -> String {
    let not_kept = string(answer, "not_kept");
    let lost = match not_kept {
        "" => String::new(),
        reason => format!("\nThe state before could not be kept: {reason}"),
    };
    clean_lines(&format!(
        "Session {id} is at {} now, {} away ({} ms; {}).{lost}{}\n\n\
         {} to undo, {} to redo:\n  \
         fluxctl agent rewind {id} undo\n  \
         fluxctl agent rewind {id} redo",
        text(answer, "/tag"),
        steps(answer, "steps"),
        text(answer, "/elapsed_ms"),
        alive(answer),
        unconfined(answer),
        steps(answer, "undo_steps"),
        steps(answer, "redo_steps"),
    ))
}

fn steps(answer: &Value, key: &str) -> String {
    let steps = number(answer, key).and_then(|steps| usize::try_from(steps).ok());
    count(steps.unwrap_or_default(), "step")
}

fn processes(of: &Value) -> String {
    match of.pointer("/snapshot/processes").and_then(Value::as_str) {
        Some("kept") => "processes kept".to_owned(),
        Some("nothing_alive") => "nothing ran".to_owned(),
        Some("not_asked") => "disk only".to_owned(),
        Some("impossible") => format!(
            "disk only: {}",
            first_line(
                of.pointer("/snapshot/reason")
                    .and_then(Value::as_str)
                    .unwrap_or("?")
            )
        ),
        _ => "-".to_owned(),
    }
}

fn alive(answer: &Value) -> String {
    let memory = answer.get("memory").and_then(Value::as_bool);
    match memory.unwrap_or_default() {
        true => "processes live on".to_owned(),
        false => "nothing runs in it".to_owned(),
    }
}

fn unconfined(answer: &Value) -> String {
    let names: Vec<&str> = items(answer, "unconfined")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            "\nThese live on without the confinement that they had: {}",
            names.join(", ")
        ),
    }
}

fn stored(checkpoint: &Value) -> String {
    let bytes = checkpoint
        .pointer("/snapshot/stored_bytes")
        .and_then(Value::as_u64);
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes} B"))
}

/// The start of a digest: enough to tell two apart, and the whole one is in the JSON.
fn digest(of: &Value, pointer: &str) -> String {
    let whole = of.pointer(pointer).and_then(Value::as_str).unwrap_or("-");
    whole.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn snapshot() -> Value {
        json!({"disk": "ab".repeat(32), "processes": "nothing_alive", "stored_bytes": 120})
    }

    #[test]
    fn a_checkpoint_says_what_to_type_next() {
        let answer = json!({"tag": "a", "elapsed_ms": 12, "snapshot": snapshot()});
        expect![[r#"
            Checkpoint a taken in 12 ms (nothing ran; disk abababababab).

            Next:
              fluxctl agent restore 5f0c a
              fluxctl agent fork 5f0c --tag a
              fluxctl agent checkpoints 5f0c"#]]
        .assert_eq(&checkpointed("5f0c", &answer));
    }

    #[test]
    fn the_ring_marks_where_the_session_is() {
        let point = |tag: &str, command: Value| json!({"tag": tag, "created_at": "t", "command": command, "trigger": "exec", "pinned": tag == "rw-1", "snapshot": snapshot()});
        let answer = json!({
            "config": {"enabled": true, "max_points": 10, "memory": true, "triggers": ["exec", "git"]},
            "points": [point("rw-1", json!("make"))],
            "undone": [point("rw-2", json!("make test\nmore")), point("rw-3", Value::Null)],
        });
        expect![[r#"
            Rewind is on: a point before every exec, git; 10 are kept, with processes where that is possible.
                    POINT  TAKEN  BEFORE       PROCESSES    PINNED
                    rw-1   t      make         nothing ran  yes
            now     rw-2   t      make test …  nothing ran
            undone  rw-3   t      exec         nothing ran

            1 step to undo, 1 step to redo."#]]
        .assert_eq(&ring("5f0c", &answer, Style::default()));
    }

    #[test]
    fn an_empty_ring_says_what_to_type() {
        let answer = json!({"config": {"enabled": false}, "points": [], "undone": []});
        expect![[r#"
            Rewind is off.
            No points yet. `fluxctl agent rewind 5f0c on` takes one before every command."#]]
        .assert_eq(&ring("5f0c", &answer, Style::default()));
    }

    #[test]
    fn an_undo_says_how_to_take_it_back() {
        let answer = json!({"tag": "rw-2", "steps": 1, "elapsed_ms": 90, "memory": true, "unconfined": ["bash"], "undo_steps": 1, "redo_steps": 1, "not_kept": null});
        expect![[r#"
            Session 5f0c is at rw-2 now, 1 step away (90 ms; processes live on).
            These live on without the confinement that they had: bash

            1 step to undo, 1 step to redo:
              fluxctl agent rewind 5f0c undo
              fluxctl agent rewind 5f0c redo"#]]
        .assert_eq(&moved("5f0c", &answer));
    }

    #[test]
    fn children_are_listed_with_what_is_their_own() {
        let child = |id: &str, renewed| json!({"id": id, "status": "running", "origin": {"memory": false, "identity_renewed": renewed, "identity_note": null}});
        let answer = json!({"items": [child("c1", true), child("c2", false)], "elapsed_ms": 30});
        expect![[r#"
            CHILD  STATUS   PROCESSES           IDENTITY
            c1     running  nothing runs in it  its own
            c2     running  nothing runs in it  the parent's

            2 children of 5f0c in 30 ms.

            Next:
              fluxctl agent exec c1 -- 'ls -la'
              fluxctl agent rm c1"#]]
        .assert_eq(&forked("5f0c", &answer, Style::default()));
    }
}
