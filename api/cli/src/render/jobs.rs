//! Jobs as a list, and what the verbs on them say.

use chrono::DateTime;
use chrono::Utc;
use serde_json::Value;

use super::Tone;
use super::distance;
use super::finish;
use super::first_line;
use super::items;
use super::string;
use super::table;
use super::text;
use super::time;
use super::toned;
use crate::output::Style;
use crate::visible::clean_lines;

/// The list of `agent jobs`.
pub(crate) fn list(answer: &Value, now: DateTime<Utc>, style: Style) -> String {
    let jobs = items(answer, "items");
    if jobs.is_empty() {
        return "No jobs. Start one with `fluxctl agent bg`.".to_owned();
    }
    let mut table = table(
        style,
        &["JOB", "STATE", "EXIT", "STARTED", "TOOK", "COMMAND"],
    );
    for job in jobs {
        let state = text(job, "/state");
        let code = text(job, "/exit_code");
        let tone = match (state.as_str(), code.as_str()) {
            ("running", _) => Tone::Open,
            ("exited", "0") => Tone::Good,
            _ => Tone::Bad,
        };
        let started = time(string(job, "started_at"));
        let ended = time(string(job, "ended_at"));
        let age = started.map(|at| format!("{} ago", distance(at, now)));
        let took = started.map(|at| distance(at, ended.unwrap_or(now)));
        table.add_row(vec![
            toned(text(job, "/job"), Tone::Plain),
            toned(state, tone),
            toned(code, tone),
            toned(age.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(took.unwrap_or_else(|| "-".to_owned()), Tone::Plain),
            toned(first_line(string(job, "command")), Tone::Plain),
        ]);
    }
    finish(table)
}

/// What `agent bg` says: the id, and what to type next.
pub(crate) fn started(session: &str, job: &Value) -> String {
    let id = text(job, "/job");
    clean_lines(&format!(
        "Job {id} is {state}.\n\n\
         Next:\n  \
         fluxctl agent logs {session} {id} -f\n  \
         fluxctl agent kill {session} {id}",
        state = text(job, "/state"),
    ))
}

/// What `agent kill` says.
pub(crate) fn signalled(answer: &Value) -> String {
    let signal = text(answer, "/signal");
    match answer.get("delivered").and_then(Value::as_bool) {
        Some(true) => format!("SIG{signal} was sent."),
        _ => format!("There was no process left to send SIG{signal} to."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn the_list_shows_how_each_job_ended() {
        let job = |state: &str, code: Value, ended: Value| {
            json!({
                "job": "5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11", "state": state, "exit_code": code,
                "started_at": "2026-12-01T10:00:00Z", "ended_at": ended,
                "command": "make\nall",
            })
        };
        let ended = json!("2026-12-01T10:00:09Z");
        let answer = json!({"items": [
            job("running", Value::Null, Value::Null),
            job("exited", json!(0), ended.clone()),
            job("killed", json!(143), ended),
        ]});
        let now = time("2026-12-01T10:05:00Z").expect("a time");
        expect![[r#"
            JOB                                   STATE    EXIT  STARTED  TOOK  COMMAND
            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11  running  -     5m ago   5m    make …
            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11  exited   0     5m ago   9s    make …
            5f0c6c1e-0f0e-4a63-9f58-0b2f1e0f7a11  killed   143   5m ago   9s    make …"#]]
        .assert_eq(&list(&answer, now, Style::default()));
    }

    #[test]
    fn a_new_job_says_what_to_type_next() {
        expect![[r#"
            Job 7a is running.

            Next:
              fluxctl agent logs 5f 7a -f
              fluxctl agent kill 5f 7a"#]]
        .assert_eq(&started("5f", &json!({"job": "7a", "state": "running"})));
    }
}
