//! Sessions as a list, one session as a page, and what `agent run` says.

use chrono::DateTime;
use chrono::Utc;
use serde_json::Value;

use super::Tone;
use super::distance;
use super::finish;
use super::items;
use super::table;
use super::text;
use super::time;
use super::toned;
use crate::output::Style;
use crate::visible::clean_lines;

/// The list of `agent ls`.
pub(crate) fn list(answer: &Value, now: DateTime<Utc>, style: Style) -> String {
    let sessions = items(answer, "items");
    if sessions.is_empty() {
        return "No sessions. Start one with `fluxctl agent run`.".to_owned();
    }
    let mut table = table(
        style,
        &[
            "ID", "AGENT", "STATUS", "AGE", "ENDS IN", "EXECS", "BACKEND",
        ],
    );
    for session in sessions {
        let status = text(session, "/status");
        let tone = tone_of(&status);
        let age = time(&text(session, "/created_at")).map(|at| distance(at, now));
        let ends = time(&text(session, "/expires_at"))
            .filter(|at| *at > now && status == "running")
            .map(|at| distance(now, at));
        table.add_row(vec![
            toned(text(session, "/id"), Tone::Plain),
            toned(text(session, "/agent"), Tone::Plain),
            toned(status, tone),
            toned(age.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(ends.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(text(session, "/usage/execs"), Tone::Plain),
            toned(text(session, "/backend"), Tone::Plain),
        ]);
    }
    finish(table)
}

/// The page of `agent get`.
pub(crate) fn page(session: &Value, style: Style) -> String {
    let mut table = table(style, &[]);
    let status = text(session, "/status");
    let tone = tone_of(&status);
    for (name, pointer) in [
        ("id", "/id"),
        ("agent", "/agent"),
        ("status", "/status"),
        ("created", "/created_at"),
        ("expires", "/expires_at"),
        ("revision", "/revision"),
        ("backend", "/backend"),
        ("sandbox", "/sandbox_id"),
        ("workspace", "/workspace/path"),
        ("note", "/workspace/note"),
        ("image", "/runtime/image"),
        ("cpus", "/runtime/cpus"),
        ("memory MiB", "/runtime/memory_mb"),
        ("policy", "/policy/preset"),
        ("record", "/record"),
        ("commands run", "/usage/execs"),
        ("for ms", "/usage/exec_ms"),
        ("tenant", "/tenant"),
        ("forked from", "/parent"),
        ("at", "/origin/tag"),
        ("checkpoints", "/checkpoints"),
        ("children", "/children"),
        ("interrupted", "/interrupted_op/op"),
        ("resolution", "/interrupted_op/resolution"),
    ] {
        let value = match session.pointer(pointer) {
            Some(Value::Array(list)) => names(list),
            _ => text(session, pointer),
        };
        if value != "-" {
            let tone = if name == "status" { tone } else { Tone::Plain };
            table.add_row(vec![toned(name, Tone::Plain), toned(value, tone)]);
        }
    }
    finish(table)
}

/// What is listed, by tag or id; `-` when nothing is.
fn names(list: &[Value]) -> String {
    if list.is_empty() {
        return "-".to_owned();
    }
    let name = |item: &Value| match item.as_str() {
        Some(id) => id.to_owned(),
        None => text(item, "/tag"),
    };
    list.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// What `agent run` says: the id, and what to type next.
pub(crate) fn started(session: &Value) -> String {
    let id = text(session, "/id");
    let note = session
        .pointer("/workspace/note")
        .and_then(Value::as_str)
        .map(|note| format!("\nNote on the workspace: {note}"))
        .unwrap_or_default();
    clean_lines(&format!(
        "Session {id} is {status} ({agent}, {backend}, workspace {workspace}).{note}\n\n\
         Next:\n  \
         fluxctl agent exec {id} -- 'uname -a; ls -la'\n  \
         fluxctl agent timeline {id}\n  \
         fluxctl agent rm {id}",
        status = text(session, "/status"),
        agent = text(session, "/agent"),
        backend = text(session, "/backend"),
        workspace = text(session, "/workspace/path"),
    ))
}

fn tone_of(status: &str) -> Tone {
    match status {
        "running" => Tone::Good,
        "failed" | "gone" => Tone::Bad,
        _ => Tone::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn session() -> Value {
        json!({
            "id": "5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11", "agent": "codex", "status": "running",
            "backend": "procbox", "created_at": "2026-12-01T10:00:00Z",
            "expires_at": "2026-12-01T11:00:00Z", "revision": 1,
            "workspace": {"path": "/workspace", "mode": "clone"},
            "runtime": {"image": null, "memory_mb": 512}, "usage": {"execs": 3, "exec_ms": 40},
        })
    }

    fn now() -> DateTime<Utc> {
        time("2026-12-01T10:05:00Z").expect("a time")
    }

    #[test]
    fn the_list_shows_age_and_end() {
        let ended = json!({"id": "a", "agent": "b", "status": "deleted", "created_at": "2026-11-01T00:00:00Z"});
        let answer = json!({"items": [session(), ended]});
        expect![[r#"
            ID                                    AGENT  STATUS   AGE  ENDS IN  EXECS  BACKEND
            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11  codex  running  5m   55m      3      procbox
            a                                     b      deleted  30d  -        -      -"#]]
        .assert_eq(&list(&answer, now(), Style::default()));
    }

    #[test]
    fn the_list_never_breaks_a_word_however_narrow_the_terminal() {
        let answer = json!({"items": [session()]});
        let wide = expect![[r#"
            ID                                    AGENT  STATUS   AGE  ENDS IN  EXECS  BACKEND
            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11  codex  running  5m   55m      3      procbox"#]];
        for columns in [0, 40, 80, 120] {
            let style = Style {
                columns: Some(columns),
                ..Style::default()
            };
            wide.assert_eq(&list(&answer, now(), style));
        }
    }

    #[test]
    fn a_new_session_cannot_write_to_the_terminal_itself() {
        let mut session = session();
        session["workspace"]["note"] = json!("\u{202e}\x1b[2J");
        assert!(started(&session).contains("workspace: \\u{202e}\\u{1b}[2J"));
    }

    #[test]
    fn an_empty_list_says_what_to_type() {
        expect!["No sessions. Start one with `fluxctl agent run`."].assert_eq(&list(
            &json!({"items": []}),
            now(),
            Style::default(),
        ));
    }

    #[test]
    fn the_page_leaves_out_what_is_not_there() {
        expect![[r#"
            id            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11
            agent         codex
            status        running
            created       2026-12-01T10:00:00Z
            expires       2026-12-01T11:00:00Z
            revision      1
            backend       procbox
            workspace     /workspace
            memory MiB    512
            commands run  3
            for ms        40"#]]
        .assert_eq(&page(&session(), Style::default()));
    }

    #[test]
    fn a_new_session_says_what_to_type_next() {
        expect![[r#"
            Session 5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11 is running (codex, procbox, workspace /workspace).

            Next:
              fluxctl agent exec 5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11 -- 'uname -a; ls -la'
              fluxctl agent timeline 5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11
              fluxctl agent rm 5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11"#]].assert_eq(&started(&session()));
    }
}
